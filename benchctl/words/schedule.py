"""What a schedule of draft depths says, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchctl.text import listed
from benchctl.words import numbers

if TYPE_CHECKING:
    from benchctl.analysis.conditions.schedule import LoadStep, MixedLoad


def steps(of_load: Sequence[LoadStep]) -> list[str]:
    """Return a sentence for each range of requests in flight."""
    return [
        f"{load_range(step)}: no speculation; no depth is shown to help."
        if step.gain is None
        else f"{load_range(step)}: draft depth {step.depth} ({step.arm}: {numbers.ratio(step.gain)} the throughput of "
        f"no speculation at {step.first})."
        for step in of_load
    ]


def load_range(step: LoadStep) -> str:
    """Return how many requests in flight a step is for."""
    if step.first == step.last:
        return f"{step.first} request{'' if step.first == 1 else 's'} in flight"
    return f"{step.first} to {step.last} requests in flight"


def mixed(load: MixedLoad) -> str:
    """Return what an arm serves where each concurrency has as many tokens to serve."""
    ends = f" (95 %: {numbers.interval(load.interval)})" if load.interval else " (no interval: too few blocks)"
    return (
        f"Over concurrency {listed(load.concurrencies)}, as many tokens at each: {load.arm} serves "
        f"{numbers.ratio(load.ratio)} what {load.against} does{ends}."
    )
