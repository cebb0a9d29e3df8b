"""What scoring on the target alone finds: of a divergence, of an arm's whole answers, and of its own noise."""

from __future__ import annotations

from typing import Literal

from pydantic import AliasChoices, Field

from benchctl.analysis.result import Result


class Reason(Result):
    """Why a verdict is what it is, or why something was not measured; `benchctl.words.lossless` has its words."""

    code: str
    values: dict[str, bool | int | float | str | None] = Field(default_factory=dict)


def because(code: str, **values: float | str | None) -> Reason:
    """Return a reason with its values."""
    return Reason(code=code, values=values)


class ShapeMargin(Result):
    """The target alone at a divergence, reading the common prefix in a single way."""

    shape: Literal["decode", "verify", "prefill"]
    """Token by token, `width` tokens of the answer at a time, or prompt and answer at once."""
    width: int
    """Tokens in the last batch."""
    margin: float | None
    """How far it prefers the baseline's token to the arm's, in nats; negative when it prefers the arm's."""
    prefers: Literal["baseline", "arm", "another"]
    """Whose token is its likeliest."""


class FirstDivergence(Result):
    """The first token at which two answers differ."""

    index: int
    """Token index within the answer; by characters where token ids are absent (`unit`)."""
    unit: Literal["token", "character"]
    agreed_text: str
    """The end of the common text."""
    baseline_text: str
    arm_text: str
    """The two continuations. Untrusted text."""
    baseline_token: int | None = None
    arm_token: int | None = None
    width: int | None = None
    """Tokens that the arm verified in a round of this answer: 1 when it drafted nothing, `None` when not reported."""
    margin: float | None = None
    """How far the target alone prefers the baseline's token to the arm's, decoding as the baseline did; in nats."""
    margin_is_least: bool = False
    """Whether the margin may be larger still: the arm's token is not among the likeliest requested."""
    noise_floor: float | None = None
    """How far margins move at this width: `NoiseFloor.floor`."""
    shapes: tuple[ShapeMargin, ...] = ()
    shapes_absent: dict[str, str] = Field(default_factory=dict)
    """Shapes that this engine cannot read in, and why."""


class NoiseFloor(Result):
    """How far the target's margins move when it reads `width` tokens at once, not each alone, without speculation."""

    width: int
    floor: float | None
    """Nats; 0 when nothing moved on any prefix, `None` when too few were measured."""
    method: str
    """How the floor was made, with its quantile and its sample."""
    prefixes: int
    """At which it was measured, chosen without regard to divergences."""
    changed: int
    """Of these, how many moved at all."""
    median: float | None
    largest: float | None
    largest_at_small: float | None = None
    """The largest change at small margins, where tokens flip."""
    null_places: int
    """The null control: prefixes at which both likeliest tokens are known."""
    null_divergences: int = Field(
        validation_alias=AliasChoices("null_divergences", "null_forks"), serialization_alias="null_forks"
    )
    """Of these, at how many the target diverges from itself."""
    by_prefill: bool = False
    """Whether it is the change when everything is read at once, for an engine that cannot read `width` tokens."""


class DetectionPower(Result):
    """Whether an engine that accepts the target's runner-up within `nats` would have been detected."""

    nats: float
    chance: float
    """The power, with the answers that were scored."""
    prompts: int | None
    """About so many detect it eight times in ten; `None` where not even 64 times as many do."""


Range = tuple[int, int]
"""The least and the most."""


class Scope(Result):
    """For what a verdict holds. `None`: not reported."""

    temperature: float | None
    """0 where tokens were chosen greedily."""
    concurrency: int | None
    """Requests at a time, at most."""
    rate: float | None
    """Requests a second of an open loop; `None` also where the next is sent when another ends."""
    requests_per_process: int
    """Answered by an engine process, warm-up included, at most."""
    prompts: int
    further: int = 0
    """Of these, those that were asked after the run, once each."""
    blocks: int
    prompt_tokens: Range | None
    answer_tokens: Range | None
    answer_characters: Range | None
    """Where tokens are not reported."""
    prompt_cache: bool | None
    """Whether a request may start from what an earlier request left in the cache."""
    turn: int
    """Of a conversation: benchctl asks the last turn of a prompt, and sends those before it as they stand."""


