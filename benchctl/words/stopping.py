"""What `blocks: auto` came to, in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from benchctl.text import listed, plural, spoken

if TYPE_CHECKING:
    from benchctl.analysis.results import Stopping
    from benchctl.data.manifest import DecidedArm, StopReason

_REASONS: dict[StopReason | None, str] = {
    "decided": "every arm is decided",
    "reached": "every arm's interval is within ±{half_width:g} %",
    "maximum": "the recipe allows no more",
    "budget": "another one would not fit into the budget of {budget}",
    "no pairs": "no arm has an answer that can be compared with the baseline's",
    None: "the run is not finished",
}
_SPEEDS = {"faster": "faster", "slower": "slower", "within": "within ±5 %"}


def stop_reason(reason: StopReason | None, *, half_width: float | None, max_blocks: int, minutes: float | None) -> str:
    """Return why a run ended, as a part of a sentence; the other arguments are the rule of its recipe."""
    values = {"half_width": 100 * (half_width or 0), "max_blocks": max_blocks, "budget": spoken(60 * (minutes or 0))}
    return _REASONS[reason].format(**values)


def decisions(decided: Mapping[str, DecidedArm]) -> dict[str, str]:
    """Return what was decided of every arm, and when: `slower after 3 blocks`."""
    return {name: f"{_SPEEDS[arm.speed]} after {arm.blocks} repetitions" for name, arm in decided.items()}


def first_sentence(stopping: Stopping) -> str:
    """Return after how many blocks the run ended and why."""
    reason = stop_reason(
        stopping.reason,
        half_width=stopping.half_width,
        max_blocks=stopping.max_blocks,
        minutes=stopping.budget_min,
    )
    repetitions = plural(stopping.blocks, "repetition")
    return f"Stopped after {stopping.blocks} {repetitions} ({spoken(stopping.spent_s)}): {reason}."


def sentence(stopping: Stopping) -> str:
    """Return all of it: why the run ended, and what was decided of each arm or how wide the widest interval is."""
    first = first_sentence(stopping)
    if stopping.half_width is None:
        parts = [f"{arm} is {decision}" for arm, decision in decisions(stopping.decided).items()]
        rivals = stopping.rivals
        undecided = [arm for arm in stopping.half_widths if arm not in stopping.decided and arm not in rivals]
        parts += [f"{listed(undecided)} {plural(len(undecided), 'is', 'are')} undecided"] if undecided else []
        parts += [f"which of {listed(rivals)} is the fastest is open"] if len(rivals) > 1 else []
        parts += [f"{rivals[0]} is faster; whether it is the fastest is open"] if len(rivals) == 1 else []
        return f"{first} {'; '.join(parts)}." if parts else first
    widest = max((width for width in stopping.half_widths.values() if width is not None), default=None)
    if widest is None:
        return first
    requested = f"±{100 * stopping.half_width:g} % was requested"
    return f"{first} The widest interval is ±{100 * widest:.1f} %, {requested}."
