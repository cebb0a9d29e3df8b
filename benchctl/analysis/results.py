"""What analysis finds: plain, serialisable results that reports draw and programs read.

`Analysis` is written as `analysis.json` beside a report. Every number in it is a pure function of the records and the
manifest; every ratio is a plain number (1.21 means 21 % faster, 0.29 means 71 % slower), every rate tokens per second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import AliasChoices, ConfigDict, Field, model_serializer

from benchctl.analysis.accuracy import Accuracy
from benchctl.analysis.cells import Resources
from benchctl.analysis.conditions.results import Sweep
from benchctl.analysis.frame import ALL_TASKS as ALL_TASKS
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
from benchctl.analysis.result import Fact as Fact
from benchctl.analysis.result import Interval as Interval
from benchctl.analysis.result import Result as Result
from benchctl.analysis.result import open_for_others as open_for_others
from benchctl.analysis.round_results import BreakEven, RoundModel
from benchctl.analysis.thinking import Thinking
from benchctl.data.manifest import DecidedArm, StopReason
from benchctl.data.rounds import LeftOut
from benchctl.recipes.groups import ComparedArm

if TYPE_CHECKING:
    from pydantic import SerializerFunctionWrapHandler


class NoDraft(Result):
    """The prompts of an arm for which it never drafted: what they ran against the baseline is noise, and shows it."""

    prompts: int
    pooled: float
    """Of these prompts, as measured."""
    interval: Interval | None
    """`None` below three blocks."""
    counted: bool
    """Whether they count as 1.00× in the arm's numbers: `interval` lies within ±2 % of 1."""


class SpeedUp(Result):
    """How much faster an arm decodes than the baseline, for a task or all."""

    arm: str
    task: str
    pooled: float | None
    """Tokens over time of the arm divided by that of the baseline, over the pairs that both finished."""
    median: float | None
    """Median over prompts and blocks of the paired ratio of decode rates."""
    decode_rate: float | None = None
    """Tokens a second of the arm in these pairs, over the time that counts (see `no_draft`)."""
    baseline_rate: float | None = None
    """The same of the baseline; `pooled` is `decode_rate` over it."""
    interval: Interval | None
    """Of `pooled` for these prompts, wide enough that it and those of all arms hold together (of a task: of all arms
    and tasks); `None` below three blocks. It is what every report shows."""
    pointwise: Interval | None = None
    """The same for this row alone."""
    like_these: Interval | None = None
    """Of `pooled` for prompts like these, for this row alone: the prompts are taken for a sample, too."""
    within: float | None = None
    """The smallest x for which `pooled` is shown to lie in 1 - x to 1 + x, over the same claims as `interval`."""
    p: float | None = None
    """Probability of a `pooled` at least as far from 1 where there is no difference, before any correction."""
    more_blocks: int | None = None
    """About how many more blocks would separate ±10 % from no difference, over the same claims; `None`: too many."""
    end_to_end: float | None
    """The same as `pooled`, with prefill and waiting included: what a user waits for."""
    ttft_ratio: float | None = None
    """Mean time to the first token over that of the baseline, over the same pairs: above 1 it comes later."""
    ttft_interval: Interval | None = None
    """Of `ttft_ratio`, as `interval` is."""
    length_matched: float | None
    """`pooled` with both answers of every pair cut to the length that both reached, each at its own mean rate."""
    by_block: list[float]
    """`pooled` within each block, in block order: the spread between fresh processes."""
    blocks: list[int] = Field(default_factory=list)
    """The blocks of `by_block`, counted from 1: those in which neither cell failed or was disturbed."""
    lowest_block: float | None = None
    highest_block: float | None = None
    """The ends of `by_block`; `None` where fewer than two blocks have pairs."""
    pairs: int
    prompts: int = 0
    """Of which these pairs are the answers."""
    no_draft: NoDraft | None = None
    """Of an arm without a draft model that drafted for some of the prompts alone, one request at a time."""
    pairs_unequal: int
    """Pairs with another length or finish reason."""
    pairs_missing: int
    """Prompts times blocks that either did not finish."""


