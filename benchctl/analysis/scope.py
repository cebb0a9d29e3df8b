"""The scope of a verdict on an arm's output: what was looked at, from the records and the manifest alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from benchctl.analysis.cells import axes_of, identity_of, setup_of
from benchctl.analysis.conditions.split import is_greedy
from benchctl.analysis.losslessness import Range, Scope

if TYPE_CHECKING:
    from benchctl.analysis.frame import Frame
    from benchctl.analysis.output_results import Losslessness
    from benchctl.data.manifest import Manifest
    from benchctl.data.record import Record

T = TypeVar("T")


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
        prompts=int(frame.asked(arm).sum()),
        further=int((frame.asked(arm) & frame.further).sum()),
        blocks=frame.run_blocks,
        prompt_tokens=_range(records, lambda record: record.prompt_tokens),
        answer_tokens=tokens,
        answer_characters=None if tokens else _range(records, lambda record: len(record.content or "")),
        prompt_cache=prompt_cache(manifest, name),
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


def prompt_cache(manifest: Manifest | None, arm: str) -> bool | None:
    """Return what the adapter of an arm's engine recorded, or the recipe's own choice."""
    if manifest is None:
        return None
    identity = identity_of(manifest, arm)
    setup = setup_of(manifest, identity.setup if identity else None)
    chosen = (manifest.recipe.get("engine") or {}).get("prefix_caching")
    if (label := axes_of(manifest, arm).get("engine.prefix_caching")) is not None:
        chosen = label == "true"
    value = (setup or manifest).engine.details.get("prompt_cache", chosen)
    return value if isinstance(value, bool) else None


def by_condition(rows: Iterable[T], scope_of: Callable[[T], Scope | None]) -> list[tuple[Scope, list[T]]]:
    """Return the rows of each condition with the scope of all of them; those without a scope are left out."""
    conditions: dict[tuple[object, ...], tuple[list[Scope], list[T]]] = {}
    for row in rows:
        if (scope := scope_of(row)) is not None:
            scopes, alike = conditions.setdefault(_condition(scope), ([], []))
            scopes.append(scope)
            alike.append(row)
    return [(_joined(scopes), alike) for scopes, alike in conditions.values()]


def weakest(arms: Sequence[Losslessness]) -> Losslessness | None:
    """Return the identical arm of the least power."""
    identical = [arm for arm in arms if arm.verdict == "identical" and arm.differing_limit is not None]
    return min(identical, key=_strength, default=None)


def _strength(arm: Losslessness) -> float:
    """Return what orders identical arms by their evidence: none, a power, a replay of all rounds."""
    if arm.replayed is not None:
        return 2.0
    return arm.stated.chance if arm.stated else -1.0


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
    return min(low for low, _ in reported), max(high for _, high in reported)
