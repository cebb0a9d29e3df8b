"""What was asked after a run, in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchctl.text import listed, one_line, plural

if TYPE_CHECKING:
    from benchctl.analysis.asked import Asked

STOPPED = {
    "decided": "Every arm has a verdict; more evidence on one: --more --arm NAME.",
    "prompts": "There are no further prompts of these tasks; name a file: --prompts FILE.",
    "budget": "The time was over; the same command goes on where it stopped.",
    "useless": "No further prompt decides what is undetermined.",
}
"""Why nothing more was asked."""


def asked_sentence(asked: Asked) -> str:
    """Return how many prompts of which suites were asked, and why no more."""
    if not asked.prompts:
        return f"No further prompt was asked. {STOPPED[asked.stopped]}"
    suites = listed(f"{count} of {one_line(name, 80)}" for name, count in asked.suites.items())
    arms = listed(["the baseline", *map(one_line, asked.arms)])
    count = f"{asked.prompts} further {plural(asked.prompts, 'prompt')}"
    return f"Asked {count} ({suites}), untimed: {arms}. {STOPPED[asked.stopped]}"