AcceptanceDoubt = Literal["unchecked", "contradicted"]
"""unchecked: nothing confirms how many tokens were accepted. contradicted: counters contradict each other."""


class Acceptance(Result):
    """What was drafted and accepted, for an arm and a task or all. `None`: not reported by the engine."""

    arm: str
    task: str
    drafted: int | None
    verified: int | None = None
    """Those that the target read."""
    accepted: int | None
    rate: float | None
    """accepted / drafted."""
    doubt: AcceptanceDoubt | None = None
    """Why the rate may not be believed: shown wherever it is."""
    prompts: int = 0
    """With an answer for which the engine reports what was drafted."""
    prompts_drafted: int = 0
    """Those for which anything was drafted, in any block."""
    rounds: int | None
    acceptance_length: float | None
    """1 + accepted / rounds: tokens per verify step that had a draft, the bonus token included; vLLM's definition."""
    tokens_per_round: float | None
    """(tokens predicted - 1) / rounds, over the answers with a round: steps without a draft count, too."""
    plain_steps: int | None = None
    """Steps of the target without a draft, in the answers for which the engine reports them."""
    tokens_per_step: float | None = None
    """Tokens a step of the target, drafted or not: (n - 1) / (n - 1 - accepted), over the answers that tell what they
    accepted."""
    rate_by_request: float | None = None
    """Mean over the answers of accepted / drafted: every request counts alike, however long."""
    rate_by_task: float | None = None
    """Mean over the tasks of their rates: every task counts alike. Of the row over all tasks alone."""
    position_unconditional: list[float] | None
    """Share of rounds in which the draft token at position 0, 1, … was accepted; a shorter draft counts as not."""
    position_conditional: list[float] | None
    """Share of the rounds that accepted the position before (and drafted this one, where that is reported)."""
    position_drafted: list[int] | None = None
    """Rounds that drafted a token at position 0, 1, …, where the engine reports it."""
    position_rate: list[float] | None = None
    """accepted / drafted at position 0, 1, …: shorter drafts do not count against the late positions."""
    draft_lengths: list[int] | None = None
    """Rounds that drafted exactly 1, 2, … tokens."""
    length_rate: list[float | None] | None = None
    """accepted / drafted of these, `None` for a length that no draft had; where the engine tells what each accepted."""
    accepted_in_round: list[int] | None = None
    """Rounds that accepted exactly 0, 1, … draft tokens."""


class Throughput(Result):
    """Decode rates of an arm in a task, or over all: a distribution, a value per record in record order."""

    arm: str
    task: str
    tok_per_sec: list[float]
    """Of a task; empty over all tasks."""
    records: int = 0
    median: float | None
    pooled_rate: float | None = None
    """Tokens after the first over their time."""
    mean_rate: float | None = None
    """Of the rates of the prompts, each pooled over blocks."""
    ttft_median_s: float | None
    burst_gap_median_s: float | None = None
    """Of all gaps between bursts of tokens, as they arrived."""
    burst_gap_p95_s: float | None = None
    """From 40 gaps on: so many that two lie beyond."""
    tokens_per_burst: float | None = None
    """Tokens over bursts, each answer's first burst included."""
    prompt_tok_per_sec_median: float | None


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


class Cost(Result):
    """The cost model of an arm, measured beside predicted."""

    arm: str
    depth: int | None
    alpha: float | None
    """Per-token acceptance that gives the measured acceptance length at this depth."""
    draft_cost: float | None
    """c: time of a draft step over that of a target step; `None` when it was not measured."""
    overhead: float | None
    """k·c + o by the records: time of a round in baseline steps, minus 1; `None` where few steps had a draft."""
    predicted: float | None
    """E / (1 + k·c + o) with the figures above."""
    measured: float | None
    break_even_alpha: float | None
    """The acceptance from which this depth pays at the measured overhead; `None`: not known, or none would pay."""
    hindsight: float | None = None
    """The speed-up without the time of drafting the rejected tokens; `None` where the engine does not time it."""


class Caution(Result):
    """Something that makes a number less trustworthy. The set of ids is closed: `benchctl.analysis.warnings`.

    `benchctl.words.warnings` says what was observed, why it matters and what to do.
    """

    id: str
    where: str
    facts: list[Fact]


