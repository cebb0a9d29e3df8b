"""The axes of a recipe: `matrix` beside `arms`, expanded as GitHub expands one.

    matrix:
      models.draft: [{source: small.gguf}, {source: large.gguf}]     # or by name: {small: {source: …}, none: null}
      cache_type: [f16, q8_0]
      exclude: [{models.draft: large, cache_type: q8_0}]

Every combination is a setup: an engine with a pair of models, in which all arms are measured. What changes the target's
own computation (all but the draft) makes a group with a baseline of its own; an arm that takes no draft model is
measured once a group.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from benchctl.recipes.engine_spec import EngineSpec
from benchctl.recipes.groups import GroupKey
from benchctl.recipes.problems import KeyPath, Plain, did_you_mean, quoted
from benchctl.recipes.schema import MAX_ARM_NAME, NAME_PATTERN, Arm, Recipe, Setup
from benchctl.recipes.speculation import NEEDS_DRAFT_MODEL, takes_draft

Found = list[tuple[KeyPath, str]]

PREFIXES: dict[str, str] = {
    "models.target": "t_",
    "models.target.quantize": "t_",
    "models.draft": "d_",
    "models.draft.quantize": "d_",
    "cache_type": "kv_",
    "context_length": "ctx",
    "engine": "",
}
"""The axes, and what a label of each begins with in the names of arms; beside them any single key of `engine`."""
OF_THE_DRAFT = ("models.draft", "models.draft.quantize")
"""Axes that change the draft and not what the target computes."""
CONDITIONS = ("context_length",)
"""Axes that are conditions: a setup is the same under each."""
ARM = "arm"
"""In `exclude`: a pattern of arms; the other keys of the entry limit where they are left out."""
MAX_COMBINATIONS = 20_000
_UNSAFE = re.compile(r"[^A-Za-z0-9_.+]+")


@dataclass(frozen=True)
class Value:
    """A value of an axis."""

    label: str
    value: Plain
    place: KeyPath
    """Where in the file it is."""


@dataclass(frozen=True)
class Combination:
    """One value of every axis, by the axis."""

    values: Mapping[str, Value]
    without: tuple[str, ...] = ()
    """Patterns of arms that are excluded from it."""

    def filled(self, data: Mapping[str, Plain]) -> dict[str, Plain]:
        """Return a recipe's data with the values in their places."""
        found = {key: value for key, value in data.items() if key != "matrix"}
        for axis in sorted(self.values, key=len):  # a model before its quantization
            found = replaced(found, axis.split("."), self.values[axis].value)
        return found

    def in_file(self, path: KeyPath) -> KeyPath:
        """Return where in the file the value at a path of the filled-in data stands."""
        for axis in sorted(self.values, key=len, reverse=True):
            keys = tuple(axis.split("."))
            if path[: len(keys)] == keys:
                return (*self.values[axis].place, *path[len(keys) :])
        return path


def replaced(data: dict[str, Plain], keys: Sequence[str], value: object) -> dict[str, Plain]:
    """Return `data` with another value at a path of keys; a mapping is made where there is none."""
    if len(keys) == 1:
        return {**data, keys[0]: value}
    inner = data.get(keys[0])
    return {**data, keys[0]: replaced(inner if isinstance(inner, dict) else {}, keys[1:], value)}


def combinations_of(matrix: Plain) -> tuple[list[Combination], Found]:
    """Return what a file's `matrix` stands for, and what is wrong with it."""
    here: KeyPath = ("matrix",)
    if not isinstance(matrix, dict) or not matrix:
        return [], [(here, "expected a mapping such as {cache_type: [f16, q8_0]}.")]
    axes, problems = _axes({key: value for key, value in matrix.items() if key not in ("include", "exclude")})
    included, wrong = _entries(matrix, "include", axes)
    problems += wrong
    excluded, wrong = _entries(matrix, "exclude", axes)
    problems += wrong
    size = 1
    for values in axes.values():
        size *= len(values)
    if size > MAX_COMBINATIONS:
        problems.append((here, f"the axes have {size} combinations; at most {MAX_COMBINATIONS} are allowed."))
    if problems:
        return [], problems
    made = [Combination(dict(zip(axes, values, strict=True))) for values in itertools.product(*axes.values())]
    if not axes:
        made = []
    kept = [found for combination in made if (found := _excluded(combination, excluded)) is not None]
    kept = _include(kept, included, set(axes))
    if not kept:
        problems.append((here, "nothing is left to measure: every combination is excluded."))
    return kept, problems


