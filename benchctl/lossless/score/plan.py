"""What is read of a run's answers on the target alone, in which order, and what that costs: pure functions.

At divergences, prefixes of the baseline's answers: a pass reads an answer from its beginning, a fixed number of tokens
at a time, as a round of speculation verifies them; every end of a batch gives a score. Passes only ever read on, so
they need no way back in the model's memory. Of the arms, whole answers, each once, and its noise in batches of every
width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from benchctl.analysis.losslessness import FirstDivergence
from benchctl.analysis.output_results import Losslessness
from benchctl.data.record import Record
from benchctl.lossless.judge.audit import PREFIXES
from benchctl.lossless.judge.selection import Answer, Selection, answer_of
from benchctl.measurement.plan import by_turns

if TYPE_CHECKING:
    from benchctl.analysis.frame import Frame
    from benchctl.data.scores import TargetScores

SAMPLE = 100
"""Prefixes that are scored at every verify width, where the answers have so many: enough for a 99 % quantile."""
ENOUGH = 30
"""So many are worth reading answers more than twice."""
SHARE = 8
"""Fewest prefixes of an answer before the next answer is taken: noise within an answer is alike."""
FEWEST_ANSWERS = 12
"""Noise is measured on the first half of the whole answers, so many at least, before others: the time may end early."""
REQUEST_S = 0.004
"""What a request takes beside the target's own work."""


@dataclass(frozen=True)
class DivergenceToScore:
    """Where an arm's answer diverges from the baseline's, and with which token."""

    index: int
    rival: int
    width: int | None
    """Tokens that the arm verified in a round; `None` when not reported."""


@dataclass(frozen=True)
class AnswerToScore(Answer):
    """A baseline's answer and the divergences from it."""

    divergences: tuple[DivergenceToScore, ...] = ()


def prefixes_to_score(frame: Frame, verdicts: Iterable[Losslessness]) -> list[AnswerToScore]:
    """Return the baseline's sound answers, of each prompt the first, with the divergences from them that can be scored.

    Answers without a divergence come along: the sample of the noise is taken from all.
    """
    divergences: dict[tuple[str, int], dict[DivergenceToScore, None]] = {}
    for arm in verdicts:
        for comparison in arm.comparisons:
            if comparison.outcome in ("differs", "near-tie", "violation", "degenerate"):
                scorable = filter(None, map(_scorable, comparison.divergences))
                divergences.setdefault((comparison.task, comparison.prompt_idx), {}).update(dict.fromkeys(scorable))
    if not any(divergences.values()):
        return []
    result = []
    for prompt, (task, index) in enumerate(frame.prompts):
        if (task, index) in frame.constrained:
            continue
        rows = frame.row_at[frame.baseline, :, prompt].tolist()
        answer = next(filter(None, (answer_of(frame.records[row]) for row in rows if row >= 0)), None)
        if answer is not None:
            result.append(AnswerToScore(**vars(answer), divergences=tuple(divergences.get((task, index), ()))))
    return result


def _scorable(divergence: FirstDivergence) -> DivergenceToScore | None:
    if (
        divergence.unit != "token"
        or None in (divergence.baseline_token, divergence.width)
        or divergence.arm_token is None
    ):
        return None
    return DivergenceToScore(divergence.index, divergence.arm_token, divergence.width)


@dataclass(frozen=True)
class PrefixPass:
    """One reading of an answer: `width` tokens at a time, the first batch ending at token `first`."""

    width: int
    first: int
    last: int
    at_divergence: bool
    """Whether it ends at a divergence; only that end counts. Else every end of a batch belongs to the sample."""

    @property
    def ends(self) -> range:
        """How many tokens of the answer have been read at the end of every batch."""
        return range(self.first, self.last + 1, self.width)


@dataclass(frozen=True)
class PrefixPlan:
    """What is read of a baseline's answer."""

    answer: AnswerToScore
    passes: tuple[PrefixPass, ...]

    @property
    def last(self) -> int:
        """The last place that needs the baseline's own shape to compare with."""
        return max(
            [divergence.index for divergence in self.answer.divergences] + [planned.last for planned in self.passes],
            default=-1,
        )