Speed = Literal["faster", "slower", "within", "undecided", "unknown"]
SpeedDoubt = Literal["not drafted", "unequal lengths", "no equal pair"]
"""Why a clear interval shows no effect of speculation. not drafted: it is faster, but drafted nothing. unequal lengths:
the ratio turns once every pair is cut to the length that both reached. no equal pair: no pair has one length."""
VerdictReason = Literal[
    "distrusted",
    "refused",
    "not timed",
    "not shown",
    "off",
    "never fired",
    "not reported",
    "no rounds",
    "no cost",
    "cost",
]
"""What explains an arm's speed, or why nothing does. distrusted: the stored files cannot be relied on. refused: an
attestation failed. not timed: no answer was. not shown: an endpoint does not show whether it speculated. off: the arm
does not speculate. never fired: nothing was drafted. not reported: what was accepted is not known. no rounds, no cost:
the acceptance, without the verify rounds or the cost of a round. cost: the acceptance and the cost of a round."""
BreakEvenReach = Literal["every", "nearly every", "none"]
"""Which acceptance would pay at the measured cost, where that adds to the cost of a round."""


class Verdict(Result):
    """What is concluded of an arm: does it pay, is it lossless, why. `benchctl.words.verdict` says it in sentences."""

    arm: str
    setting: str
    """Such as `draft-simple, depth 4`."""
    speed: Speed
    """For these prompts. `undecided`: neither within `within` of the baseline nor different."""
    speedup: float | None
    """`SpeedUp.pooled`; where requests overlap `SpeedUp.end_to_end`, the time that their users wait."""
    interval: Interval | None
    like_these: Interval | None = None
    """The same with the prompts taken for a sample."""
    within: float | None = None
    """x of a speed that is `within`: the arm is neither faster nor slower than the baseline by more than that share."""
    more_blocks: int | None = None
    """Of a speed that is `undecided`: about how many more blocks would separate ±10 % from no difference."""
    selected: bool = False
    """Whether this is the fastest of several arms: the best of noisy values is, on average, above its true value."""
    selected_of: int | None = None
    """Of how many arms it is the fastest."""
    lossless: LosslessVerdict
    unviolated: float | None = None
    """Of an output that is undetermined: the power with which no violation was found, where all of it was tested."""
    lossy: list[str] = Field(default_factory=list)
    """Settings of the arm that are lossy by design."""
    acceptance: float | None
    acceptance_doubt: AcceptanceDoubt | None = None
    """`Acceptance.doubt`."""
    attestation: Literal["active", "idle", "unverified", "failed", "off", "unknown"]
    doubt: SpeedDoubt | None = None
    """Of a speed that is `unknown`, although its interval excludes 1."""
    reason: VerdictReason
    refusal: str = ""
    """Why the evidence is not relied on, in the words of the engine's adapter or of the check of the files."""
    break_even: BreakEvenReach | None = None
    not_shown: list[str] = Field(default_factory=list)
    """This arm and its baseline, where the endpoint does not show whether they speculated."""
    blocks: int = 0
    """With pairs."""
    median: float | None = None
    """The median of the prompts; `speedup` is pooled."""
    length_matched: float | None = None
    """`speedup` with each pair cut to the length that both reached."""
    whole_answers: bool = False
    """Whether `speedup` is that of whole answers."""


class Stopping(Result):
    """What `blocks: auto` came to."""

    half_width: float | None
    """As requested: half the width of every arm's interval, as a share of its speed-up. `None`: until decided."""
    max_blocks: int
    budget_min: float | None
    blocks: int
    """Measured."""
    decided: dict[str, DecidedArm]
    """What was decided of an arm, and after how many blocks."""
    rivals: list[str]
    """The faster arms of which it is open whether they are the fastest."""
    reason: StopReason | None
    """Why it ended, as the run stored it; `None` while it has not."""
    half_widths: dict[str, float | None]
    """Of every arm that could be compared, by these records."""
    spent_s: float


