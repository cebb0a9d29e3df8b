"""The rule of `blocks: auto`: when a run has measured enough, or may not go on."""

from __future__ import annotations

from benchctl.data.manifest import Stopped
from benchctl.recipes.schema import FIRST_LOOK, AutoBlocks


def why_stop(rule: AutoBlocks, blocks: int, spent_s: float, known: dict[str, float | None]) -> Stopped | None:
    """Return why a run of so many blocks ends here, `None` when it goes on."""
    if blocks >= FIRST_LOOK:
        if not known:
            return Stopped(reason="no pairs", half_widths=known)
        if all(width is not None and width <= rule.half_width for width in known.values()):
            return Stopped(reason="reached", half_widths=known)
    if blocks >= rule.max:
        return Stopped(reason="maximum", half_widths=known)
    if rule.budget_min is not None and blocks and spent_s * (blocks + 1) / blocks > 60 * rule.budget_min:
        return Stopped(reason="budget", half_widths=known)
    return None


def reason_in_words(rule: AutoBlocks, stopped: Stopped) -> str:
    """Say why a run ended, as a part of a sentence."""
    return {
        "reached": f"every arm's interval is within ±{100 * rule.half_width:g} %",
        "maximum": f"{rule.max} are the most that the recipe allows",
        "budget": f"another one would not fit into the budget of {rule.budget_min:g} min" if rule.budget_min else "",
        "no pairs": "no arm has an answer that can be compared with the baseline's",
    }[stopped.reason]