def _axes(matrix: dict[str, Plain]) -> tuple[dict[str, list[Value]], Found]:
    axes: dict[str, list[Value]] = {}
    problems: Found = []
    for axis, values in matrix.items():
        place: KeyPath = ("matrix", axis)
        if not _known(axis):
            known = (*PREFIXES, "engine.threads", "include", "exclude")
            elsewhere = axis in ("concurrency", "rate", "temperature", "sampling.temperature")
            fix = " Write it as a list in its own place." if elsewhere else did_you_mean(axis, known)
            message = f"there is no axis of this name; known: {', '.join(PREFIXES)}, and keys of engine.{fix}"
            problems.append((place, message))
        elif not isinstance(values, list | dict) or not values:
            got = "an empty one" if values in ([], {}) else quoted(values)
            problems.append((place, f"expected a list of values, or a mapping of names to values; got {got}."))
        else:
            found, wrong = _values(axis, values, place)
            axes[axis], problems = found, problems + wrong
    for outer, inner in itertools.permutations(axes, 2):
        if inner.startswith(f"{outer}.") and outer not in ("models.target", "models.draft"):
            problems.append((("matrix", inner), f"{outer} is an axis already, and its values contain this key."))
    return axes, problems


def _known(axis: str) -> bool:
    parts = axis.split(".")
    return axis in PREFIXES or (len(parts) == 2 and parts[0] == "engine" and parts[1] != "kind" and bool(parts[1]))


def _values(axis: str, values: Plain, place: KeyPath) -> tuple[list[Value], Found]:
    if isinstance(values, dict):
        wrong: Found = [
            ((*place, name), "expected a name of letters, digits, '_', '.' and '+'.")
            for name in values
            if not re.fullmatch(NAME_PATTERN, name) or len(name) > 40
        ]
        return [Value(name, value, (*place, name)) for name, value in values.items()], wrong
    spelled = [json.dumps(value, sort_keys=True, default=str) for value in values]
    problems: Found = [
        ((*place, number), f"{quoted(value)} is here twice.")
        for number, value in enumerate(values)
        if spelled[number] in spelled[:number]
    ]
    labels = _shortened([_label(axis, value) for value in values])
    return [
        Value(label if labels.count(label) == 1 else f"{label}.{number + 1}", value, (*place, number))
        for number, (label, value) in enumerate(zip(labels, values, strict=True))
    ], problems


def _label(axis: str, value: Plain) -> str:
    """Return a short name for a value."""
    if value is None:
        return "as_is" if axis.endswith(".quantize") else "none"
    if axis == "cache_type" and isinstance(value, dict):
        return "+".join(_label("", part) for part in value.values()) or "default"
    if isinstance(value, dict):
        source = str(value.get("source", "")).rstrip("/").rpartition("/")[2]
        quantize = value.get("quantize")
        parts = [source.rpartition(":")[2].removesuffix(".gguf")]
        parts += [str(quantize.get("type", ""))] if isinstance(quantize, dict) else []
        if axis == "engine":
            binary = str(value.get("binary", "")).rpartition("/")[2]
            parts = [str(value.get("kind", "")), str(value.get("device", "")), binary]
        elif axis.endswith(".quantize"):
            parts = [str(value.get("type", "")), *sorted(map(str, value.get("tensors") or ()))]
        return _safe("+".join(part for part in parts if part))
    if isinstance(value, list):
        return _safe("+".join(map(str, value)))
    return _safe(str(value).lower() if isinstance(value, bool) else str(value))


def _safe(text: str) -> str:
    return _UNSAFE.sub("_", text).strip("_.+")[:40] or "unnamed"


