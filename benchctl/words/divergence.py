"""What is said of the answers to a prompt: their class, and where and why they diverge."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchctl.text import counted, plural
from benchctl.words import numbers

if TYPE_CHECKING:
    from benchctl.analysis.losslessness import Reason

FLAWS_NAMED = 2
"""Records that the reason of a prompt names."""

PROMPTS = {
    "prompts-differ": "The rendered prompt is not the same in every arm and block.",
    "repeated-otherwise": "Asked again at the end of its process, {arm} answers otherwise (requests between: "
    "{requests}).",
    "sampled": "The answers are sampled, not greedy: a different answer may also be the target's own, and "
    "`benchctl verify-sampling` compares their distributions.",
    "over-limit": "The answer has {count} tokens, and {limit} were asked for.",
    "cut-short": "The answer was cut off as too long after {count} tokens, and {limit} were asked for.",
    "beyond-end": "The answer goes on for {count} tokens after an end token ({token}).",
    "no-end": "The answer stopped after token {token}, which ends none of this model's.",
    "other-text": "The tokens are the target's own, and the text is another.",
    "never-by-noise": "No noise of the target does that: its own answers never do.",
    "constrained": "The answers differ, and `{constraint}` constrains them: what the target scores without that "
    "constraint does not show which of them is its own.",
    "invalid-alone": "The answer does not keep the form that its request asks for, and the target's own does.",
    "replayed": "The answers differ, and every token of the arm's is the target's likeliest in the arm's own batches.",
    "degenerate-target": "The target's own answer is degenerate: it {fault}; the arm's differs.",
    "degenerate-alike": "The target's own answer is degenerate: it {fault}.",
    "degenerate": "The arm's answer {fault}; the target's own is sound.",
    "degenerate-arm": "The answer {fault}.",
    "other-ending": "The answer differs in length or finish reason, with no token to score.",
    "one-sided-ids": "The texts are equal, but only one side has token ids.",
    "counts-differ": "The texts are equal, and the server's counts of their tokens are not: {baseline} for the "
    "baseline, {arm} for the arm. No token ids show which is right.",
    "equal-but-gap": "The texts and the numbers of tokens are equal in every block; {gap}.",
    "equal-texts": "The texts are equal in every block; token ids are absent on both sides.",
    "equal": "Text and tokens are equal in every block.",
}
"""The reasons of a prompt's class that are a sentence of their values."""


def prompt_sentence(reason: Reason) -> str:
    """Return a reason of a prompt's class as a sentence."""
    values: dict[str, Any] = reason.values
    if reason.code == "flawed":
        shown = str(values["flaws"]).split("\n")
        return " ".join(shown[:FLAWS_NAMED]) + _and_more(len(shown) - FLAWS_NAMED)
    if reason.code == "unstable":
        differ = plural(values["differing"], "differs", "differ")
        later = f"{values['differing']} of its {values['later']} later answers {differ} from the first"
        return f"The baseline does not reproduce its own answer from block to block: {later}."
    if reason.code == "replay-deviates":
        return f"{deviation(values)}."
    if reason.code in _DIVERGENCES:
        return f"The answer differs from {values['unit']} {values['index']} on{_DIVERGENCES[reason.code](values)}."
    return PROMPTS[reason.code].format(**values)


def _not_explained(values: dict[str, Any]) -> str:
    return f"; noise and a fault are both possible: {values['lacking']}"


def _not_the_baselines(values: dict[str, Any]) -> str:
    choice = "the arm's token" if values["likeliest"] == "arm" else "a third token"
    return (
        f", but the target alone, token by token, chooses {choice} there: it does not reproduce the baseline's answer"
    )


def _tie(_: dict[str, Any]) -> str:
    return (
        ", an exact tie: the target alone gives both tokens the same probability, and greedy decoding may choose either"
    )


def _near_tie(values: dict[str, Any]) -> str:
    noise = f", a near-tie, compatible with the target's noise: {_margin_and_noise(values)}"
    if not values["chosen"]:
        return noise
    return f"{noise}. Reading {_tokens_at_once(values)} at once, the target alone chooses the arm's token"


def _not_noise(values: dict[str, Any]) -> str:
    return f" and numeric noise does not explain it: {_margin_and_noise(values)}"


_DIVERGENCES: dict[str, Callable[[dict[str, Any]], str]] = {
    "not-explained": _not_explained,
    "not-the-baselines": _not_the_baselines,
    "tie": _tie,
    "near-tie": _near_tie,
    "not-noise": _not_noise,
}
"""The reasons of a divergence, each the rest of a sentence that begins with its place."""


def _margin_and_noise(values: dict[str, Any]) -> str:
    limit = "at least " if values["margin_is_least"] else ""
    prefers = f"the target alone prefers its own token by {limit}{numbers.nats(values['margin'])} nats there"
    if values["invariant"] is not None:
        return f"{prefers}; {values['invariant']} promises the same numbers in any batch"
    if values["width"] == 1:
        return f"{prefers}; no draft had been verified before it, so that nothing was read at once"
    instead = "token by token" if values["by_prefill"] else "one"
    reading = f"reading {_tokens_at_once(values)} at once instead of {instead}"
    if values["floor"] == 0:
        return f"{prefers}; {reading} changes nothing ({values['method']})"
    return (
        f"{prefers}; {reading} changes decisions at margins up to {numbers.nats(values['floor'])} ({values['method']})"
    )


def _tokens_at_once(values: dict[str, Any]) -> str:
    return "everything" if values["by_prefill"] else f"{values['width']} tokens"


def deviation(values: dict[str, Any]) -> str:
    """Return a token that the target does not choose in the arm's batch, with its place."""
    where = f"step {values['step']}, a batch of {counted(values['width'], 'token')}"
    if not values["step"]:
        where = "the reading of the prompt"
    if values["draft"] is not None:
        where += f": it accepted draft token {values['draft']}"
    else:
        where += ": it took the target's own after the draft" if values["width"] > 1 else ""
    chooses = f"chooses {values['likeliest']} there, since the request forbids the other"
    if values["gap"] is not None:
        chooses = f"prefers {values['likeliest']} by {numbers.nats(values['gap'])} nats there"
    return f"Token {values['index']} is {values['token']}, and the target alone {chooses} ({where})"


def _and_more(count: int) -> str:
    return f" And {count} more." if count > 0 else ""
