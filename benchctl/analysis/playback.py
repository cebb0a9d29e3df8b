"""One answer as it arrived: which tokens came together, what was there at a moment, and how fast it went.

With speculation the tokens of a round arrive together: those that the target accepted, and the one that it adds itself.
Without, every token comes alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

TOGETHER = 0.25
"""Tokens that follow within this share of a plain decode step came from one round."""


@dataclass(frozen=True)
class Arrival:
    """What the client had at a moment; `at_s`: seconds since the request was sent."""

    at_s: float
    tokens: int


@dataclass(frozen=True)
class Piece:
    """Text that came at once."""

    at_s: float
    text: str
    tokens: int
    accepted: bool
    """Whether it is an accepted draft; the target's own token otherwise."""


@dataclass(frozen=True)
class Playback:
    """One answer of one arm, to be played back."""

    arm: str
    setting: str
    pieces: tuple[Piece, ...]
    drafted: int | None
    """By the engine's own counters; `None` where not reported."""
    accepted: int | None

    @property
    def text(self) -> str:
        """The whole answer."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def tokens(self) -> int:
        """Of the whole answer."""
        return sum(piece.tokens for piece in self.pieces)

    @property
    def end_s(self) -> float:
        """When the last token came."""
        return self.pieces[-1].at_s if self.pieces else 0.0

    def until(self, now_s: float) -> list[Piece]:
        """What had arrived `now_s` seconds after the request was sent."""
        return [piece for piece in self.pieces if piece.at_s <= now_s]

    def status(self, now_s: float) -> str:
        """Tokens and seconds so far, the decode rate, and how many of the tokens were drafted."""
        come = self.until(now_s)
        if not come:
            return "reading the prompt"
        tokens, drafted = sum(one.tokens for one in come), sum(one.tokens for one in come if one.accepted)
        first = sum(one.tokens for one in come if one.at_s == come[0].at_s)
        last = min(now_s, self.end_s)
        progress = f"{tokens} {'token' if tokens == 1 else 'tokens'} in {last:.2f} s"
        if last > come[0].at_s and tokens > first:
            progress += f", {(tokens - first) / (last - come[0].at_s):.1f} tok/s"
        return progress + (f", {drafted} drafted" if drafted else "")

    @property
    def acceptance(self) -> str:
        """The engine's own count as a clause; empty where nothing was drafted."""
        if not self.drafted or self.accepted is None:
            return ""
        return f"{self.accepted} of {self.drafted} drafted tokens accepted ({self.accepted / self.drafted:.0%})"


def plain_step_s(arrivals: Sequence[Arrival]) -> float:
    """Return the median time between two arrivals of an answer without speculation; 0 where it has fewer than two."""
    gaps = [later.at_s - earlier.at_s for earlier, later in pairwise(arrivals)]
    return median(gaps) if gaps else 0.0


def rounds(arrivals: Sequence[Arrival], step_s: float) -> Iterator[tuple[float, int, int]]:
    """Yield (time, tokens before, tokens after) of what came together; a round is complete with its last token."""
    before = 0
    for arrival, following in zip(arrivals, [*arrivals[1:], None], strict=True):
        if following is None or following.at_s - arrival.at_s > TOGETHER * step_s:
            yield arrival.at_s, before, arrival.tokens
            before = arrival.tokens


def pieces_of(arrivals: Sequence[Arrival], prefixes: Sequence[str], step_s: float, *, drafts: bool) -> list[Piece]:
    """Return the pieces of an answer. `prefixes`: its text after 0, 1, … tokens. `drafts`: whether the arm speculates.

    Of a round all tokens but the last were drafted; the very first comes from prefill.
    """
    found = []
    for at_s, before, after in rounds(arrivals, step_s if drafts else 0.0):
        drafted = range(max(before, 1), after - 1) if drafts else range(0)
        own = after - before - len(drafted)
        if before == 0 and own and drafted:
            found.append(Piece(at_s, prefixes[1], 1, accepted=False))
        if drafted:
            text = prefixes[drafted.stop][len(prefixes[drafted.start]) :]
            found.append(Piece(at_s, text, len(drafted), accepted=True))
        start = drafted.stop if drafted else before
        if after > start:
            found.append(Piece(at_s, prefixes[after][len(prefixes[start]) :], after - start, accepted=False))
    return found
