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
    grouped: bool
    """Whether it arrived at once with the token after it, as accepted drafts do; which ones were, no engine tells."""


@dataclass(frozen=True)
class Playback:
    """One answer of one arm, to be played back."""

    arm: str
    setting: str
    pieces: tuple[Piece, ...]
    speculates: bool
    drafted: int | None = None
    """From the answer's ledger, as the two below; `None` where the engine does not report it."""
    accepted: int | None = None
    accepted_by_position: tuple[int, ...] | None = None

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
        """Tokens and seconds so far, and the decode rate."""
        come = self.until(now_s)
        if not come:
            return "reading the prompt"
        tokens = sum(piece.tokens for piece in come)
        first = sum(one.tokens for one in come if one.at_s == come[0].at_s)
        last = min(now_s, self.end_s)
        progress = f"{tokens} {'token' if tokens == 1 else 'tokens'} in {last:.2f} s"
        if last > come[0].at_s and tokens > first:
            progress += f", {(tokens - first) / (last - come[0].at_s):.1f} tok/s"
        return progress

    @property
    def acceptance(self) -> str:
        """The engine's own count as a clause; empty for an arm that does not speculate."""
        if not self.speculates:
            return ""
        if self.drafted == 0:
            return "nothing drafted"
        counts = self.accepted_by_position or ()
        accepted = sum(counts) if self.accepted is None and counts else self.accepted
        if accepted is None:
            return f"{'drafted and' if self.drafted is None else f'{self.drafted} drafted,'} accepted: not reported"
        places = ", ".join(str(place) for place, _ in enumerate(counts, start=1))
        by_position = f"{', '.join(map(str, counts))} at position {places}" if counts else ""
        if self.drafted is None:
            return f"{accepted} drafted tokens accepted{f' ({by_position})' if counts else ''}, drafted: not reported"
        share = "; ".join(filter(None, (f"{accepted / self.drafted:.0%}", by_position)))
        return f"{accepted} of {self.drafted} drafted tokens accepted ({share})"


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

    All tokens of a round but the last are grouped; the very first token of an answer comes from prefill.
    """
    found = []
    for at_s, before, after in rounds(arrivals, step_s if drafts else 0.0):
        group = range(max(before, 1), after - 1) if drafts else range(0)
        if before == 0 and group:
            found.append(Piece(at_s, prefixes[1], 1, grouped=False))
        if group:
            found.append(Piece(at_s, prefixes[group.stop][len(prefixes[group.start]) :], len(group), grouped=True))
        start = group.stop if group else before
        if after > start:
            found.append(Piece(at_s, prefixes[after][len(prefixes[start]) :], after - start, grouped=False))
    return found
