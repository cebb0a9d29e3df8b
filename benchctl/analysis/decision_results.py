"""What is concluded of an arm, what to run, and what to measure next."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from benchctl.analysis.output_results import LosslessVerdict
from benchctl.analysis.result import Interval, Result
from benchctl.analysis.speed_results import AcceptanceDoubt

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
