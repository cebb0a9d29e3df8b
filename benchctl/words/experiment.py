"""The experiment that would most likely change a decision, as a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchctl.analysis.advice import ENOUGH_PROMPTS
from benchctl.text import listed
from benchctl.words import numbers

if TYPE_CHECKING:
    from benchctl.analysis.decision_results import Experiment, ExperimentKind

_EXPERIMENTS: dict[ExperimentKind, str] = {
    "quiet machine": "Repeat this once `benchctl engines doctor` finds nothing that disturbs:",
    "unfinished": "This run is not finished. Finish it:",
    "three blocks": "Measure at least three repetitions: fewer say nothing of another run.",
    "complete blocks": "Measure more repetitions: too few are complete for an interval.",
    "scores": "Check the output of {arms}: faster, but it may not be the target's own.",
    "power": "Check the output of {arms} on more prompts: a fault would be noticed {power:.0f} times in 100; about "
    "{prompts:,} prompts are needed.",
    "enough prompts": "Measure at least {enough} prompts, or your own: {arms} is faster on these {prompts}.",
    "more prompts": "Measure more prompts, or your own: {arms} is faster on these; for others that is not known.",
    "blocks of an arm": "Measure more repetitions of {arms}: undecided so far, and the most likely to be faster.",
    "depth": "Try depth {depth} of {type}: {reason}.",
    "your prompts": "Try your own prompts: the results depend on them.",
    "repeating prompts": "Try prompts whose answers repeat their input (editing, summarising): there n-grams help.",
    "copying": "Try {type}, a drafter that costs next to nothing: {slower}.",
}


def sentence(experiment: Experiment) -> str:
    """Return what to measure next and why, and what to do before or after its command."""
    timed = "" if experiment.width_timed else ", unless that width runs another kernel"
    depth_reason = f"{numbers.ratio(experiment.predicted)} is predicted from the others{timed}"
    if experiment.predicted is None:
        depth_reason = f"the deepest so far, {listed(experiment.arms)}, is the fastest"
    text = _EXPERIMENTS[experiment.kind].format(
        arms=listed(experiment.arms),
        power=100 * (experiment.power or 0.0),
        prompts=experiment.prompts or 0,
        enough=ENOUGH_PROMPTS,
        type=experiment.type,
        depth=experiment.depth,
        reason=depth_reason,
        slower="every arm here is slower" if experiment.all_slower else "no arm here is shown to be faster",
    )
    if experiment.prompts_file is not None:
        return f'{text} {experiment.prompts_file} has lines of {{"prompt": "…"}}.'
    return text
