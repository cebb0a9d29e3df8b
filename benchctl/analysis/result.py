"""What every result of an analysis is made of."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

MIN_BLOCKS = 3
"""Below three blocks no interval between runs is given."""


class Result(BaseModel):
    """Base of every result."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Fact(Result):
    """Something that was found: its code, and the values that its sentence needs (`benchctl.words`)."""

    code: str
    values: dict[str, Any] = Field(default_factory=dict)


class Interval(Result):
    """An interval that holds the truth in 95 of 100 runs. `method`: how it was made, in a line."""

    low: float
    high: float
    method: str

    @property
    def excludes_one(self) -> bool:
        """Whether a ratio of 1, no difference, lies outside."""
        return self.low > 1 or self.high < 1


def open_for_others(like_these: Interval | None) -> bool:
    """Whether a ratio's interval for prompts like the measured ones holds 1, no difference."""
    return like_these is not None and not like_these.excludes_one
