"""What each depth needs to break even, and what lies off the curve, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchctl.text import percent
from benchctl.words import numbers

if TYPE_CHECKING:
    from benchctl.analysis.round_results import BreakEven, Need, Outcome, Point

_ALL_ACCEPTED = 0.999
"""At this acceptance per draft token (α), or above it, every draft token counts as accepted."""
_NOTES = {
    "not reported": "{name}: its rounds or its speed are not reported, so it is not on the curve.",
    "depth not measured": "{name}: this depth was not measured, so the reference is left out.",
    "outside": "{name}: {tokens:g} tokens per round are outside the measured range.",
    "pessimistic": "This target keeps a recurrent state. Acceptance drawn at random, token by token, rejects a part of "
    "a draft more often than a real draft with the same mean, and such a round costs more: the curve is pessimistic.",
}


def statements(result: BreakEven) -> list[str]:
    """Return the break-even of each depth, points off the curve, and what could not be placed, a sentence each."""
    return [*needs(result), *filter(None, map(off_curve, result.points)), *notes(result)]


def needs(result: BreakEven) -> list[str]:
    """Return the break-even of each depth."""
    return [_need(need, [row for row in result.points if row.belongs_to(need.depth)]) for need in result.needs]


def notes(result: BreakEven) -> list[str]:
    """Return what has no place on the curve, and how the curve is to be read."""
    return [_NOTES[note.code].format(**note.values) for note in result.notes]


def off_curve(point: Point) -> str | None:
    """Return that a real draft's interval does not hold the curve; `None` where it does, or where this is not known."""
    if point.curve is None or point.curve_holds is not False:
        return None
    speed = numbers.ratio(point.curve)
    return f"{point.name}: the curve gives {speed} at its {point.tokens:.2f} tokens per round, outside its interval."


def _need(need: Need, curve: Sequence[Point]) -> str:
    if need.outcome == "not measured":
        return f"Depth {need.depth}: fewer than two points were measured."
    if need.alpha is None or need.alpha_low is None or need.alpha_high is None or need.tokens is None:
        sentence = f"Depth {need.depth} {_without_crossing(need.outcome, curve)}"
    else:
        ends = f"{percent(need.alpha_low)} to {percent(need.alpha_high)}; {need.tokens:.2f} tokens per round"
        sentence = f"Depth {need.depth} breaks even at α {percent(need.alpha)} ({ends})"
    real = "" if need.measured is None else f"; the real draft's α is {percent(need.measured)}"
    return f"{sentence}{real}."


def _without_crossing(outcome: Outcome, curve: Sequence[Point]) -> str:
    """Return the predicate of the sentence of a depth that is not shown to cross 1."""
    if outcome == "always pays":
        return "pays at every measured acceptance"
    top, speeds = curve[-1], [point.speedup for point in curve]
    reached = f"up to α {percent(top.alpha)}"
    if outcome == "never pays":
        reached = "even where every draft token is accepted" if top.alpha >= _ALL_ACCEPTED else reached
        return f"does not pay here, {reached}: {top.speedup:.2f}×"
    between = f"{min(speeds):.2f} to {max(speeds):.2f}× {reached}"
    return f"is undecided: {between}, not all shown to lie on the same side of 1, nor on both"