def divergence_pass(divergence: DivergenceToScore) -> PrefixPass | None:
    """Return the pass that ends at a divergence with a batch of the arm's width; `None` where it read none at once.

    A divergence before the `width`-th token has fewer before it: they are read in a narrower batch. The prompt is
    never split to fill it up, which no round does.

    A divergence at the very first token has no such pass: the prompt's own reading, which is no round, decides it.
    """
    if divergence.width is None or divergence.width < 2 or divergence.index < 1:
        return None
    return PrefixPass(
        divergence.width, divergence.index % divergence.width or divergence.width, divergence.index, at_divergence=True
    )


def plan_prefixes(answers: Sequence[AnswerToScore], sampled: Sequence[int] = ()) -> list[PrefixPlan]:
    """Plan the divergences of all answers and, for every width among them that is not `sampled`, the sample.

    Answers with a divergence come first, and those of all tasks in turn. A sample takes a few prefixes of each
    answer, then more of each.
    """
    ordered = sorted(by_turns(answers), key=lambda answer: not answer.divergences)
    passes: list[list[PrefixPass]] = [
        list(dict.fromkeys(filter(None, map(divergence_pass, a.divergences)))) for a in ordered
    ]
    for width in widths_of(answers):
        if width not in sampled:
            for position, added in _sample(ordered, width):
                passes[position].append(added)
    plans = [PrefixPlan(answer, tuple(planned)) for answer, planned in zip(ordered, passes, strict=True)]
    return [plan for plan in plans if plan.last >= 0]


def widths_of(answers: Sequence[AnswerToScore]) -> list[int]:
    """Return the widths at which divergences were verified, narrowest first."""
    return sorted(
        {
            divergence.width
            for answer in answers
            for divergence in answer.divergences
            if divergence.width and divergence.width > 1
        }
    )


