"""The scope of a verdict on an output, as a line."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchctl.analysis.losslessness import ENOUGH_POWER, Range, Scope, can_be_shown
from benchctl.analysis.scope import by_condition, weakest
from benchctl.text import one_line, percent, plural

if TYPE_CHECKING:
    from benchctl.analysis.output_results import Losslessness


def scope_sentence(scope: Scope, identical: Losslessness | None = None) -> str:
    """Return the scope as a line, with the limit and the power of an identical arm."""
    if scope.rate is not None:
        load = f"{scope.rate:g} requests a second"
    elif scope.concurrency is None:
        load = "requests at a time not reported"
    else:
        load = "one request at a time" if scope.concurrency == 1 else f"{scope.concurrency} requests at a time"
    answers = _lengths(scope.answer_tokens, "token")
    if scope.answer_tokens is None and scope.answer_characters is not None:
        answers = _lengths(scope.answer_characters, "character")
    parts = [
        "sampling not reported" if scope.temperature is None else
        f"temperature {scope.temperature:g}" if scope.temperature else "greedy",
        load,
        f"at most {scope.requests_per_process} {plural(scope.requests_per_process, 'request')} per process",
        f"prompts of {_lengths(scope.prompt_tokens, 'token')}" if scope.prompt_tokens else "prompt length not reported",
        f"answers of {answers}" if answers else "answer length not reported",
        f"prompt cache {'not reported' if scope.prompt_cache is None else 'on' if scope.prompt_cache else 'off'}",
        "first turn" if scope.turn == 1 else f"{scope.turn} turns",
    ]  # fmt: skip
    covered = f"Scope: {', '.join(parts)}."
    if identical is None or identical.differing_limit is None:
        return covered
    limit = f"at most {100 * identical.differing_limit:.2g} % of new prompts like these get another answer"
    return f"{covered} Where an arm is identical, {limit} (95 %; {_power(identical)})."


def _power(identical: Losslessness) -> str:
    """Return the replay of an identical arm or its power, or how to measure that, or why it cannot be."""
    stated = identical.stated
    if identical.replayed is not None:
        return "all its rounds replay exactly"
    if stated is not None:
        enough = stated.chance >= ENOUGH_POWER or not can_be_shown(stated)
        needed = "" if enough else f", {percent(ENOUGH_POWER)} with about {stated.prompts:,} prompts"
        return f"power {percent(stated.chance)}{needed}"
    if identical.power_lacking is not None:
        return f"power not measured: {identical.power_lacking}"
    return f"power not measured: `benchctl verify-lossless --arm {shlex.quote(one_line(identical.arm))}` measures it"


def _lengths(size: Range | None, unit: str) -> str:
    if size is None:
        return ""
    low, high = size
    return f"{high:,} {plural(high, unit)}" if low == high else f"{low:,} to {high:,} {unit}s"


def scope_lines(judged: Sequence[Losslessness]) -> list[str]:
    """Return a line for each condition of the judged arms: lengths span those of its arms, the power is the least."""
    assessed = [arm for arm in judged if arm.verdict != "not judged"]
    return [scope_sentence(scope, weakest(arms)) for scope, arms in by_condition(assessed, lambda arm: arm.scope)]
