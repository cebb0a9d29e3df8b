"""Every step of the target in an answer, from the log's rounds and the stream's times.

With `LLAMA_TRACE` llama-server logs a line for every round, and none for a step without a draft (tools/server/
server-context.cpp of commit 0c1e570). With `timings_per_token` events have the time of their step, which is one time
for all its tokens, and how much was drafted by then. A token that is a part of a character has no event.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby

from benchctl.data.counts import accepted_in, rounds_contradiction
from benchctl.engines.base import Ledger
from benchctl.engines.common.drafts import by_length
from benchctl.engines.llama_cpp.stream import LlamaAnswer

Step = tuple[int, ...]
"""`benchctl.data.record.Record.target_steps`."""
_ROUND = re.compile(r"\| task (\d{1,9}) \| accepted +(\d{1,4})/ *(\d{1,4}) draft tokens( \(restore checkpoint\))?")
"""What a target accepted of a draft, as `LLAMA_TRACE` adds it to the log; steps without a draft leave no line."""


def read_rounds(log: str) -> list[Step]:
    """Return the rounds of the last request in a log: (drafted, accepted) each, as in `Record.target_steps`.

    A line that restores a checkpoint is followed by a line of what is read again, which is the same round's.
    """
    lines = _ROUND.findall(log)
    rounds: list[Step] = []
    restored = False
    for _, accepted, drafted, restores in (line for line in lines if line[0] == lines[-1][0]):
        rounds.append((*rounds.pop(), int(accepted)) if restored else (int(drafted), int(accepted)))
        restored = bool(restores)
    return rounds


def mismatch(rounds: Sequence[Step], ledger: Ledger) -> str | None:
    """Return how an answer's rounds contradict its counters; `None`: they do not."""
    return rounds_contradiction(rounds, drafted=ledger.drafted, accepted=ledger.accepted, rounds=ledger.rounds)


def with_rounds(ledger: Ledger, rounds: Sequence[Step]) -> Ledger:
    """Return an answer's ledger with its drafts by position and length, from all its rounds."""
    longest = max(drafted for drafted, *_ in rounds)
    return replace(
        ledger,
        drafted_by_position=tuple(sum(drafted > position for drafted, *_ in rounds) for position in range(longest)),
        accepted_by_length=by_length(((accepted_in(step), step[0]) for step in rounds), longest),
    )


_MOST_POSSIBLE = 64
"""Rounds that may end at a token, by what the stream shows. Where it shows more, it shows too little."""


def find_steps(rounds: Sequence[Step], answer: LlamaAnswer) -> tuple[Step, ...] | None:
    """Return every step of an answer, of its rounds and those between them; `None` where several orders are possible.

    Raises ValueError where none is. An answer that ends by its length has room for a whole draft and a token more in
    every round (`get_n_draft_max`); one that stops by itself may cut off what its last step brought.
    """
    tokens, may_cut = answer.n_predicted, answer.finish_reason == "stop"
    drafted = list(accumulate((step[0] for step in rounds), initial=0))
    shown = _Shown(answer)
    orders: list[dict[int, _Orders]] = [{} for _ in range(tokens + 1)]
    if shown.fits(0, 1, 0):
        orders[1][0] = _Orders(1, None, ())
    for start in range(1, tokens):
        if len(orders[start]) > _MOST_POSSIBLE:
            return None
        for used, before in orders[start].items():
            for step in ((0, 0), *rounds[used : used + 1]):
                end, after = start + step[-1] + 1, used + bool(step[0])
                has_room = may_cut or max(end, start + step[0] + 1) <= tokens
                if has_room and shown.fits(start, min(end, tokens), drafted[after]):
                    at_end = orders[min(end, tokens)]
                    count = before.count + (at_end[after].count if after in at_end else 0)
                    at_end[after] = _Orders(count, before, step)
    result = orders[tokens].get(len(rounds))
    if result is None:
        raise ValueError("its stream shows other steps")
    return result.steps() if result.count == 1 else None


@dataclass(frozen=True)
class _Orders:
    """How many orders of steps lead to a token, and one of them."""

    count: int
    before: _Orders | None
    step: Step

    def steps(self) -> tuple[Step, ...]:
        """Return the steps of the one order."""
        steps, last = list[Step](), self
        while last.before is not None:
            steps.append(last.step)
            last = last.before
        return tuple(reversed(steps))


class _Shown:
    """What the stream shows of an answer's steps."""

    def __init__(self, answer: LlamaAnswer) -> None:
        self._group: dict[int, tuple[int, int, int]] = {}
        """By a token with an event: the first and the last one of its step, and the tokens drafted by then."""
        for _, times in groupby(answer.token_times, key=lambda time: time.at_ms):
            of_step = list(times)
            for time in of_step:
                self._group[time.tokens] = of_step[0].tokens, of_step[-1].tokens, time.drafted

    def fits(self, start: int, end: int, drafted: int) -> bool:
        """Whether a step may bring the tokens after `start` up to `end`, with so many drafted by then."""
        groups = {self._group[token] for token in range(start + 1, end + 1) if token in self._group}
        if len(groups) != 1:
            return not groups
        ((first, last, counted),) = groups
        return start < first and last <= end and counted == drafted


@dataclass
class LoggedRounds:
    """The rounds in the log, a line each, beside the answers' own counters and tokens."""

    answers: int = 0
    """Answers with drafts whose rounds agree with their counters."""
    placed: int = 0
    """Those of which every step is known: their rounds agree with the tokens of each."""
    contradiction: str | None = None
    """How the rounds of another answer contradict them."""

    @property
    def confirm(self) -> bool:
        """Whether there are rounds, and all agree."""
        return self.answers > 0 and self.contradiction is None

    def add(self, ledger: Ledger, rounds: Sequence[Step], answer: LlamaAnswer) -> Ledger:
        """Return an answer's ledger with its steps, and note whether its rounds agree with it.

        It has no steps where they are not known, or contradict its counters or its tokens.
        """
        contradiction, steps = mismatch(rounds, ledger), None
        if contradiction is None:
            try:
                steps = find_steps(rounds, answer)
            except ValueError as error:
                contradiction = str(error)
        if contradiction is not None:
            self.contradiction = self.contradiction or contradiction
            return ledger
        if rounds:
            self.answers += 1
            self.placed += steps is not None
            ledger = with_rounds(ledger, rounds)
        return replace(ledger, target_steps=steps)

    def evidence(self) -> list[str]:
        """Return a sentence; none where the log shows no rounds."""
        sentence = (
            f"log: the rounds of {self.answers} answers agree with their counters, and of {self.placed} with the "
            "tokens of every step"
        )
        if self.contradiction is not None:
            return [f"{sentence}; those of another do not: {self.contradiction}"]
        return [sentence] if self.answers else []
