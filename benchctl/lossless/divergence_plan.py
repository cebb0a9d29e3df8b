"""Which prefixes are replayed, and how: pure functions of the answers and of the divergences to be explained.

A pass reads an answer from its beginning, a fixed number of tokens at a time, as a round of speculation verifies
them; every end of a batch gives one score. Passes only ever read on, so they need no way back in the model's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchctl.lossless.prefixes import AnswerToScore, DivergenceToScore

SAMPLE = 100
"""Prefixes that are scored at every verify width, where the answers have so many: enough for a 99 % quantile."""
ENOUGH = 30
"""So many are worth reading answers more than twice."""
SHARE = 8
"""Fewest prefixes of an answer before the next answer is taken: noise within an answer is alike."""
PREFILLS = 24
"""Prefixes of the sample that are also read at once."""


@dataclass(frozen=True)
class Pass:
    """One reading of an answer: `width` tokens at a time, the first batch ending at token `first`."""

    width: int
    first: int
    last: int
    fork: bool
    """Whether it ends at a divergence; only that end counts. Else every end of a batch belongs to the sample."""

    @property
    def ends(self) -> range:
        """How many tokens of the answer have been read at the end of every batch."""
        return range(self.first, self.last + 1, self.width)


@dataclass(frozen=True)
class AnswerPlan:
    """What is read of an answer."""

    answer: AnswerToScore
    passes: tuple[Pass, ...]
    prefilled: tuple[int, ...]
    """Places of the sample at which prompt and answer are also read at once."""

    @property
    def last(self) -> int:
        """The last place that needs the baseline's own shape to compare with."""
        return max([fork.index for fork in self.answer.forks] + [pass_.last for pass_ in self.passes], default=-1)


def divergence_pass(fork: DivergenceToScore) -> Pass | None:
    """Return the pass that ends at a divergence with a batch of the arm's width; `None` where it read none at once.

    A divergence before the `width`-th token has fewer before it: they are read in one narrower batch. The prompt is
    never split to fill it up, which no round does.

    A divergence at the very first token has no such pass: the prompt's own reading, which is no round, decides it.
    """
    if fork.width is None or fork.width < 2 or fork.index < 1:
        return None
    return Pass(fork.width, fork.index % fork.width or fork.width, fork.index, fork=True)


def make_plan(answers: Sequence[AnswerToScore], sampled: Sequence[int] = ()) -> list[AnswerPlan]:
    """Plan the divergences of all answers and, for every width among them that is not `sampled`, the sample.

    Answers with a divergence come first, and those of all tasks in turn. A sample takes a few prefixes of each
    answer, then more of each.
    """
    ordered = _in_turn(answers)
    passes: dict[int, list[Pass]] = {place: [] for place in range(len(ordered))}
    for place, answer in enumerate(ordered):
        passes[place] += dict.fromkeys(
            divergence_read for fork in answer.forks if (divergence_read := divergence_pass(fork))
        )
    for width in widths_of(answers):
        if width not in sampled:
            for place, added in _sample(ordered, width):
                passes[place].append(added)
    plans = []
    left = PREFILLS if len(sampled) == 0 else 0
    for place, answer in enumerate(ordered):
        ends = sorted({end for pass_ in passes[place] if not pass_.fork for end in pass_.ends})
        taken = ends[:: max(1, len(ends) // 2)][: min(2, left)]
        left -= len(taken)
        plan = AnswerPlan(answer, tuple(passes[place]), tuple(taken))
        if plan.last >= 0:
            plans.append(plan)
    return plans


def widths_of(answers: Sequence[AnswerToScore]) -> list[int]:
    """Return the widths at which divergences were verified, narrowest first."""
    return sorted({fork.width for answer in answers for fork in answer.forks if fork.width and fork.width > 1})


def _in_turn(answers: Sequence[AnswerToScore]) -> list[AnswerToScore]:
    places_of_task: dict[str, int] = {}
    places = []
    for answer in answers:
        places.append(places_of_task.setdefault(answer.task, 0))
        places_of_task[answer.task] += 1
    return [
        answer for _, answer in sorted(zip(places, answers, strict=True), key=lambda pair: (not pair[1].forks, pair[0]))
    ]


def _sample(answers: Sequence[AnswerToScore], width: int) -> list[tuple[int, Pass]]:
    share = max(SHARE, -(-SAMPLE // max(1, len(answers))))
    found: list[tuple[int, Pass]] = []
    count = 0
    for number, start in enumerate(dict.fromkeys((width, -(-width // 2), *range(1, width)))):
        for place, answer in enumerate(answers):
            last = min(len(answer.token_ids) - 1, start + width * (share - 1))
            if count < (SAMPLE if number < 2 else ENOUGH) and last >= start:
                added = Pass(width, start, last, fork=False)
                found.append((place, added))
                count += len(added.ends) - (start < width)
    return found