def _shortened(labels: list[str]) -> list[str]:
    """Leave out what all labels begin with, up to the last separator: files of one model differ at their end."""
    named = [label for label in labels if label not in ("none", "as_is")]
    least, most = min(named, default=""), max(named, default="")  # what these share, all between them do
    shared = least[: next((at for at, (a, b) in enumerate(zip(least, most, strict=False)) if a != b), len(least))]
    shared = shared if len(named) > 1 else ""
    cut = max(shared.rfind(sign) for sign in "_.") + 1
    shortened = [label[cut:] if label in named else label for label in labels]
    return shortened if all(re.fullmatch(NAME_PATTERN, short) for short in shortened) else labels


def _entries(
    matrix: dict[str, Plain], which: str, axes: Mapping[str, list[Value]]
) -> tuple[list[tuple[KeyPath, dict[str, Plain]]], Found]:
    entries = matrix.get(which, [])
    if not isinstance(entries, list):
        return [], [(("matrix", which), f"expected a list of mappings, got {quoted(entries)}.")]
    found, problems = [], []
    for number, entry in enumerate(entries):
        place: KeyPath = ("matrix", which, number)
        if not isinstance(entry, dict) or not entry:
            problems.append((place, f"expected a mapping such as {{cache_type: q8_0}}, got {quoted(entry)}."))
            continue
        for key, value in entry.items():
            if which == "exclude" and key == ARM:
                continue
            if which == "exclude" and key in axes and not any(_is(known, value) for known in axes[key]):
                labels = [known.label for known in axes[key]]
                message = f"no value of this axis is {quoted(value)}; they are called {', '.join(labels)}."
                problems.append(((*place, key), message + did_you_mean(value, labels)))
            elif key not in axes and (which == "exclude" or not _known(key)):
                problems.append(((*place, key), f"there is no axis of this name.{did_you_mean(key, (*axes, ARM))}"))
        found.append((place, entry))
    return found, problems


def _is(value: Value, requested: Plain) -> bool:
    """Whether an entry matches a value: by its label, its whole value, or some of its keys."""
    if isinstance(requested, dict) and isinstance(value.value, dict):
        return all(key in value.value and value.value[key] == part for key, part in requested.items())
    return requested == value.value or (requested is not None and str(requested) == value.label)


def _excluded(one: Combination, entries: Sequence[tuple[KeyPath, dict[str, Plain]]]) -> Combination | None:
    without: list[str] = []
    for _, entry in entries:
        if all(_is(one.values[axis], value) for axis, value in entry.items() if axis != ARM):
            if ARM not in entry:
                return None
            without.append(str(entry[ARM]))
    return replace(one, without=tuple(without))


def _include(
    made: list[Combination], entries: Sequence[tuple[KeyPath, dict[str, Plain]]], axes: set[str]
) -> list[Combination]:
    """Add the entries of `include`: to every combination that has their values, else as one more."""
    extra: list[Combination] = []
    for place, entry in entries:
        own = {axis: Value(_label(axis, value), value, (*place, axis)) for axis, value in entry.items()}
        fits = [
            number
            for number, one in enumerate(made)
            if all(axis not in axes or _is(one.values[axis], value) for axis, value in entry.items())
        ]
        new = {axis: value for axis, value in own.items() if axis not in axes}
        if fits and new:
            for number in fits:
                made[number] = replace(made[number], values={**made[number].values, **new})
        elif not fits:
            known = {
                axis: next(
                    (
                        combination.values[axis]
                        for combination in made
                        if axis in combination.values and _is(combination.values[axis], raw)
                    ),
                    own[axis],
                )
                for axis, raw in entry.items()
            }
            extra.append(Combination(known))
    return made + extra


def needs_draft(arm: Arm) -> bool:
    """Whether an arm cannot run without a draft model."""
    return any(name in NEEDS_DRAFT_MODEL for name in (arm.speculation.types if arm.speculation else ()))


