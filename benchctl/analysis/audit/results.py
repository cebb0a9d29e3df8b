"""What an audit finds of every arm: plain, serialisable results."""

from __future__ import annotations

from benchctl.analysis.result import Result


class DetectionPower(Result):
    """Whether an engine that accepts the target's runner-up within `nats` would have been detected."""

    nats: float
    chance: float
    """The power, with the answers that were scored."""
    prompts: int | None
    """About so many detect it nine times in ten; `None` where not even 64 times as many do."""


class ArmAudit(Result):
    """An arm's own answers, whole, scored on the target alone, token by token."""

    arm: str
    widths: tuple[int, ...]
    """Tokens that the target read at once, at most; of each request, where several shared a batch."""
    slots: int = 1
    """Requests that shared its batches."""
    by_prefill: bool
    """Whether answers were scored by reading them at once; the noise is then that between prefill and decode."""
    answers: int
    """Distinct ones that were scored."""
    of: int
    """Distinct ones that there are."""
    prompts: int
    """Of which they are."""
    tokens: int
    """Places; what several answers to a prompt have in common counts once."""
    diverged: int
    """Places at which the arm's token is not the target's likeliest."""
    expected: float | None
    """As many as the target's own noise alone makes."""
    p: float | None
    """Of the hazard test: chance of so strong a deviation without a fault. Not corrected for the number of arms."""
    p_adjusted: float | None
    """Corrected by Holm's method over the arms."""
    floor: float | None
    """Nats: beyond this margin no place of any arm diverges by noise, but in one run of 200."""
    beyond: int
    """Divergences beyond the floor."""
    excess_limit: float | None
    """95 % upper limit of divergences per 1,000 tokens beyond those that noise makes."""
    prefixes: int
    """At which the noise was measured."""
    changed: int
    """Of these, at how many the margin moved at all."""
    seen: tuple[DetectionPower, ...] = ()
    lacking: str | None = None
    """What is missing for a verdict, as the end of a sentence; `None` where nothing is."""

    @property
    def violates(self) -> bool:
        """Whether noise does not explain the arm's answers."""
        return bool(self.beyond) or (self.p_adjusted is not None and self.p_adjusted <= AUDIT_LEVEL / 2)


AUDIT_LEVEL = 0.01
"""Chance that any sound arm of a run is called a violation: half for the hazard test, half for single places."""