def _sample(answers: Sequence[AnswerToScore], width: int) -> list[tuple[int, PrefixPass]]:
    share = max(SHARE, -(-SAMPLE // max(1, len(answers))))
    passes: list[tuple[int, PrefixPass]] = []
    count = 0
    for number, start in enumerate(dict.fromkeys((width, -(-width // 2), *range(1, width)))):
        for position, answer in enumerate(answers):
            last = min(len(answer.token_ids) - 1, start + width * (share - 1))
            if count < (SAMPLE if number < 2 else ENOUGH) and last >= start:
                added = PrefixPass(width, start, last, at_divergence=False)
                passes.append((position, added))
                count += len(added.ends) - (start < width)
    return passes


@dataclass(frozen=True)
class Alignment:
    """How an answer is read in batches: see `NullPass`."""

    width: int
    first: int
    skipped: int = 0

    def ends(self, size: int) -> Iterator[tuple[int, bool]]:
        """Yield where each batch ends in an answer of `size` tokens, and whether its last place counts."""
        end, counts = self.first, True
        while end < size:
            yield end, counts
            counts = not counts or not self.skipped
            end += self.width if counts else self.skipped

    def places(self, size: int) -> int:
        """Return how many places count."""
        return sum(counts for _, counts in self.ends(size))


def alignments(width: int) -> Iterator[Alignment]:
    """Yield every alignment of a width: whole rounds from every start, then with rounds accepted in part between."""
    spread = sorted(range(1, width + 1), key=lambda first: (-first * 7) % (width + 1))
    for skipped in range(width):
        for first in spread:
            yield Alignment(width, first, skipped)


@dataclass(frozen=True)
class ScoringCost:
    """What reading takes, in seconds."""

    token_s: float
    """A token, decoded."""
    prompt_s: float
    """A prompt."""

    def of_answer(self, answer: Answer) -> float:
        """Scoring an answer token by token."""
        return self.prompt_s + len(answer.token_ids) * (self.token_s + REQUEST_S)

    def of_pass(self, answer: Answer, alignment: Alignment) -> float:
        """Reading it in batches, each taken to cost as much as half its tokens decoded."""
        ends = list(alignment.ends(len(answer.token_ids)))
        read = ends[-1][0] if ends else 0
        return self.prompt_s + read * self.token_s / 2 + len(ends) * REQUEST_S


def cost_of(records: Sequence[Record], baseline: str) -> ScoringCost:
    """Return what reading took while the run was measured."""
    timed = [
        record
        for record in records
        if record.label == baseline and record.e2e_s is not None and record.decode_s is not None
    ]
    tokens = sum(max(0, record.n_predicted - 1) for record in timed)
    decode = sum(record.decode_s or 0.0 for record in timed)
    prompts = sum((record.e2e_s or 0.0) - (record.decode_s or 0.0) for record in timed)
    return ScoringCost(decode / tokens if tokens else 0.05, prompts / len(timed) if timed else 0.1)


@dataclass(frozen=True)
class AnswerPlan:
    """What is read of an arm's answer."""

    answer: Answer
    scored: bool
    """Whether its score is kept already; it is then read again only to compare batches with."""
    alignments: tuple[Alignment, ...]


@dataclass(frozen=True)
class ScoringPlan:
    """What is read of whole answers, in order, and what it is estimated to take."""

    prompts: tuple[tuple[AnswerPlan, ...], ...]
    """By prompt; as many of them as fit."""
    total_prompts: int
    """Prompts that there are."""
    seconds: float
    budget_s: float


def plan_answers(
    selection: Selection, stored: TargetScores | None, cost: ScoringCost, budget_s: float, *, in_batches: bool
) -> ScoringPlan:
    """Plan every answer that is not scored, and for every width what is missing of its noise.

    Prompts come in an order that nothing about them decides; those that do not fit into `budget_s` are left out. The
    noise is measured on the first prompts, a few places of each answer, then more of each.
    """
    scored = {answer.answer for answer in stored.answers} if stored else set()
    read = {reading.key for reading in stored.passes} if stored else set()
    prompts, answers, spent = selection.prompts, list[Answer](), 0.0
    null = _null_cost(selection, stored, cost) if in_batches else 0.0
    chosen_prompts: list[list[Answer]] = []
    for group in prompts:
        price = sum(cost.of_answer(chosen) for chosen in group if chosen.key not in scored)
        if chosen_prompts and spent + price + null > budget_s and price:
            continue
        chosen_prompts.append(group)
        spent += price
        answers += group
    passes: dict[int, list[Alignment]] = {position: [] for position in range(len(answers))}
    soon = max(FEWEST_ANSWERS, len(answers) // 2)
    for width in selection.widths if in_batches else ():
        have = stored.places_read(width) if stored else 0
        for first, last in ((0, soon), (soon, len(answers))):
            for alignment, position in product(alignments(width), range(first, min(last, len(answers)))):
                key = (*answers[position].key, width, alignment.first, alignment.skipped, 1)
                count = alignment.places(len(answers[position].token_ids))
                if have < PREFIXES and count and key not in read:
                    passes[position].append(alignment)
                    have += count
    plans, number, seconds = [], 0, _shared_cost(selection, stored, cost) if in_batches else 0.0
    for group in chosen_prompts:
        group_plans = []
        for answer in group:
            planned = AnswerPlan(answer, answer.key in scored, tuple(passes[number]))
            number += 1
            if planned.alignments or not planned.scored:
                group_plans.append(planned)
                seconds += cost.of_answer(answer) + sum(cost.of_pass(answer, reading) for reading in planned.alignments)
        if group_plans:
            plans.append(tuple(group_plans))
    return ScoringPlan(tuple(plans), len(prompts), seconds, budget_s)


def _null_cost(selection: Selection, stored: TargetScores | None, cost: ScoringCost) -> float:
    """Return about what measuring the missing noise takes."""
    missing = {width: PREFIXES - (stored.places_read(width) if stored else 0) for width in selection.widths}
    cost_alone = sum(max(0, count) * (width * cost.token_s / 2 + REQUEST_S) for width, count in missing.items())
    return cost_alone + _shared_cost(selection, stored, cost)


def _shared_cost(selection: Selection, stored: TargetScores | None, cost: ScoringCost) -> float:
    """Return about what measuring the missing noise of shared batches takes."""
    missing = [width for width, slots, _ in selection.shared if lacks_shared(stored, width, slots)]
    return sum(PREFIXES * width * cost.token_s / 2 for width in missing)


def lacks_shared(stored: TargetScores | None, width: int, slots: int) -> bool:
    """Whether too little is known of the noise of batches of `width` tokens of each of `slots` requests."""
    return stored is None or stored.places_read(width, slots) < PREFIXES
