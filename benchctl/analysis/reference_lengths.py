"""Published acceptance lengths of known pairs, from `reference_lengths.toml`, for comparison with a measured one.

A length far below the published says that the drafter is broken or the chat template is not the one it was trained
with; other prompts, sampling and lengths move it, too, so what it was measured with stands beside it.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from benchctl.recipes.groups import ComparedArm, ModelName

_FILE = Path(__file__).with_suffix(".toml")
_ENDING = re.compile(r"([-_.](gguf|f16|bf16|i?q\d\w*))+$")
"""What conversion to GGUF and quantization add to a model's name."""


class _Reference(msgspec.Struct, forbid_unknown_fields=True):
    target: str
    type: str
    lengths: dict[str, float]
    conditions: str
    source: str
    draft: str | None = None


@dataclass(frozen=True)
class ReferenceLength:
    """A published acceptance length."""

    length: float
    """Tokens a verify step, the target's own included."""
    conditions: str
    source: str


def reference_lengths(arm: ComparedArm, kind: str, depth: int | None) -> list[ReferenceLength]:
    """Return what is published for an arm's pair, type of speculation (`draft-eagle3`) and draft depth."""
    return [
        ReferenceLength(row.lengths[str(depth)], row.conditions, row.source)
        for row in _references()
        if str(depth) in row.lengths
        and row.type == kind.removeprefix("draft-")
        and _is(row.target, arm.target)
        and (row.draft is None or _is(row.draft, arm.draft))
    ]


def _is(name: str, model: ModelName | None) -> bool:
    """Whether a part of the model's source is this name, but for what conversion and quantization add to it."""
    parts = re.split(r"[/\\:]", model.source.lower()) if model else []
    return any(_ENDING.sub("", part) == name.lower() for part in parts)


@cache
def _references() -> tuple[_Reference, ...]:
    return msgspec.convert(tomllib.loads(_FILE.read_text("utf-8"))["reference"], tuple[_Reference, ...])
