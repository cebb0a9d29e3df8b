"""The experiment that would most likely change a decision, as a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchctl.analysis.advice import ENOUGH_PROMPTS
from benchctl.text import listed
from benchctl.words import numbers

if TYPE_CHECKING:
    from benchctl.analysis.results import Experiment, ExperimentKind

_EXPERIMENTS: dict[ExperimentKind, str] = {
    "three blocks": "More blocks: below three nothing is known of another run.",
    "complete blocks": "More blocks: too few are complete for an interval.",
    "scores": "Losslessness of {arms}: faster, but it is undetermined whether the output is the target's own.",
    "power": "Losslessness of {arms}: no violation found, with a power of {power:.0f} %; about {prompts:,} prompts are "
    "needed.",
    "enough prompts": "At least {enough} prompts, or your own: {arms} is faster for these {prompts}.",
    "more prompts": "More prompts, or your own: {arms} is faster for these, and for others like them it is open.",
    "blocks of an arm": "More blocks of {arms} alone: of what is undecided it is the most likely to be shown faster.",
    "depth": "Depth {depth} of {type}, which was not measured: {predicted} is predicted {basis} (inferred).",
    "your prompts": "Your own prompts: acceptance, and with it all of this, depends on the text.",
    "repeating prompts": "Prompts whose answers repeat what they were given: copied drafts cost next to nothing, and "
    "pay there first.",
    "copying": "A drafter that costs next to nothing, {type}: {slower}.",
}


def sentence(experiment: Experiment) -> str:
    """Return what to measure next and why, and what to do before or after its command."""
    timed = "" if experiment.width_timed else ", unless that width runs another kernel"
    text = _EXPERIMENTS[experiment.kind].format(
        arms=listed(experiment.arms),
        power=100 * (experiment.power or 0.0),
        prompts=experiment.prompts or 0,
        enough=ENOUGH_PROMPTS,
        type=experiment.type,
        depth=experiment.depth,
        predicted=numbers.ratio(experiment.predicted),
        basis=f"from the others{timed}",
        slower="every arm here is slower" if experiment.all_slower else "no arm here is shown to be faster",
    )
    if experiment.prompts_file is not None:
        return f'{text} Write them to {experiment.prompts_file}, a line each: {{"prompt": "…"}}.'
    return f"{text} Then verify that run: `benchctl verify-lossless`." if experiment.kind == "power" else text
