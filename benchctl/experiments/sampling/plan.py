"""How large a check of sampling is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CheckPlan:
    """How large a check is."""

    seeds: int = 200
    """Answers per prompt and arm."""
    prompts: int = 6
    """Taken from the tasks in turn."""
    tokens: int = 32
    """Of the longest answer."""
    temperature: float | None = None
    """The recipe's, or 0.8."""
    level: float = 0.01
    """Family-wise."""


USUAL = CheckPlan()