def merged(parts: Sequence[tuple[Combination, Recipe]]) -> tuple[Recipe, Found]:
    """Return the recipe of all combinations: each arm under each, the arms of a group together, its baseline first."""
    first = parts[0][1]
    axes = list(dict.fromkeys(axis for one, _ in parts for axis in one.values))
    varied = [
        axis for axis in axes if len({one.values[axis].label if axis in one.values else "" for one, _ in parts}) > 1
    ]
    of_setup = [axis for axis in varied if axis not in CONDITIONS]
    of_group = [axis for axis in of_setup if axis not in OF_THE_DRAFT]
    setups: dict[str, Setup] = {}
    groups: dict[str, str] = {}
    arms: dict[str, dict[str, Arm]] = {}
    problems: Found = []
    baseline_name = next((arm.of or arm.name for arm in first.arms if arm.name == first.baseline), first.baseline)
    for one, recipe in parts:
        cache = next((arm.cache_type for arm in recipe.arms), None)
        alike = _key(recipe.engine, recipe.models.target.model_dump(), cache.target if cache else None)
        group = groups.setdefault(alike, _named(one, of_group))
        setup = _named(one, of_setup)
        if setup not in setups:
            labels = {axis: one.values[axis].label for axis in axes if axis in one.values and axis not in CONDITIONS}
            setups[setup] = Setup(name=setup, group=group, axes=labels, engine=recipe.engine, models=recipe.models)
        here = arms.setdefault(group, {})
        for arm in recipe.arms:
            of = arm.of or arm.name
            if any(fnmatchcase(of, pattern) for pattern in one.without):
                continue
            conditions = _suffix(one, [axis for axis in varied if axis in CONDITIONS])
            place = setup if arm.speculation and takes_draft(arm.speculation.types) else group
            name = "-".join(
                part for part in (arm.name, place if of_setup else "", conditions) if part and part != "all"
            )
            if len(name) > MAX_ARM_NAME:
                problems.append(
                    (("matrix",), f"with its axes an arm is called '{name[:60]}…', longer than {MAX_ARM_NAME}.")
                )
            here.setdefault(name, arm.model_copy(update={"name": name, "of": of, "setup": setup, "group": group}))
    every = [
        arm for group in arms.values() for arm in _baselines_first(list(group.values()), baseline_name, first.group_of)
    ]
    problems += list(_without_baseline(every, baseline_name, first.group_of))
    names = [arm.name.casefold() for arm in every]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        problems.append(
            (("matrix",), f"two arms would be called '{twice}'; name the values of the axes: {{name: value}}.")
        )
    if len(setups) == 1:  # conditions alone: one setup, which needs no name
        every = [arm.model_copy(update={"setup": None, "group": None}) for arm in every]
    used = {arm.setup for arm in every}
    kept = [setup for setup in setups.values() if setup.name in used]
    baseline = next((arm.name for arm in every if arm.of == baseline_name), first.baseline)
    update = {"arms": every, "setups": kept, "baseline": baseline}
    return first.model_copy(
        update=update | ({"engine": kept[0].engine, "models": kept[0].models} if kept else {})
    ), problems


def _baselines_first(arms: list[Arm], baseline: str, group_of: Callable[[Arm], GroupKey]) -> list[Arm]:
    """Return the arms condition by condition, the baseline of each first."""
    order = list(dict.fromkeys(map(group_of, arms)))
    return sorted(arms, key=lambda arm: (order.index(group_of(arm)), arm.of != baseline))


def _without_baseline(
    arms: Sequence[Arm], baseline: str, group_of: Callable[[Arm], GroupKey]
) -> Iterator[tuple[KeyPath, str]]:
    with_baseline = {group_of(arm) for arm in arms if arm.of == baseline}
    for arm in arms:
        if group_of(arm) not in with_baseline:
            message = f"the group {arm.group} has no baseline: {baseline} is excluded there, and {arm.name} is not."
            yield ("matrix", "exclude"), f"{message} Exclude the whole combination, or keep its baseline."
            return


def _key(engine: EngineSpec, target: Plain, cache: str | None) -> str:
    return json.dumps([engine.model_dump(mode="json"), target, cache], sort_keys=True, default=str)


def _named(one: Combination, axes: Sequence[str]) -> str:
    return _suffix(one, axes) or "all"


def _suffix(one: Combination, axes: Sequence[str]) -> str:
    def prefix(axis: str) -> str:
        return PREFIXES.get(axis, f"{axis.rpartition('.')[2]}_")

    return "-".join(f"{prefix(axis)}{one.values[axis].label}" for axis in axes if axis in one.values)
