"""What `verify-lossless --more` asked after a run, and why it stopped."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from benchctl.analysis.result import Result

Stop = Literal["decided", "prompts", "budget", "useless"]
"""`prompts`: none is left; `useless`: no further prompt would decide what is undetermined."""


class Asked(Result):
    """What was asked now; `arms` without the baseline, which is asked the same prompts."""

    arms: list[str] = Field(default_factory=list)
    suites: dict[str, int] = Field(default_factory=dict)
    """Prompts by the file they are of."""
    stopped: Stop

    @property
    def prompts(self) -> int:
        """How many were asked."""
        return sum(self.suites.values())
