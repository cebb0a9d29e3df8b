"""What a report tells of forks: a row each, the noise they were judged by, and how margins are written."""

from __future__ import annotations

from dataclasses import dataclass

from benchctl.analysis.results import Analysis, Fork, NoiseFloor, PromptClass
from benchctl.data.store import RunData
from benchctl.reports.numbers import ABSENT
from benchctl.text import one_line

STARTS = 12
"""Characters shown of how an answer went on."""


@dataclass(frozen=True)
class ForkRow:
    """A fork that was scored, of one arm and prompt."""

    arm: str
    prompt: str
    fork: Fork
    outcome: PromptClass


def fork_rows(analysis: Analysis) -> list[ForkRow]:
    """Return every fork with a margin, in the order of arms and prompts."""
    return [
        ForkRow(one.arm, f"{one.task}/{one.prompt_idx}", one.fork, one.outcome)
        for arm in analysis.losslessness
        for one in arm.comparisons
        if one.fork is not None and one.fork.margin is not None
    ]


def noise_rows(analysis: Analysis) -> list[NoiseFloor]:
    """Return the noise at every width that a fork was judged at, narrowest first."""
    found = {noise.width: noise for arm in analysis.losslessness for noise in arm.noise}
    return [found[width] for width in sorted(found)]


def replayed(run: RunData) -> str:
    """Say whether the target alone, launched once more, says the baseline's answers again."""
    if run.replays is None:
        return ""
    places = sum(one.places for one in run.replays.decoded)
    same = places - sum(len(one.others) for one in run.replays.decoded)
    return f"Token by token, the target alone says the baseline's own token at {same} of {places} places."


def nats(value: float | None) -> str:
    """A margin or a noise floor with three decimals; very small ones with one digit (`2e-06`)."""
    if value is None:
        return ABSENT
    return f"{value:.3f}" if value == 0 or abs(value) >= 0.001 else f"{value:.0e}"


def margin(fork: Fork, shape: str) -> str:
    """The margin in one shape (`0.102`, `-0.021 (5) ←`): the width where the arm's counts, an arrow where it flips."""
    found = next((one for one in fork.shapes if one.shape == shape), None)
    if found is None:
        return ABSENT
    least = "≥ " if shape == "decode" and fork.margin_is_least else ""
    width = f" ({found.width})" if shape == "verify" else ""
    return f"{least}{nats(found.margin)}{width}{' ←' if found.prefers == 'arm' else ''}"


def start(text: str) -> str:
    """The first characters of how an answer went on, on one line."""
    return one_line(text, STARTS) or "(end)"