def can_be_shown(power: DetectionPower) -> bool:
    """Return whether a number of prompts that somebody measures would be enough."""
    return power.prompts is not None and power.prompts <= MOST_PROMPTS


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
    """Nats: beyond this margin no place of any arm diverges by noise, but in 1 run of 200."""
    beyond: int
    """Divergences beyond the floor."""
    excess_limit: float | None
    """95 % upper limit of divergences per 1,000 tokens beyond those that noise makes."""
    prefixes: int
    """At which the noise was measured."""
    continued: int = 0
    """Of these, those in the target's own continuations of a shipped suite's prompts, not in answers of the run."""
    changed: int
    """Of these, at how many the margin moved at all."""
    stated: DetectionPower | None = None
    """The power against the engine that a verdict of consistency must exclude; `None` where there is no verdict."""
    lacking: str | None = None
    """What is missing for a verdict, as the end of a sentence; `None` where nothing is."""

    @property
    def violates(self) -> bool:
        """Whether noise does not explain the arm's answers."""
        return bool(self.beyond) or (self.p_adjusted is not None and self.p_adjusted <= AUDIT_LEVEL / 2)

    @property
    def shows(self) -> bool:
        """Whether finding no violation shows something: such an engine would have been detected."""
        return self.stated is not None and self.stated.chance >= ENOUGH_POWER


class ReplayDeviation(Result):
    """A token of an arm's answer that is not the likeliest where the target reads the arm's own batch."""

    task: str
    prompt_idx: int
    index: int
    """Of the token within the answer."""
    token: int
    likeliest: int
    gap: float | None
    """Nats by which the target prefers its likeliest token in that batch; `None`: the request forbids the arm's."""
    step: int
    """Of the answer, from 1; 0: the reading of the prompt."""
    width: int
    """Tokens of the batch."""
    draft: int | None
    """The token's position in the draft, from 1; `None` where the step took it from the target, after the draft."""


class ArmReplay(Result):
    """An arm's answers, read again by the target alone in the batches they were made in."""

    arm: str
    answers: int
    """Distinct ones, by tokens and steps, that were replayed."""
    of: int
    """Distinct ones that there are, those that cannot be replayed among them."""
    rounds: int
    """Steps with a draft of the replayed ones."""
    tokens: int
    control: int
    """The baseline's own distinct answers that were replayed."""
    control_of: int
    control_deviating: int
    """Of the replayed ones, those that do not replay exactly."""
    deviating: int = 0
    """Tokens of the arm to which the target prefers another; counted where the control is exact."""
    first: ReplayDeviation | None = None
    """The first of them."""
    evidence: str = ""
    """What read, and why it computes what the measured engine does; the end of a sentence."""
    lacking: str | None = None
    """Why nothing, or not all, is decided, as the end of a sentence; `None` where all is."""

    @property
    def exact(self) -> bool:
        """Whether every token of every answer is the likeliest of its row, and the baseline's own are, too."""
        return self.lacking is None and self.first is None

    @property
    def decides(self) -> bool:
        """Whether the arm needs no other test."""
        return self.lacking is None or self.first is not None


class ControlTest(Result):
    """An arm's answers against a control's, by prompt, where scores of the target do not show its noise."""

    arm: str
    prompts: int
    """With answers that scores do not decide."""
    tested: int
    """Of them, those that this test compares: all, or as many as were scored."""
    outside: int
    """Of the prompts, at how many the arm gave an answer that the baseline never gave."""
    varying: int
    """Of the prompts, at how many the baseline's own answers are not all equal."""
    repeated: int
    """The baseline's answers to a prompt, at most."""
    against: Literal["arm", "noise", "scores"] | None
    """arm: another of the same verify width; noise: the baseline repeated, on a target whose noise at that width is 0;
    scores: the baseline's own answers, scored as the arm's. `None`: nothing in the run is a control."""
    control: str | None
    """The name of that arm."""
    differing: int
    """Prompts at which an answer of the arm counts as differing in this test."""
    tests: int
    """Controls that the run has; the p-value of the strongest is multiplied by their number (Bonferroni)."""
    arms_answers: int
    controls_answers: int
    """Answers of arm and control to a prompt, at least."""
    p: float | None
    """Chance that so many of a sound arm's answers differ, or more. Not corrected for the number of arms."""
    p_adjusted: float | None = None
    """Corrected by Holm's method over the arms that are tested so."""
    power: float | None = None
    """To find an arm that changes its answers to `CHANGED_SHARE` of the prompts, after both corrections."""

    @property
    def violates(self) -> bool:
        """Whether the control does not explain the arm's answers."""
        return self.p_adjusted is not None and self.p_adjusted <= AUDIT_LEVEL / 2


