"""What is said of answers that must keep a form: JSON, a schema, a grammar, calls of tools, stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchctl.text import first, plural
from benchctl.words import numbers

if TYPE_CHECKING:
    from benchctl.analysis.losslessness import InvalidAnswer, LogprobCheck, Validity

RULES = {
    "json": "it is no JSON",
    "schema": "it breaks its schema",
    "regex": "it does not match its expression",
    "choice": "it is none of its choices",
    "stop": "it goes on past its stop string",
    "no-call": "it calls no tool",
    "call-json": "its call is no JSON",
    "call-name": "it calls a tool that was not offered",
    "call-arguments": "the arguments of its call break their schema",
}
"""What an invalid answer does, by its code."""
PROMPTS_NAMED = 6


def broken(answer: InvalidAnswer) -> str:
    """Return an invalid answer with what is wrong and where it leaves the valid answer, without a full stop."""
    detail = f" ({answer.detail})" if answer.detail else ""
    return f"{answer.task}/{answer.prompt_idx}: {RULES[answer.code]}{detail}{_place(answer)}"


def _place(answer: InvalidAnswer) -> str:
    if answer.index is None:
        return ""
    step = ""
    if answer.step is not None:
        step = f" (draft token {answer.draft} of step {answer.step})" if answer.draft else f" (step {answer.step})"
        step = step if answer.step else " (the reading of the prompt)"
    return f"; it leaves the baseline's valid answer at token {answer.index}{step}"


def violation(validity: Validity) -> str:
    """Return that an arm's answers are invalid where the target alone is valid, with the first of them."""
    prompts = validity.arm_alone
    where = f"at {len(prompts)} {plural(len(prompts), 'prompt')} ({first(prompts, PROMPTS_NAMED)})" if prompts else ""
    sentence = f"Invalid where the target alone is valid {where}".strip()
    if validity.broken is not None:
        return f"{sentence}. The engine was to enforce this rule at every token. {broken(validity.broken)}."
    shown = f" {broken(validity.first)}." if validity.first is not None else ""
    return f"{sentence}; p = {validity.p_adjusted or validity.p:.2g} by McNemar's exact test.{shown}"


def logprobs(check: LogprobCheck | None) -> str:
    """Return what the log probabilities of answers show, in a few words; empty where none were asked."""
    if check is None:
        return ""
    faults = []
    if check.absent:
        faults.append(f"absent for {numbers.count(check.absent)} tokens")
    if check.zero:
        faults.append(f"exactly 0 for {numbers.count(check.zero)} tokens that the baseline gives less")
    if faults:
        return " and ".join(faults)
    largest = "" if check.largest is None else f", at most {check.largest:.2g} nats off the baseline's"
    return f"{numbers.count(check.tokens)} tokens{largest}"


def note(rows: Sequence[Validity]) -> str:
    """Return what the columns of the table mean, as far as it has any rows."""
    if not rows:
        return ""
    sentences = [
        "Cut: ended by max_tokens, so neither valid nor invalid.",
        "Not checked: a grammar without a regex beside it, tools that were not called, a schema that cannot be tested.",
    ]
    if any(row.logprobs is not None and row.logprobs.wrong for row in rows):
        sentences.append("Log probabilities that are absent or exactly 0 are a fault of the server's, not of the text.")
    return " ".join(sentences)
