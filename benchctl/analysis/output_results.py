"""Whether an arm's output is the target's own: every prompt against the baseline, and the verdict on the arm."""

from __future__ import annotations

from typing import Literal

from pydantic import AliasChoices, Field

from benchctl.analysis.losslessness import (
    ArmAudit,
    ArmReplay,
    ControlTest,
    DetectionPower,
    FirstDivergence,
    NoiseFloor,
    Reason,
    ReplayDeviation,
    Scope,
    Validity,
)
from benchctl.analysis.result import Result

PromptClass = Literal["identical", "exact", "near-tie", "violation", "degenerate", "differs", "undetermined"]
"""`differs` is a divergence that nothing has explained yet: it may be noise or a fault. `exact`: the answer differs,
and every token is the likeliest where the target reads the arm's own batches."""


class Comparison(Result):
    """A prompt of an arm against the baseline, over all blocks."""

    arm: str
    task: str
    prompt_idx: int
    outcome: PromptClass
    reasons: tuple[Reason, ...] = ()
    """Why this class."""
    reason: str = ""
    """The same in words: `benchctl.words.lossless`."""
    text_equal: bool | None
    tokens_equal: bool | None
    """`None` where they could not be compared."""
    blocks_compared: int
    blocks_differing: int
    divergence: FirstDivergence | None = Field(
        default=None, validation_alias=AliasChoices("divergence", "fork"), serialization_alias="fork"
    )
    """The most serious, where blocks diverge differently."""
    other_divergences: tuple[FirstDivergence, ...] = Field(
        default=(), validation_alias=AliasChoices("other_divergences", "other_forks"), serialization_alias="other_forks"
    )

    deviation: ReplayDeviation | None = None
    """The first token of an answer that is not the target's likeliest in the arm's own batch."""

    @property
    def divergences(self) -> tuple[FirstDivergence, ...]:
        """All of them, the most serious first."""
        return () if self.divergence is None else (self.divergence, *self.other_divergences)


LosslessVerdict = Literal["identical", "exact", "consistent with the target", "violation", "undetermined", "not judged"]
"""Whether an arm's output is the target's own, see docs/method.md. `not judged`: it cannot be, and nothing is wrong."""
LOSSLESS: tuple[LosslessVerdict, ...] = ("identical", "exact")
"""Every token is shown to be the target's own: as it answers alone, or as it computes in the arm's batches."""
SOUND: tuple[LosslessVerdict, ...] = (*LOSSLESS, "consistent with the target")
Accepted = Literal["identical", "exact", "consistent"]
ACCEPTED: dict[Accepted, tuple[LosslessVerdict, ...]] = {
    "identical": ("identical",),
    "exact": LOSSLESS,
    "consistent": SOUND,
}
"""The verdicts that pass, by what `--accept` names; `exact` where it is not given."""


class Losslessness(Result):
    """The verdict on an arm."""

    arm: str
    verdict: LosslessVerdict
    reasons: tuple[Reason, ...] = ()
    """Why this verdict."""
    reason: str = ""
    """The same in words: `benchctl.words.lossless`."""
    lossy: list[str] = Field(default_factory=list)
    """Settings of the arm that are lossy by design: with any, the verdict is never `identical`."""
    counts: dict[PromptClass, int]
    comparisons: list[Comparison]
    noise: tuple[NoiseFloor, ...] = ()
    """At the widths of the arm's divergences; empty when nothing was replayed."""
    differing_limit: float | None = None
    """Of an identical arm: 95 % upper limit for the share of similar prompts that get a different answer."""
    audit: ArmAudit | None = None
    control: ControlTest | None = None
    """Of an arm with answers that no score decides."""
    power: DetectionPower | None = None
    """Of an identical arm, as far as the target's margins at its answers are scored; `None`: they are not."""
    power_lacking: str | None = None
    """Why `power` cannot be measured, as the end of a sentence; `None`: nothing has tried to."""
    replay: ArmReplay | None = None
    """`None`: nothing has tried to replay its answers."""
    scope: Scope | None = None
    validity: Validity | None = None
    """`None`: no request asks for a form of its answer."""

    @property
    def replayed(self) -> ArmReplay | None:
        """The replay, where it decides the verdict: it then stands where else the power does."""
        return self.replay if self.replay is not None and self.replay.decides else None

    @property
    def stated(self) -> DetectionPower | None:
        """The power of the verdict, whatever it is."""
        return self.power if self.audit is None else self.audit.stated

    @property
    def unviolated(self) -> float | None:
        """The power with which no violation was found, of an arm whose every answer is there; else `None`."""
        stated = self.audit.stated if self.audit is not None and not self.audit.violates else None
        unclear = self.counts.keys() & {"differs", "undetermined", "degenerate", "violation"}
        return None if stated is None or unclear or self.verdict != "undetermined" else stated.chance

    def preceded(self, reason: Reason, **changes: object) -> Losslessness:
        """Return the verdict with a reason before the others, and other changes."""
        return self.model_copy(update={**changes, "reasons": (reason, *self.reasons)})


class SelfConsistency(Result):
    """Whether an arm gives the same answer in every block."""

    arm: str
    prompts: int
    reproducible: int
    differing: list[str]
    """`task/prompt_idx` of the others."""
