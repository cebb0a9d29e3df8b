"""Faults of llama-server builds, from a table, and which of them an arm asks for."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import msgspec

from benchctl.engines.base import Capabilities
from benchctl.engines.llama_cpp.adapter import LlamaCppSpec
from benchctl.engines.llama_cpp.probe import Flags, normalise
from benchctl.models.files import ResolvedPair
from benchctl.recipes.schema import Arm

ANY_TYPE = "*"
_UNCOUNTED = {"0", "1"}
"""Build numbers of a source without its history, which say nothing."""


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of `faults.toml`, which says what its fields are."""

    name: str
    brief: str
    types: tuple[str, ...]
    symptom: str
    source: str
    builds: tuple[int, int]
    reproduced: tuple[str, ...]
    architectures: tuple[str, ...] = ()
    slots: int = 1
    flags: tuple[str, ...] = ()
    caching: bool = False
    recurrent_draft: bool = False
    request: str | None = None
    lacks: str | None = None

    def in_build(self, build: str | None, commit: str | None) -> bool:
        """Whether a build may have it: where it was reproduced, within its range, or where the number says nothing."""
        if (commit or "").startswith(self.reproduced) or build is None or not build.isdigit() or build in _UNCOUNTED:
            return True
        first, fixed = self.builds
        return first <= int(build) and (not fixed or int(build) < fixed)

    def concerns(self, types: Sequence[str]) -> bool:
        """Whether any of these types of speculation has it."""
        return ANY_TYPE in self.types or not set(self.types).isdisjoint(types)

    def sentence(self, commit: str | None) -> str:
        """Return what happens, with which build that was reproduced, and the source."""
        tried = "this build" if (commit or "").startswith(self.reproduced) else f"build {', '.join(self.reproduced)}"
        return f"{self.symptom} Reproduced with {tried}; see {self.source}."


@cache
def all_faults() -> tuple[Fault, ...]:
    """Return the table."""
    text = Path(__file__).with_name("faults.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text)["fault"], tuple[Fault, ...])


def faults_of_build(types: Sequence[str], build: str | None, commit: str | None) -> list[Fault]:
    """Return the faults that a build with these types of speculation may have."""
    return [fault for fault in all_faults() if types and fault.concerns(types) and fault.in_build(build, commit)]


def faults_of_arm(
    arm: Arm, engine: LlamaCppSpec, models: ResolvedPair, able: Capabilities, flags: Flags, *, in_use: bool = False
) -> Iterator[Fault]:
    """Yield the faults of this build that an arm asks for. `in_use`: with several slots, caches and any request."""
    if arm.speculation is None or flags.dialect == "ik":
        return
    given = {
        name for argument in [*engine.args, *arm.args] for name in (normalise(argument), *flags.all_names(argument))
    }
    architecture = models.target.facts.get("architecture")
    recurrent = models.draft is not None and models.draft.facts.get("memory") in ("hybrid", "recurrent")
    for fault in faults_of_build(arm.speculation.types, able.build, able.commit):
        met = (
            in_use or fault.request is None,
            arm.concurrency >= fault.slots or (in_use and arm.concurrency == 1),  # four by default
            in_use or engine.prefix_caching or not fault.caching,
            recurrent or not fault.recurrent_draft,
            not fault.flags or not given.isdisjoint(fault.flags),
            not fault.architectures or architecture in fault.architectures,
        )
        if all(met):
            yield fault
