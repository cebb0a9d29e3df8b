"""What the target takes to verify several tokens at once: where that jumps or falls, and the depths that follow.

Engines take other kernels from some width on, on GPUs above all, so that the best depth is often one behind a fall, or
the last one before a jump.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from benchctl.analysis.round_results import UnitCost

CLIFF = 1.25
"""A pass that takes so many times as long as that of a token less is a cliff, if the next wider pass does, too; a fall
the other way round."""
ALIKE = 1.15
"""Passes over 3 and more tokens that take at most so many times as long as one over 2 cost like it."""
LEVEL = 4
"""Where this many tokens at once cost what 2 do, the first draft token is the only one that is paid for."""
TIMED = 5
"""Passes of a width from which on its time counts."""


@dataclass(frozen=True)
class Edge:
    """A width at which the cost of a verify changes by more than `CLIFF`."""

    kind: Literal["cliff", "fall", "first"]
    """`first`: the jump from a step to a verify, where wider ones cost no more."""
    width: int
    steps: float
    before: float
    """Steps of the width before it."""
    depth: int
    """The draft depth that follows from it: the last before a cliff, the first behind a fall, the last of the level."""


def edges(widths: Sequence[UnitCost]) -> list[Edge]:
    """Return every width at which the cost of a verify jumps, by more than the width grows, or falls."""
    timed = [unit for unit in widths if unit.count >= TIMED]
    named = _first(timed)
    for low, high, wider in zip(timed, timed[1:], [*timed[2:], *timed[-1:]], strict=False):
        width, costs = int(high.width), (high.steps, low.steps)
        if high.width != low.width + 1:
            continue
        if width > 2 and min(high.steps, wider.steps) / low.steps > max(CLIFF, high.width / low.width):
            named.append(Edge("cliff", width, *costs, depth=width - 2))
        elif low.steps / max(high.steps, wider.steps) > CLIFF:
            named.append(Edge("fall", width, *costs, depth=width - 1))
    return named


def _first(timed: Sequence[UnitCost]) -> list[Edge]:
    if len(timed) < 2 or (timed[0].width, timed[1].width) != (1, 2) or timed[1].steps / timed[0].steps <= CLIFF:
        return []
    low, high = timed[1].steps / CLIFF, timed[1].steps * ALIKE
    last = [*takewhile(lambda unit: low <= unit.steps <= high, timed[1:])][-1]
    if last.width < LEVEL:
        return []
    return [Edge("first", 2, timed[1].steps, timed[0].steps, depth=int(last.width) - 1)]


def cliffs_and_falls(widths: Sequence[UnitCost]) -> list[str]:
    """Return a sentence for every edge."""
    return [_sentence(edge) for edge in edges(widths)]


def _sentence(edge: Edge) -> str:
    costs = f"{edge.steps:.2f} target steps, and {edge.before:.2f} at {edge.width - 1}"
    if edge.kind == "first":
        return (
            f"Verify width 2 is a cliff: {costs}; up to width {edge.depth + 1} it stays about there, so a draft of "
            f"{edge.depth} tokens is verified at the price of one."
        )
    if edge.kind == "cliff":
        return f"Verify width {edge.width} is a cliff: {costs}; a draft of {edge.depth} tokens stays below it."
    drafts = f"a draft of {edge.depth} tokens costs less to verify than one of {edge.depth - 1}"
    return f"Verify width {edge.width} is a fall: {costs}; {drafts}."


def timed_widths(units: Sequence[UnitCost], baseline: str) -> dict[int, float]:
    """Return what the target takes to verify so many tokens, in steps, where that was timed separately."""
    curve = [unit for unit in units if (unit.arm, unit.what) == (baseline, "verify") and unit.count >= TIMED]
    return {int(unit.width): unit.steps for unit in curve if unit.width == int(unit.width)}