AdviceReason = Literal[
    "pays", "nothing drafted", "all lossy", "all damaged", "all slower", "no interval", "speed unknown", "within",
    "undecided", "not shown to draft", "output not shown",
]  # fmt: skip
"""Why an arm is advised (pays), or none. From `all slower` on it is said of the fastest arm that could be advised."""


class Candidate(Result):
    """The arm that would be advised first, where none is."""

    arm: str
    speedup: float
    interval: Interval | None
    lossless: LosslessVerdict


class Advice(Result):
    """What to run for a task, or for all together, of the arms that share a baseline."""

    task: str
    """`ALL_TASKS`: the tasks as they were measured, together."""
    condition: str
    """Empty where nothing was varied."""
    arm: str | None
    """`None`: the target alone."""
    setting: str
    speedup: float | None
    interval: Interval | None
    lossless: LosslessVerdict | None
    """The verdict on the arm's output; `None` for the target alone."""
    unviolated: float | None = None
    """`Verdict.unviolated` of the arm."""
    for_others: bool = False
    """Whether it is shown for prompts like these: `like_these` excludes 1, from `ENOUGH_PROMPTS` on."""
    few_prompts: bool = False
    """Whether fewer than `ENOUGH_PROMPTS` were compared, so that nothing is said of prompts like these."""
    prompts: int = 0
    """Of the arm, so many were compared."""
    jointly: bool = False
    """Whether the interval holds together with those of all arms and tasks."""
    reason: AdviceReason
    candidate: Candidate | None = None
    command: str | None
    """The engine's own command line, exactly as it was measured but for the port; `None` where it is not known."""
    added: str | None = None
    """What of it the baseline's command does not have; `None` where either is not known."""


GroupAction = Literal[
    "run", "by task", "nothing drafted", "none is sound", "not shown to draft", "output not known", "do not speculate",
    "undecided", "not comparable",
]  # fmt: skip
"""What to do: run the arm of `overall`, run the arms of `tasks`, or run the target alone and why."""


class GroupDecision(Result):
    """What to run of the arms that share a baseline."""

    baseline: str
    condition: str
    """Empty where nothing was varied."""
    arms: list[str]
    fastest: str | None
    """Of the arms that drafted; `None` where none has a speed-up."""
    action: GroupAction
    not_shown: list[str] = Field(default_factory=list)
    """The faster arms that are not shown to have drafted, where that is why there is no advice."""
    overall: Advice
    """For all tasks together."""
    tasks: list[Advice]
    """For each task alone; empty where there is a single task, and where requests overlap."""


ExperimentKind = Literal[
    "quiet machine", "unfinished", "three blocks", "complete blocks", "scores", "power", "enough prompts",
    "more prompts", "blocks of an arm", "depth", "your prompts", "repeating prompts", "copying",
]  # fmt: skip
"""What to measure next: the same on a machine that nothing disturbs, the rest of this run, three blocks, blocks that
are complete, scores of an output, the prompts that a power needs, at least `ENOUGH_PROMPTS` prompts, more prompts,
blocks of an undecided arm, a depth that was not measured, the reader's own prompts, prompts whose answers repeat them,
a type that copies."""


class Experiment(Result):
    """What to measure next, and what it rests on as far as its kind has it."""

    kind: ExperimentKind
    command: str
    prompts_file: str | None = None
    """What the command reads, which the reader has to write first."""
    arms: list[str] = Field(default_factory=list)
    power: float | None = None
    prompts: int | None = None
    """As many as the power needs, or as were measured."""
    type: str | None = None
    """Of the draft."""
    depth: int | None = None
    predicted: float | None = None
    """The speed-up at this depth."""
    width_timed: bool = False
    """Whether a verify of this depth's width was timed, so that the prediction does not rest on the other depths."""
    all_slower: bool = False
    """Whether every arm is slower."""


class Decision(Result):
    """What a run allows to decide. Every page, table and command reads it here."""

    groups: list[GroupDecision]
    next: Experiment | None
    """The experiment that would most likely change it; `None` where nothing sensible can be suggested."""

    @property
    def rows(self) -> list[Advice]:
        """Every piece of advice, of a group with several tasks that for all together first."""
        return [row for group in self.groups for row in (group.overall, *group.tasks)]


