"""What all answers of one server told, added up, and held against the counters that all its requests share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchctl.engines.base import Ledger
from benchctl.engines.common.metrics import Counters


@dataclass
class Tally:
    """Sums over the requests of a server so far. A sum is `None` while no answer has told of it."""

    answers: int = 0
    tokens: int = 0
    decoded: int = 0
    """Tokens but for each answer's first, which the reading of the prompt brings."""
    longest: int = 0
    """Tokens of the longest answer."""
    rounds: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    plain_steps: int | None = 0
    """Steps without a draft; `None` once an answer could not tell."""
    broken: int = 0
    """Requests without an answer: what was drafted for them is in the server's counters alone."""

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request as broken when it raises, or is cancelled."""
        try:
            yield
        except BaseException:
            self.broken += 1
            raise

    def add(self, tokens: int, ledger: Ledger) -> None:
        """Add an answer of `tokens` tokens."""
        self.answers += 1
        self.tokens += tokens
        self.decoded += max(0, tokens - 1)
        self.longest = max(self.longest, tokens)
        self.rounds = _sum(self.rounds, ledger.rounds)
        self.drafted = _sum(self.drafted, ledger.drafted)
        self.accepted = _sum(self.accepted, ledger.accepted)
        if self.plain_steps is not None:
            self.plain_steps = None if ledger.plain_steps is None else self.plain_steps + ledger.plain_steps

    def agrees(self, counted: Counters) -> bool | None:
        """Whether a server's counters over its whole life are these sums; `None` where either does not tell.

        Rounds count where the answers told them.
        """
        if counted.drafted is None or self.drafted is None:
            return None
        same = (counted.drafted, counted.accepted) == (self.drafted, self.accepted)
        return same and self.rounds in (None, counted.rounds)

    def most_drafted(self, *counts: int | None) -> int | None:
        """Return the largest of these counts of draft tokens and the sum here; `None` where nobody tells."""
        return max((count for count in (self.drafted, *counts) if count is not None), default=None)


def _sum(total: int | None, more: int | None) -> int | None:
    return total if more is None else (total or 0) + more
