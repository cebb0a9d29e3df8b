"""The result of a check of an arm's sampling: plain and serialisable, for tables and programs."""

from __future__ import annotations

from typing import Literal

from benchctl.analysis.results import Result

SamplingWord = Literal["no difference found", "difference found", "lossy by design", "undetermined"]
"""Never “lossless”: no test shows that two distributions are equal."""


class SamplingTest(Result):
    """A test of an arm."""

    name: str
    p: float
    adjusted: float
    """By Holm's method, for all tests of all arms of the check."""


class SamplingPower(Result):
    """What would have been detected nine times in ten."""

    shifts: dict[int, float | None]
    """By prefix length, the smallest total variation of the prefixes' distribution; `None`: none up to 0.5."""
    temperature: float | None
    """The smallest relative change of the temperature; `None`: none up to 1, since too little varies."""


class TokenPower(Result):
    """What the tests of single tokens would have detected."""

    tokens: int
    """That were scored on the target alone."""
    temperature: float | None
    """The smallest relative change of the temperature that is found nine times in ten; `None`: none up to 1."""
    nucleus: float | None
    """The smallest share, of the mass beyond the likeliest 90 %, whose loss is found nine times in ten."""
    residual: float | None
    """The power against rejected tokens drawn from the target's distribution; `None` without a draft."""


class ArmSampling(Result):
    """The verdict on an arm."""

    arm: str
    verdict: SamplingWord
    reason: str
    lossy: list[str]
    """Settings that are lossy by design."""
    answers: int
    left_out: int
    """Answers that failed, or whose token ids are not known."""
    drafted: int | None
    accepted: int | None
    tests: list[SamplingTest]
    """Empty where nothing could be compared."""
    token_power: TokenPower | None = None
    """`None` where its tokens were not scored on the target alone."""
    unscored: str | None = None
    """Why they were not, as the end of a sentence."""


class SamplingResult(Result):
    """Everything that a check found."""

    check: str
    recipe: str
    baseline: str
    status: str
    level: float
    """Chance of any false alarm in the whole check."""
    temperature: float
    top_k: int
    top_p: float
    seeds: int
    tokens: int
    """Longest answer."""
    prompts: list[str]
    baseline_answers: int
    power: SamplingPower | None
    """`None` where the baseline has no answers."""
    failed_arms: dict[str, str]
    damaged: int
    """Lines of answers that could not be read."""
    arms: list[ArmSampling]
