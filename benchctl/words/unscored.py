"""Why answers, or a divergence, were not scored, and how a noise floor was made: ends of sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchctl.analysis.losslessness import Reason

UNSCORED = {
    "not-verified": "its answers were not scored on the target alone (`benchctl verify-lossless` does)",
    "not-scored": "its answers were not scored",
    "offline": "its answers were not scored before, and --offline starts no engine",
    "divergence-not-verified": "benchctl verify-lossless has not replayed it",
    "divergence-offline": "it was not replayed before, and --offline starts no engine",
    "divergence-not-replayed": "it was not replayed",
    "divergence-failed": "it could not be replayed: {message}",
    "failed": "its answers could not be scored: {message}",
    "several-machines": "its answers come from several kinds of machines, and this machine's target may compute other "
    "values",
    "scores-changed": "{message}",
    "scores-of-another": "what was replayed is of another run, engine or model",
    "other-baseline": "what was replayed is of another baseline, {baseline}",
    "no-manifest": "the run has no manifest, so what it ran with is not known",
    "no-ids": "without token ids its answers cannot be scored",
    "no-width": "its verify width is not reported",
    "no-slots": "how many requests shared a batch is not reported",
    "not-reproduced": "scored token by token, the target alone diverges from the baseline's own answers at "
    "{diverged:,} of {places:,} places, so it did not compute what the run did",
    "no-shared-noise": "the noise that several requests in one batch add cannot be measured on this engine",
    "divergence-no-ids": "without token ids it cannot be scored",
    "divergence-at-end": "one answer ends there without an end token, so there is nothing to score",
    "divergence-no-width": "the arm's verify width is not reported",
    "no-margin": "the margin could not be measured",
    "replay-shared": "several requests shared a batch",
    "replay-sampled": "answers are sampled",
    "replay-baseline-speculates": "the baseline speculates itself",
    "replay-cached": "the prompt cache was on, and from where a request read its prompt is not recorded",
    "replay-unknown-steps": "they are not recorded",
    "replay-no-steps": "the steps of the others are not recorded",
    "replay-unfinished": "the time was over (`benchctl verify-lossless` continues)",
    "replay-partial": "{replayed} of {of} answers were replayed: {reason}",
    "replay-control": "the control is not exact, since {deviating} of {of} answers of the baseline do not replay",
    "replay-control-partial": "{replayed} of {of} answers of the baseline, the control, were replayed: {reason}",
}
"""Why answers, or a divergence, were not scored; each the end of a sentence."""
NOISE_METHODS = {
    "few": "only {count} prefixes were measured; {needed} are needed",
    "unchanged": "none of {count} prefixes changed at all",
    "quantile": "exceeded by noise in 1 of {runs} runs of {tokens:,} tokens; by ",
}


def unscored(reason: Reason) -> str:
    """Return why something was not scored, as the end of a sentence."""
    values: dict[str, Any] = reason.values
    if reason.code == "few-prefixes":
        several = " or ".join(str(values["widths"]).split())
        shape = "in another shape" if values["by_prefill"] else f"{several} tokens at a time"
        shape += f" of each of {values['slots']} requests in one batch" if values["slots"] > 1 else ""
        return (
            f"the noise of reading {shape} was measured at {values['measured']:,} prefixes; {values['needed']:,} "
            "are needed"
        )
    if reason.code == "no-noise":
        return f"the noise is not known ({values['method']})"
    return UNSCORED[reason.code].format(**values)


def noise_method(method: Reason, *, by_prefill: bool) -> str:
    """Return how a noise floor was made, with its quantile and its sample."""
    values: dict[str, Any] = method.values
    text = NOISE_METHODS[method.code].format(**values)
    if method.code == "quantile":
        sample = f"{values['count']} prefixes"
        if values["margin"] is not None:
            sample = f"{values['small']} of {sample}, those at margins up to {values['margin']:g} nat,"
        text += f"{sample} {values['changed']} changed"
    return f"{text}; of reading everything at once, since this engine cannot read a given width" if by_prefill else text
