"""What every result of an analysis is made of."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Result(BaseModel):
    """Base of every result."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Interval(Result):
    """An interval that holds the truth in 95 of 100 runs. `method`: how it was made, in one line."""

    low: float
    high: float
    method: str

    @property
    def holds_1(self) -> bool:
        """Whether a ratio in it may be 1: no difference."""
        return self.low <= 1 <= self.high
