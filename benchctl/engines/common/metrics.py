"""The counters of speculation that a server exposes in Prometheus' text format, as llama-server and vLLM do.

Both call them `<engine>:spec_decode_num_…_total`; they count over the life of the server and over all its requests.
https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from benchctl.engines.base import Ledger

_SAMPLE = re.compile(r"(?:\{([^}]*)\})?[ \t]+([-+\w.]+)(?:[ \t]+\d+)?[ \t\r]*")
"""What follows a name: labels, the value, a time."""
_BEHIND = ("{", " ", "\t")
_NUMBER = re.compile(r"\+?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?")
_LONGEST_LINE = 4096
_DRAFTED = re.compile(r"^([A-Za-z_]\w{0,63}):spec_decode_num_draft_tokens_total[{ \t]", re.MULTILINE)
_POSITION = re.compile(r'(?:^|,)\s*position="(\d{1,5})"')
DEEPEST = 10_000
"""No draft is deeper, whatever a server reports."""
_COUNTERS = ("drafts", "draft_tokens", "accepted_tokens")
_MOST = 2**53
"""No counter is higher."""


@dataclass(frozen=True)
class Counters:
    """One reading; `None` where the server has no such counter."""

    rounds: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    accepted_by_position: tuple[int, ...] | None = None

    def ledger(self) -> Ledger:
        """Return these counts as a ledger."""
        return Ledger(
            drafted=self.drafted,
            accepted=self.accepted,
            rounds=self.rounds,
            accepted_by_position=self.accepted_by_position,
        )


def read_counters(text: str, engine: str) -> Counters:
    """Read the counters of `engine` (`llamacpp`, `vllm`); series of a name with other labels are added up."""
    prefix = f"{engine}:spec_decode_num_"
    rounds, drafted, accepted = (read_total(text, f"{prefix}{what}_total") for what in _COUNTERS)
    positions: dict[int, int] = {}
    for labels, count in _series(text, f"{prefix}accepted_tokens_per_pos_total"):
        found = _POSITION.search(labels)
        if found is None or int(found[1]) >= DEEPEST or count is None:
            return Counters(rounds, drafted, accepted)
        positions[int(found[1])] = positions.get(int(found[1]), 0) + count
    by_position = tuple(positions.get(i, 0) for i in range(max(positions) + 1)) if positions else None
    return Counters(rounds, drafted, accepted, by_position)


def prefix_of(text: str) -> str | None:
    """Return below which name a server of whatever kind has such counters; `None` where it has none."""
    found = _DRAFTED.search(text)
    return found[1] if found else None


def read_total(text: str, name: str) -> int | None:
    """Return the sum of all series called `name`; `None` when there is none, or any of them is no count."""
    counts = [count for _, count in _series(text, name)]
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _series(text: str, name: str) -> Iterator[tuple[str, int | None]]:
    """Yield labels and value of every series called `name`; no value where the line cannot be read."""
    place = text.find(name)
    while place >= 0:
        ends = text.find("\n", place)
        ends = len(text) if ends < 0 else ends
        behind = place + len(name)
        if text[place - 1 : place] in ("", "\n") and text[behind : behind + 1] in _BEHIND:
            found = _SAMPLE.fullmatch(text, behind, ends) if ends - place <= _LONGEST_LINE else None
            yield ("", None) if found is None else (found[1] or "", _number(found[2]))
        place = text.find(name, ends)


def reached(by_count: Sequence[int]) -> tuple[int, ...]:
    """Return how many drafts had a token accepted at each position, of how many had 0, 1, 2, … of them accepted."""
    return tuple(itertools.accumulate(reversed(by_count[1:])))[::-1]


def since(before: Counters, after: Counters) -> Counters:
    """Return what was counted between two readings; `None` for a counter that either lacks.

    Positions that the earlier reading lacks began at 0: servers list a position once something was accepted there.
    """
    by_position = None
    if after.accepted_by_position is not None:
        earlier = before.accepted_by_position or ()
        padded = earlier + (0,) * (len(after.accepted_by_position) - len(earlier))
        by_position = tuple(late - early for late, early in zip(after.accepted_by_position, padded, strict=False))
    return Counters(
        _difference(before.rounds, after.rounds),
        _difference(before.drafted, after.drafted),
        _difference(before.accepted, after.accepted),
        by_position,
    )


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def _number(text: str) -> int | None:
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    return int(value) if value.is_integer() and value <= _MOST else None


@dataclass
class Tally:
    """Sums over the requests of a server so far. A sum is `None` while no answer has reported it."""

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
    """Steps without a draft; `None` once an answer did not report them."""
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
        """Whether a server's counters over its whole life are these sums; `None` where either is not reported.

        Rounds are compared where the answers report them.
        """
        if counted.drafted is None or self.drafted is None:
            return None
        same = (counted.drafted, counted.accepted) == (self.drafted, self.accepted)
        return same and self.rounds in (None, counted.rounds)

    def most_drafted(self, *counts: int | None) -> int | None:
        """Return the largest of these counts of draft tokens and the sum here; `None` where none is reported."""
        return max((count for count in (self.drafted, *counts) if count is not None), default=None)


def _sum(total: int | None, more: int | None) -> int | None:
    return total if more is None else (total or 0) + more
