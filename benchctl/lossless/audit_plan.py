"""What an audit reads, and what that costs: every selected answer once, and its noise in batches of every width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from benchctl.data.audits import Audit
from benchctl.data.record import Record
from benchctl.lossless.conclude import PREFIXES
from benchctl.lossless.selection import Answer, Selection

FEWEST_ANSWERS = 12
"""Noise is measured on the first half of the answers, so many at least, before others: the time may end early."""
REQUEST_S = 0.004
"""What a request takes beside the target's own work."""


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
    own = [
        record
        for record in records
        if record.label == baseline and record.e2e_s is not None and record.decode_s is not None
    ]
    tokens = sum(max(0, record.n_predicted - 1) for record in own)
    decode = sum(record.decode_s or 0.0 for record in own)
    prompts = sum((record.e2e_s or 0.0) - (record.decode_s or 0.0) for record in own)
    return ScoringCost(decode / tokens if tokens else 0.05, prompts / len(own) if own else 0.1)


def seconds_of(records: Sequence[Record]) -> float:
    """Return how long the run's requests took, all together."""
    return sum(record.e2e_s or 0.0 for record in records)


@dataclass(frozen=True)
class AnswerPlan:
    """What is read of an answer."""

    answer: Answer
    scored: bool
    """Whether its score is kept already; it is then read again only to compare batches with."""
    alignments: tuple[Alignment, ...]


@dataclass(frozen=True)
class AuditPlan:
    """What is read, in order, and what it is estimated to take."""

    prompts: tuple[tuple[AnswerPlan, ...], ...]
    """By prompt; as many of them as fit."""
    of: int
    """Prompts that there are."""
    seconds: float
    budget_s: float


def make_plan(
    selection: Selection, audit: Audit | None, cost: ScoringCost, budget_s: float, *, in_batches: bool
) -> AuditPlan:
    """Plan every answer that is not scored, and for every width what is missing of its noise.

    Prompts come in an order that nothing about them decides; those that do not fit into `budget_s` are left out. The
    noise is measured on the first prompts, a few places of each answer, then more of each.
    """
    known = {answer.key for answer in audit.answers} if audit else set()
    read = {pass_.key for pass_ in audit.passes} if audit else set()
    prompts, answers, spent = selection.prompts, [], 0.0
    null = _null_cost(selection, audit, cost) if in_batches else 0.0
    kept: list[list[Answer]] = []
    for group in prompts:
        price = sum(cost.of_answer(chosen) for chosen in group if chosen.key not in known)
        if kept and spent + price + null > budget_s and price:
            continue
        kept.append(group)
        spent += price
        answers += group
    passes: dict[int, list[Alignment]] = {place: [] for place in range(len(answers))}
    soon = max(FEWEST_ANSWERS, len(answers) // 2)
    for width in selection.widths if in_batches else ():
        have = (
            sum(len(pass_.places) for pass_ in audit.passes if (pass_.width, pass_.slots) == (width, 1)) if audit else 0
        )
        for first, last in ((0, soon), (soon, len(answers))):
            for alignment, place in product(alignments(width), range(first, min(last, len(answers)))):
                key = (*answers[place].key, width, alignment.first, alignment.skipped, 1)
                count = alignment.places(len(answers[place].token_ids))
                if have < PREFIXES and count and key not in read:
                    passes[place].append(alignment)
                    have += count
    plans, number, seconds = [], 0, _shared_cost(selection, audit, cost) if in_batches else 0.0
    for group in kept:
        here = []
        for answer in group:
            planned = AnswerPlan(answer, answer.key in known, tuple(passes[number]))
            number += 1
            if planned.alignments or not planned.scored:
                here.append(planned)
                seconds += cost.of_answer(answer) + sum(cost.of_pass(answer, each) for each in planned.alignments)
        if here:
            plans.append(tuple(here))
    return AuditPlan(tuple(plans), len(prompts), seconds, budget_s)


def _null_cost(selection: Selection, audit: Audit | None, cost: ScoringCost) -> float:
    """Return about what measuring the missing noise takes."""
    have = dict.fromkeys(selection.widths, 0)
    for pass_ in audit.passes if audit else ():
        if pass_.slots > 1:
            continue
        have[pass_.width] = have.get(pass_.width, 0) + len(pass_.places)
    alone = sum(max(0, PREFIXES - have[width]) * (width * cost.token_s / 2 + REQUEST_S) for width in selection.widths)
    return alone + _shared_cost(selection, audit, cost)


def _shared_cost(selection: Selection, audit: Audit | None, cost: ScoringCost) -> float:
    """Return about what measuring the missing noise of shared batches takes."""
    missing = [width for width, slots, _ in selection.shared if lacks_shared(audit, width, slots)]
    return sum(PREFIXES * width * cost.token_s / 2 for width in missing)


def lacks_shared(audit: Audit | None, width: int, slots: int) -> bool:
    """Whether too little is known of the noise of batches of `width` tokens of each of `slots` requests."""
    passes = audit.passes if audit else []
    return sum(len(pass_.places) for pass_ in passes if (pass_.width, pass_.slots) == (width, slots)) < PREFIXES