class InvalidAnswer(Result):
    """An answer that breaks a rule of its request."""

    task: str
    prompt_idx: int
    block: int
    code: str
    """`benchctl.prompts.rules.RuleCode`."""
    detail: str
    """Where and how; untrusted text on one line."""
    enforced: bool
    """Whether an engine that keeps the constraint token by token cannot break this rule."""
    index: int | None = None
    """The first token that is not the baseline's valid answer's; `None`: the baseline has none, or ids are absent."""
    step: int | None = None
    """The step that brought it, from 1; 0: the reading of the prompt."""
    draft: int | None = None
    """Its position in the draft, from 1; `None` where it was no draft token."""


class LogprobCheck(Result):
    """The log probabilities that came with the answers, as far as their tokens are the baseline's."""

    answers: int
    """Of those that were to list them and that the baseline has, too."""
    tokens: int
    """With a log probability on both sides."""
    absent: int
    """Tokens of the arm without any, where the baseline's has one."""
    zero: int
    """Tokens with a log probability of exactly 0 (certain), where the baseline's is below -0.01."""
    largest: float | None
    """The largest other difference, in nats."""

    @property
    def wrong(self) -> bool:
        """Whether values are missing or cannot be the target's."""
        return bool(self.absent or self.zero)


class ValidityCounts(Result):
    """How many answers keep the form that their requests ask for."""

    valid: int = 0
    invalid: int = 0
    cut: int = 0
    """Cut off by `max_tokens`: neither."""
    unchecked: int = 0
    """Of a form that is not tested (`benchctl.prompts.rules`), such as tools that were not called."""


class Validity(Result):
    """Whether an arm's answers keep the form that their requests ask for, which needs no baseline, and beside it."""

    arm: str
    counts: ValidityCounts
    baseline: ValidityCounts
    arm_alone: list[str]
    """Prompts, by `task/prompt_idx`, at which the arm's answer is invalid in a block and the baseline's is valid, …"""
    baseline_alone: list[str]
    """… and the other way round."""
    p: float
    """Of McNemar's exact test (1947), one-sided: so many or more by chance are the arm's alone."""
    p_adjusted: float | None = None
    """By Holm over the arms of a run."""
    broken: InvalidAnswer | None = None
    """The first of the arm alone that breaks a rule which its engine enforces."""
    first: InvalidAnswer | None = None
    """The first invalid answer of the arm: of the arm alone, or where there is none whatever the baseline's."""
    logprobs: LogprobCheck | None = None

    @property
    def violates(self) -> bool:
        """Whether answers are invalid that the target alone gives valid: one of a rule that the engine enforces, or
        more of others than chance explains."""
        return self.broken is not None or (self.p_adjusted is not None and self.p_adjusted <= AUDIT_LEVEL / 2)


CHANGED_SHARE = 0.25
"""The power of a control test is stated for an arm that changes so many answers."""
TIMES_BEHIND = 2.0
"""By scores an answer differs where its worst token is so many times as far behind as any of the baseline's."""
ENOUGH_POWER = 0.8
"""An arm is consistent with the target only where a faulty engine would have been detected with this probability."""
MOST_PROMPTS = 2000
"""Where more are needed, a target cannot show that an arm is consistent with it."""
AUDIT_LEVEL = 0.01
"""Chance that any sound arm of a run is called a violation: half for the hazard test, half for single places."""
