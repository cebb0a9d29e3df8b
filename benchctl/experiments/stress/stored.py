"""A stress test as stored, so that its verdict can be computed again without an engine.

<out>/<recipe>/stress/<id>/stress.json    everything below; rewritten whole after every process of the plan
<out>/<recipe>/stress/<id>/logs/          engine logs
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from benchctl.data.digests import read_sealed, write_sealed
from benchctl.data.manifest import MANIFEST_FORMAT, Manifest
from benchctl.data.versions import Part, StoredFormat
from benchctl.experiments.stress.plan import Plan, ScenarioName

DOCUMENT = "stress.json"
FOLDER = "stress"
FORMAT = StoredFormat("stress test", version=1, fix="Run another: benchctl verify-stress")


class StressAnswer(Part):
    """An answer to a request of the plan, or its error. What the engine does not report is `None`."""

    started_s: float
    """When it was sent, by benchctl's clock."""
    decoded_s: tuple[float, float] | None = None
    """From its first token to its last, by the same clock."""
    prompt_sha256: str = ""
    """Of the prompt as it was sent, without settings."""
    prompt: tuple[int, ...] = ()
    """The token ids of the prompt, where the engine reports them."""
    token_ids: tuple[int, ...] | None = None
    text: str = ""
    finish: str | None = None
    cached: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    listed: tuple[int, ...] | None = None
    """How many likeliest tokens are listed beside each."""
    completions: int | None = None
    """How many answers came, where several were asked for; this is the last one."""
    restored: int | None = None
    """Tokens that were restored to its slot from a file before."""
    stop: str | None = None
    """The stop string that was sent."""
    cancelled: int | None = None
    """Tokens that had come when benchctl closed the connection."""
    error: str | None = None
    ended: bool = False
    """Whether the engine ended with it."""


class Divergence(Part):
    """Where an answer leaves another one of the same request."""

    request: str
    reference: str
    """The request that has the other answer."""
    against: Literal["first", "control"]
    """An earlier answer of the same arm, or the control's at the same place of the plan."""
    index: int
    """Of the first token that differs."""
    tokens: tuple[int | None, int | None]
    """The token there and the other answer's; `None`: that answer has ended."""
    gap: float | None = None
    """Nats by which the target prefers its likeliest token to the worse of the two; `None`: not scored."""


class Played(Part):
    """What an arm, or the control, answered."""

    answers: dict[str, StressAnswer] = Field(default_factory=dict)
    """By request."""
    divergences: list[Divergence] = Field(default_factory=list)
    counted: dict[ScenarioName, dict[str, int]] = Field(default_factory=dict)
    """What the engine's own counters or its log report in all processes of a scenario: see `engines.in_use.Counted`.
    `running` is the most that was read while several requests were in flight."""


class Reproduction(Part):
    """The shortest plan that still shows what is wrong with a scenario."""

    arm: str
    scenario: ScenarioName
    command: tuple[str, ...]
    requests: list[tuple[str, str]]
    """Path and JSON of each request."""
    together: list[int]
    """How many requests each group has whose requests are sent at the same time."""
    shows: str
    """The first request that showed it, and its error or text."""
    attempts: int
    shown: int
    """In how many of the attempts at the shortest plan it showed."""


class ListedFault(Part):
    """A fault of the engine's build that was on benchctl's list before the test: see `engines.base.EngineFault`."""

    arms: tuple[str, ...]
    sentence: str
    lacks: str | None = None


class StressTest(Part):
    """A whole stress test."""

    schema_version: int = Field(default=FORMAT.version, alias="schema")
    status: Literal["started", "finished", "interrupted", "failed"] = "started"
    manifest: Manifest
    plan: Plan
    level: float = 0.01
    """Family-wise, of the paired tests."""
    slots: int | None = None
    """Of the control."""
    noise: dict[str, float] = Field(default_factory=dict)
    """By state, the most that the control's margin between its two likeliest tokens moved, in nats."""
    noise_tokens: int = 0
    """Tokens that it was measured on, in each state."""
    contexts: dict[ScenarioName, int] = Field(default_factory=dict)
    """Tokens of the longest prompt and its answer in a scenario, where that is known."""
    options: dict[ScenarioName, tuple[str, ...]] = Field(default_factory=dict)
    """What was added to each command of the manifest in a scenario of pressure."""
    faults: list[ListedFault] = Field(default_factory=list)
    played: dict[str, Played] = Field(default_factory=dict)
    """By arm, the control's own name included."""
    inapplicable: dict[str, str] = Field(default_factory=dict)
    """Usual scenarios that this engine cannot be put into, and why, as the end of a sentence."""
    skipped: list[str] = Field(default_factory=list)
    """Processes of the plan that were not started, or were cut short, because the budget was spent."""
    unscored: str | None = None
    """Why divergences were not scored on the target, as the end of a sentence."""
    reproductions: list[Reproduction] = Field(default_factory=list)

    @field_validator("manifest", mode="before")
    @classmethod
    def _of_this_version(cls, manifest: object) -> object:
        """Check the manifest's own version."""
        return MANIFEST_FORMAT.current(manifest, f"manifest in {DOCUMENT}") if isinstance(manifest, dict) else manifest

    @property
    def arms(self) -> list[str]:
        """The arms that are compared with the control."""
        return [arm.name for arm in self.manifest.arms if arm.name != self.manifest.baseline]


def write_stress(folder: Path, test: StressTest) -> None:
    """Replace a stress test atomically. Raises StorageError."""
    write_sealed(folder / DOCUMENT, test)


def read_stress(folder: Path) -> StressTest:
    """Read a stress test. Raises FileNotFoundError, and StorageError for a damaged file or another version."""
    return read_sealed(FORMAT, folder / DOCUMENT, StressTest)
