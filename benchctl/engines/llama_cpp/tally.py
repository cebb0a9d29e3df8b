"""What all answers of one server told, added up: they may end in several threads at once.

Where requests overlap, `/metrics` counts them all together, so that each answer's ledger comes from its own timings;
the counters are then held against the sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from benchctl.engines.base import Ledger
from benchctl.engines.common.metrics import Counters


class Tally:
    """Sums over the requests of a server so far; thread-safe."""

    def __init__(self) -> None:
        self.longest = 0
        """Tokens of the longest answer."""
        self.drafted: int | None = None
        self.accepted: int | None = None
        self.in_flight = 0
        self.broken = 0
        """Requests without an answer: what was drafted for them is in the server's counters alone."""
        self._lock = Lock()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request as in flight, and as broken when it raises."""
        with self._lock:
            self.in_flight += 1
        try:
            yield
        except BaseException:
            with self._lock:
                self.broken += 1
            raise
        finally:
            with self._lock:
                self.in_flight -= 1

    def add(self, tokens: int, ledger: Ledger) -> None:
        """Add an answer of `tokens` tokens."""
        with self._lock:
            self.longest = max(self.longest, tokens)
            if ledger.drafted is not None:
                self.drafted = (self.drafted or 0) + ledger.drafted
            if ledger.accepted is not None:
                self.accepted = (self.accepted or 0) + ledger.accepted

    def beside(self, counters: Counters) -> str | None:
        """Return a sentence that holds the server's counters against these sums; `None` where either is not told."""
        if counters.drafted is None or self.drafted is None:
            return None
        said = (
            f"GET /metrics over all answers: {counters.drafted} drafted, {counters.accepted} accepted in "
            f"{counters.rounds} rounds; the answers' own sums: {self.drafted} drafted, {self.accepted} accepted"
        )
        if (counters.drafted, counters.accepted) == (self.drafted, self.accepted):
            return said
        if self.broken:
            return f"{said}; {self.broken} requests broke off, and the first alone counts them"
        return f"{said}: a contradiction"