class AnswerLength(Result):
    """An arm against its baseline, with all answers cut at so many tokens: `benchctl.analysis.answer_length`."""

    arm: str
    tokens: int
    pairs: int
    """Answers; the same at every length of an arm."""
    speedup: float
    interval: Interval | None
    """Wide enough that those of all arms and lengths hold together."""
    stretch: float | None
    """The speed-up of the tokens after the length before alone; `None` where they came with the tokens before."""
    acceptance: float | None
    """accepted / drafted of the rounds that begin in that stretch; `None`: not reported round by round."""


class Analysis(Result):
    """Everything found in a run."""

    schema_version: int = Field(default=1, alias="schema")
    run: str
    recipe: str
    baseline: str
    """Of a sweep the recipe's name of it, which each condition has an arm of: `baselines`."""
    arms: list[str]
    """In the recipe's order, the baseline among them; of a sweep condition by condition."""
    compared: dict[str, ComparedArm]
    """What every arm is compared with, and what it ran on, by its name."""
    tasks: list[str]
    blocks: int
    records: int
    failed_cells: list[str]
    """`block 2, spec_d4: reason`."""
    verdicts: list[Verdict]
    speedups: list[SpeedUp]
    second_cells: list[SpeedUp] = Field(default_factory=list)
    """The second cells of baselines, each against the first cell alone: how far two equal processes lie apart."""
    acceptance: list[Acceptance]
    throughput: list[Throughput]
    losslessness: list[Losslessness]
    consistency: list[SelfConsistency]
    costs: list[Cost]
    rounds: RoundModel = Field(default_factory=RoundModel)
    """What rounds are made of."""
    left_out: list[LeftOut] | None = None
    """What drafts left out of the model, of a run with traces; else left out."""
    accuracy: Accuracy | None = None
    """Of a suite whose prompts carry their answers; else left out."""
    thinking: list[Thinking] | None = None
    """Of answers that think; else left out."""
    breakeven: BreakEven | None = None
    """Of a run with arms of synthetic acceptance."""
    answer_lengths: list[AnswerLength] = Field(default_factory=list)
    """By length of the answer, as far as it is known when each token came; one request at a time."""
    resources: list[Resources] = Field(default_factory=list)
    """Energy and memory, a row for every arm."""
    warnings: list[Caution]
    stopping: Stopping | None = None
    """Of a run with `blocks: auto`."""
    decision: Decision | None = None
    """`None` where nothing was compared, the baseline speculates, or the values were selected by a search."""
    sweep: Sweep | None = None
    """Of a run that varies concurrency, rate or temperature, or sends several requests at once; else left out."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    def speedup_of(self, arm: str, task: str = ALL_TASKS) -> SpeedUp | None:
        """Return the speed-up of an arm in a task; `None` where it has none."""
        return next((row for row in self.speedups if (row.arm, row.task) == (arm, task)), None)

    def acceptance_of(self, arm: str) -> Acceptance | None:
        """Return the acceptance of an arm over all tasks; `None` where it has none."""
        return next((row for row in self.acceptance if (row.arm, row.task) == (arm, ALL_TASKS)), None)

    def losslessness_of(self, arm: str) -> Losslessness | None:
        """Return the verdict on an arm's output; `None` where it has none."""
        return next((row for row in self.losslessness if row.arm == arm), None)

    @property
    def baselines(self) -> set[str]:
        """The arms that others are compared with, in each group."""
        return {arm.baseline for arm in self.compared.values()}

    @property
    def settings(self) -> list[str]:
        """The recipe's arms, whatever the conditions that each ran under."""
        return list(dict.fromkeys(arm.of for arm in self.compared.values())) if self.sweep else self.arms

    @model_serializer(mode="wrap")
    def _leave_out_what_is_not_there(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        document: dict[str, Any] = handler(self)
        absent = {name for name in ("accuracy", "left_out", "thinking", "sweep") if getattr(self, name) is None}
        return {name: value for name, value in document.items() if name not in absent}
