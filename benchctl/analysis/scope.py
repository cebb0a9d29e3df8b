"""The scope of a verdict on an arm's output: what was looked at, from the records and the manifest alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from benchctl.analysis.cells import identity_of
from benchctl.analysis.conditions.split import is_greedy
from benchctl.analysis.losslessness import DetectionPower, Range, Scope
from benchctl.text import percent, plural

if TYPE_CHECKING:
    from benchctl.analysis.frame import Frame
    from benchctl.analysis.results import Losslessness
    from benchctl.data.manifest import Manifest
    from benchctl.data.record import Record


def find_scope(frame: Frame, arm: int, process: Counter[tuple[str, int, int]]) -> Scope:
    """Return the scope of the verdict on an arm; `process`: requests by (arm, block, attempt), as `by_process`."""
    name, manifest = frame.arms[arm], frame.manifest
    identity = identity_of(manifest, name)
    records = [frame.records[row] for row in frame.rows(arm).tolist() if frame.answered[row]]
    tokens = _range(records, lambda record: record.n_predicted or (None if record.content else 0))
    return Scope(
        temperature=_temperature(manifest),
        concurrency=identity.concurrency if identity else None,
        rate=identity.rate if identity else None,
        requests_per_process=max((count for key, count in process.items() if key[0] == name), default=0),
        prompts=len(frame.prompts),
        blocks=len(frame.blocks),
        prompt_tokens=_range(records, lambda record: record.prompt_tokens),
        answer_tokens=tokens,
        answer_characters=None if tokens else _range(records, lambda record: len(record.content or "")),
        prompt_cache=_prompt_cache(manifest),
        turn=1,
    )


def by_process(records: Iterable[Record]) -> Counter[tuple[str, int, int]]:
    """Return how many requests every engine process was sent, by (arm, block, attempt)."""
    return Counter((record.label, record.key[0], record.attempt) for record in records)


def _range(records: Sequence[Record], size: Callable[[Record], int | None]) -> Range | None:
    """Return the least and the most of a size; `None` where a record does not report it."""
    sizes = [size(record) for record in records]
    reported = [number for number in sizes if number is not None]
    return (min(reported), max(reported)) if reported and len(reported) == len(sizes) else None


def _temperature(manifest: Manifest | None) -> float | None:
    if manifest is None:
        return None
    if is_greedy(manifest):
        return 0.0
    value = (manifest.recipe.get("sampling") or {}).get("temperature")
    return float(value) if isinstance(value, int | float) else None


def _prompt_cache(manifest: Manifest | None) -> bool | None:
    """Return what the engine's adapter recorded, or the recipe's own choice."""
    if manifest is None:
        return None
    chosen = (manifest.recipe.get("engine") or {}).get("prefix_caching")
    value = manifest.engine.details.get("prompt_cache", chosen)
    return value if isinstance(value, bool) else None


def scope_sentence(scope: Scope, limit: float | None = None, power: DetectionPower | None = None) -> str:
    """Return the scope as a line. `limit`: of an identical arm (`Losslessness.differing_limit`); `power`: its own."""
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
    if limit is not None:
        chance = f"power {percent(power.chance)}" if power else "power not measured"
        parts.append(f"identical arms differ on at most {100 * limit:.2g} % of prompts like these (95 %; {chance})")
    return f"Scope: {', '.join(parts)}."


def _lengths(size: Range | None, unit: str) -> str:
    if size is None:
        return ""
    least, most = size
    return f"{most:,} {plural(most, unit)}" if least == most else f"{least:,} to {most:,} {unit}s"


def scope_lines(judged: Sequence[Losslessness]) -> list[str]:
    """Return a line for each condition of the judged arms: lengths span those of its arms, the power is the least."""
    lines = []
    assessed = [arm for arm in judged if arm.verdict != "not judged"]
    kinds = dict.fromkeys(_condition(arm.scope) for arm in assessed if arm.scope)
    for kind in kinds:
        arms = [arm for arm in assessed if arm.scope and _condition(arm.scope) == kind]
        identical = [arm for arm in arms if arm.verdict == "identical" and arm.differing_limit is not None]
        weakest = min(identical, key=lambda arm: arm.stated.chance if arm.stated else -1.0, default=None)
        limit, power = (weakest.differing_limit, weakest.stated) if weakest else (None, None)
        lines.append(scope_sentence(_joined([arm.scope for arm in arms if arm.scope]), limit, power))
    return lines


def _condition(scope: Scope) -> tuple[object, ...]:
    return scope.temperature, scope.concurrency, scope.rate, scope.prompt_cache, scope.turn


def _joined(scopes: Sequence[Scope]) -> Scope:
    return scopes[0].model_copy(
        update={
            "requests_per_process": max(scope.requests_per_process for scope in scopes),
            "prompt_tokens": _span([scope.prompt_tokens for scope in scopes]),
            "answer_tokens": _span([scope.answer_tokens for scope in scopes]),
            "answer_characters": _span([scope.answer_characters for scope in scopes]),
        }
    )


def _span(sizes: Sequence[Range | None]) -> Range | None:
    reported = [size for size in sizes if size is not None]
    if len(reported) < len(sizes):
        return None
    return min(least for least, _ in reported), max(most for _, most in reported)
