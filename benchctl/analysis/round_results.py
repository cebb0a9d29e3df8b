"""The parts of a round: their costs, each round's time split into them, and forecasts at held-out depths.

Times are seconds; a *step* is the time in which the baseline decodes a token under the same condition.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from benchctl.analysis.result import Fact, Interval, Result

Part = Literal[
    "draft", "verify", "draft reads", "state", "search", "plain steps", "not split", "verify and left over", "left over"
]
"""draft: making drafts; verify: the target's passes over them; draft reads: the draft model reads what was verified;
state: checkpoints, going back to them, reading accepted tokens again; search: choosing what drafts next; plain steps:
those without a draft; left over: what no other part explains. What is not timed stands together with that."""
PARTS: tuple[Part, ...] = (
    "draft",
    "verify",
    "not split",
    "verify and left over",
    "draft reads",
    "state",
    "search",
    "plain steps",
    "left over",
)

Source = Literal["run", "traced", "alone", "difference"]
"""run: in the measured run; traced: in processes that log every pass; alone: the draft model as a target of its own;
difference: what remains of a round."""
INFERRED: frozenset[Source] = frozenset({"alone", "difference"})


class UnitCost(Result):
    """What a thing costs on this machine."""

    arm: str
    what: Literal["target step", "draft step", "verify", "draft reads", "checkpoint", "restore", "re-evaluation"]
    width: float
    """Tokens read at once, on average; of a draft those that it has."""
    seconds: float
    steps: float
    count: int
    """How many were timed; of a target or draft step, tokens."""
    source: Source

    @property
    def inferred(self) -> bool:
        """Whether it was not timed where it happens."""
        return self.source in INFERRED


class RoundSplit(Result):
    """Where the time of an arm's rounds goes, in a task or all; means a round."""

    arm: str
    task: str
    rounds: int
    seconds: float
    """All decoding over the rounds: the parts add up to it."""
    tokens: float
    """All decoded over the rounds: those of steps without a draft and of re-evaluations between the rounds, too."""
    drafted_round_tokens: float | None = None
    """Of the rounds alone: accepted draft tokens and the target's own, over the rounds (the acceptance length)."""
    parts: dict[Part, float]
    """Seconds; what is left over is below 0 where parts that were timed separately take longer than the round."""
    inferred: list[Part]
    """Parts that were not timed where they happen."""
    step_s: float
    """A step of the baseline, on the same prompts."""

    @property
    def tokens_per_time(self) -> float | None:
        """KnapSpec's TPT, E / (k·c + v): tokens of a drafted round over the time of drafting and verifying alone, over
        the baseline's rate; `None` where verifying was not timed."""
        if self.drafted_round_tokens is None or "verify" not in self.parts:
            return None
        return self.drafted_round_tokens * self.step_s / (self.parts.get("draft", 0.0) + self.parts["verify"])

    @property
    def speedup(self) -> float:
        """All tokens over all time of decoding, over the baseline's rate."""
        return self.tokens * self.step_s / self.seconds


class RoundFit(Result):
    """A straight line through what rounds cost at several depths: intercept + slope · depth, in steps."""

    setting: str
    """What the arms have in common, such as `draft-simple`."""
    depths: list[int]
    intercept: float | None
    slope: float | None
    """Of a further draft token: drafting it and verifying it. `None`, as the intercept, for a line that is refused."""
    r2: float | None
    worst: float | None
    """The largest residual, as a share of the cost there."""
    refused: str | None
    """Why it is not to be used, as the end of a sentence; `None` for a line that passes its own check."""


class Forecast(Result):
    """The speed-up of an arm, worked out without its own rounds, beside the measured speed-up."""

    arm: str
    depth: int
    from_depths: list[int]
    """The depths beside it, whose rounds give the predicted cost."""
    tokens: float
    """A round; from how often the other arms accepted each position."""
    tokens_measured: float
    round_cost: float
    """In steps; from the line through the rounds of the depths beside it."""
    round_cost_measured: float
    predicted: float
    predicted_interval: Interval | None = None
    """Of the prediction: what rounds cost beside it at the ends of their speed-ups' intervals."""
    measured: float
    interval: Interval | None
    """Of the measured speed-up."""
    error: float
    """predicted / measured - 1."""
    from_parts: float | None = None
    """The speed-up from the separately timed parts of the arm's own rounds, without what is left over."""
    holds: bool
    """Whether it is within 10 % of the measured speed-up or within its interval, and both the tokens of a round and its
    cost within 10 % of what was measured."""
    why: str | None
    """Why it does not hold, in a sentence."""


class RoundModel(Result):
    """The cost of a run's rounds."""

    units: list[UnitCost] = Field(default_factory=list)
    splits: list[RoundSplit] = Field(default_factory=list)
    fits: list[RoundFit] = Field(default_factory=list)
    forecasts: list[Forecast] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    """What could not be found, and why, a sentence each."""


class Point(Result):
    """A speed-up at an acceptance and a depth."""

    name: str
    """The arm, or the model of a reference."""
    kind: Literal["synthetic", "draft", "reference"]
    """synthetic: accepted at random; draft: a real draft, measured; reference: an acceptance length from elsewhere, at
    this machine's speed."""
    depth: int
    tokens: float
    """A round: the acceptance length, the target's own token included."""
    alpha: float
    speedup: float
    interval: Interval | None = None
    curve: float | None = None
    """Of a real draft: the curve at its tokens."""
    curve_holds: bool | None = None
    """Whether that lies within its interval; `None` where it has none."""

    def belongs_to(self, depth: int) -> bool:
        """Whether it is a point of the curve of a depth."""
        return self.kind == "synthetic" and self.depth == depth


Outcome = Literal["crosses", "always pays", "never pays", "undecided", "not measured"]


class Need(Result):
    """What a depth needs to break even."""

    depth: int
    tokens: float | None = None
    """A round; `None` where the curve does not cross 1."""
    alpha: float | None = None
    alpha_low: float | None = None
    alpha_high: float | None = None
    """The same of a curve through the upper, and of another through the lower ends of the intervals."""
    outcome: Outcome = "not measured"
    """Of crosses, always and never: what the intervals of the points allow, over all claims of the run."""
    by_model: float | None = None
    """The α that the cost of the real draft's rounds requires; `None` where none is enough, or it is not known."""
    model_says: Literal["crosses", "never pays", "not known"] = "not known"
    measured: float | None = None
    """The α of the real draft."""


class BreakEven(Result):
    """The curve of an engine, pair and machine."""

    points: list[Point] = Field(default_factory=list)
    needs: list[Need] = Field(default_factory=list)
    notes: list[Fact] = Field(default_factory=list)
    """What has no place on the curve, and how the curve is to be read."""
