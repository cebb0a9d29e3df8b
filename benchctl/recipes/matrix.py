"""`matrix`: the only way in which a recipe gives several values; every combination of them is measured.

    matrix:
      cache_type: [f16, q8_0]                  # an axis: a list of values, or names with their values
      concurrency: {few: 1, many: 8}
      exclude: [{cache_type: q8_0, concurrency: many}]
      include: [{cache_type: q4_0, concurrency: few}]

Beside `arms` an axis is a dotted key of the recipe (`benchctl.recipes.axes`). In an arm it is a word, and `{word}` in
the arm's values stands for its value. `include` and `exclude` work as in GitHub's matrices.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from benchctl.recipes.problems import KeyPath, Plain, did_you_mean, quoted
from benchctl.recipes.schema import NAME_PATTERN
from benchctl.recipes.speculation import PLACEHOLDER

MAX_ARMS = 200
"""More arms than this in a recipe, or in a setup under all conditions, are taken for a mistake."""
MAX_COMBINATIONS = 20_000
ARM = "arm"
"""In `exclude` beside `arms`: a pattern of arms; the other keys limit where they are left out."""

Found = list[tuple[KeyPath, str]]
"""What is wrong, by its place in the file."""


@dataclass(frozen=True)
class Value:
    """A value of an axis."""

    label: str
    value: Plain
    place: KeyPath
    """Where in the file it is."""


@dataclass(frozen=True)
class Combination:
    """A value of every axis, by the axis."""

    values: Mapping[str, Value] = field(default_factory=dict)
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


@dataclass(frozen=True)
class Rules:
    """What the axes of a matrix may be where it stands."""

    place: KeyPath
    wrong_name: Callable[[str], str | None]
    """What is wrong with an axis's name; `None`: nothing."""
    labels: Callable[[str, Sequence[Plain]], list[str]]
    """Short names of an axis's values, in their order."""
    example: str
    takes_arms: bool = False
    """Whether an entry of `exclude` may name arms."""
    elsewhere: Mapping[str, KeyPath] = field(default_factory=dict)
    """Axes whose values stand in another place of the file."""
    wrong: Found = field(default_factory=list)
    """What was found to be wrong."""


def replaced(data: dict[str, Plain], keys: Sequence[str], value: object) -> dict[str, Plain]:
    """Return `data` with another value at a path of keys; a mapping is made where there is none."""
    if len(keys) == 1:
        return {**data, keys[0]: value}
    inner = data.get(keys[0])
    return {**data, keys[0]: replaced(inner if isinstance(inner, dict) else {}, keys[1:], value)}


def combinations_of(matrix: Plain, rules: Rules) -> list[Combination]:
    """Return what a file's `matrix` stands for; what is wrong with it is added to `rules.wrong`."""
    if not isinstance(matrix, dict) or not matrix:
        got = "an empty one" if matrix == {} else quoted(matrix)
        rules.wrong.append((rules.place, f"expected a mapping such as {rules.example}, got {got}."))
        return []
    axes = _axes({key: value for key, value in matrix.items() if key not in ("include", "exclude")}, rules)
    included, excluded = (_entries(matrix, which, axes, rules) for which in ("include", "exclude"))
    size = math.prod(map(len, axes.values()))
    if size > MAX_COMBINATIONS:
        message = f"the axes have {size} combinations; at most {MAX_COMBINATIONS} are allowed."
        rules.wrong.append((rules.place, message))
    if rules.wrong:
        return []
    product = itertools.product(*axes.values()) if axes else ()
    every = [Combination(dict(zip(axes, values, strict=True))) for values in product]
    kept = [left for combination in every if (left := _excluded(combination, excluded)) is not None]
    kept = _include(kept, included, axes, rules)
    if not kept:
        rules.wrong.append((rules.place, "nothing is left to measure: every combination is excluded."))
    return kept


def _axes(matrix: dict[str, Plain], rules: Rules) -> dict[str, list[Value]]:
    axes: dict[str, list[Value]] = {}
    for axis, values in matrix.items():
        place = rules.elsewhere.get(axis, (*rules.place, axis))
        if message := rules.wrong_name(axis):
            rules.wrong.append((place, message))
        elif not isinstance(values, list | dict) or not values:
            got = "an empty one" if values in ([], {}) else quoted(values)
            message = f"expected a list of values, or a mapping of names to values; got {got}."
            rules.wrong.append((place, message))
        else:
            axes[axis] = _values(axis, values, place, rules)
    return axes


def _values(axis: str, values: Plain, place: KeyPath, rules: Rules) -> list[Value]:
    if isinstance(values, dict):
        rules.wrong.extend(
            ((*place, name), "expected a name of letters, digits, '_', '.' and '+'.")
            for name in values
            if not re.fullmatch(NAME_PATTERN, name) or len(name) > 40
        )
        return [Value(name, value, (*place, name)) for name, value in values.items()]
    rules.wrong.extend(
        ((*place, number), f"{quoted(value)} is here twice.")
        for number, value in enumerate(values)
        if value in values[:number]
    )
    labels = rules.labels(axis, values)
    return [
        Value(label if labels.count(label) == 1 else f"{label}.{number + 1}", value, (*place, number))
        for number, (label, value) in enumerate(zip(labels, values, strict=True))
    ]


def _entries(
    matrix: dict[str, Plain], which: str, axes: Mapping[str, list[Value]], rules: Rules
) -> list[tuple[KeyPath, dict[str, Plain]]]:
    """Return the places and mappings of `include` or `exclude`."""
    entries = matrix.get(which, [])
    if not isinstance(entries, list):
        rules.wrong.append(((*rules.place, which), f"expected a list of mappings, got {quoted(entries)}."))
        return []
    found = []
    for number, entry in enumerate(entries):
        place: KeyPath = (*rules.place, which, number)
        if isinstance(entry, dict) and entry:
            found.append((place, entry))
            rules.wrong.extend(_misfits(place, which, entry, axes, rules))
        else:
            message = f"expected a mapping such as {{cache_type: q8_0}}, got {quoted(entry)}."
            rules.wrong.append((place, message))
    return found


def _misfits(
    place: KeyPath, which: str, entry: dict[str, Plain], axes: Mapping[str, list[Value]], rules: Rules
) -> Iterator[tuple[KeyPath, str]]:
    """Yield the axes and values of an entry that the matrix does not have."""
    for key, value in entry.items():
        if which == "exclude" and rules.takes_arms and key == ARM:
            continue
        if which == "exclude" and key in axes and not any(_is(known, value) for known in axes[key]):
            labels = [known.label for known in axes[key]]
            message = f"no value of this axis is {quoted(value)}; they are called {', '.join(labels)}."
            yield (*place, key), message + did_you_mean(value, labels)
        elif key not in axes and (which == "exclude" or rules.wrong_name(key)):
            yield (*place, key), f"there is no axis of this name.{did_you_mean(key, (*axes, ARM))}"


def _is(value: Value, requested: Plain) -> bool:
    """Whether an entry matches a value: by its label, its whole value, or some of its keys."""
    if isinstance(requested, dict) and isinstance(value.value, dict):
        return all(key in value.value and value.value[key] == part for key, part in requested.items())
    return requested == value.value or (requested is not None and str(requested) == value.label)


def _excluded(combination: Combination, entries: Sequence[tuple[KeyPath, dict[str, Plain]]]) -> Combination | None:
    without: list[str] = []
    for _, entry in entries:
        if all(_is(combination.values[axis], value) for axis, value in entry.items() if axis != ARM):
            if ARM not in entry:
                return None
            without.append(str(entry[ARM]))
    return replace(combination, without=tuple(without))


def _include(
    kept: list[Combination],
    entries: Sequence[tuple[KeyPath, dict[str, Plain]]],
    axes: Mapping[str, list[Value]],
    rules: Rules,
) -> list[Combination]:
    """Add the entries of `include`: to every combination that has their values, else as a further combination."""
    extra: list[Combination] = []
    for place, entry in entries:
        own = {axis: Value(rules.labels(axis, [value])[0], value, (*place, axis)) for axis, value in entry.items()}
        new = {axis: value for axis, value in own.items() if axis not in axes}
        fits = [
            number
            for number, combination in enumerate(kept)
            if all(axis not in axes or _is(combination.values[axis], value) for axis, value in entry.items())
        ]
        for number in fits:
            kept[number] = replace(kept[number], values={**kept[number].values, **new})
        if not fits:
            known = {axis: had for axis in entry for had in reversed(axes.get(axis, [])) if _is(had, entry[axis])}
            extra.append(Combination(own | known))
    return kept + extra


@dataclass(frozen=True)
class ExpandedArm:
    """An arm as plain data, and which entry of the file's `arms` it comes from."""

    data: Plain
    index: int


def expand(arms: Plain) -> tuple[list[ExpandedArm], Found]:
    """Return the arms that a file's `arms` stand for, none where they are no list, and what is wrong with them."""
    expanded: list[ExpandedArm] = []
    wrong: Found = []
    for index, arm in enumerate(arms if isinstance(arms, list) else ()):
        if not isinstance(arm, dict) or arm.get("matrix") is None:
            expanded.append(ExpandedArm(arm, index))
            continue
        rest = {key: value for key, value in arm.items() if key != "matrix"}
        used = _placeholders(rest, ("arms", index))
        rules = _rules_of_arm(index, {name for _, name in used})
        combinations = combinations_of(arm["matrix"], rules)
        rules.wrong.extend(found for combination in combinations for found in _unfit(combination, used))
        count = len(expanded) + len(combinations)
        if not rules.wrong and count > MAX_ARMS:
            message = f"the matrices make {count} arms or more; at most {MAX_ARMS} are allowed."
            rules.wrong.append((rules.place, message))
        if not rules.wrong:
            expanded += [ExpandedArm(_arm_of(rest, combination), index) for combination in combinations]
        wrong += rules.wrong
    if not wrong and len(expanded) > MAX_ARMS:
        wrong.append((("arms",), f"expected at most {MAX_ARMS} arms, got {len(expanded)}."))
    return expanded, wrong


def _rules_of_arm(index: int, used: set[str]) -> Rules:
    def wrong_name(axis: str) -> str | None:
        if not PLACEHOLDER.fullmatch(f"{{{axis}}}"):
            return "expected a word of letters, digits and '_'."
        return None if axis in used else f"no value of this arm uses it; write {{{axis}}} where it belongs."

    return Rules(("arms", index, "matrix"), wrong_name, lambda _, values: list(map(_text, values)), "{depth: [2, 4]}")


def _unfit(combination: Combination, used: Sequence[tuple[KeyPath, str]]) -> Found:
    """Return what placeholders and values of an arm have no use for each other."""
    problems: Found = []
    for value in combination.values.values():
        if not isinstance(value.value, str | int | float | bool):
            problems.append((value.place, f"expected a number or text, got {quoted(value.value)}."))
    for path, name in used:
        if name not in combination.values:
            message = f"the placeholder {{{name}}} has no values; the matrix has: {', '.join(combination.values)}."
            problems.append((path, message + did_you_mean(name, combination.values)))
    return problems


def _arm_of(rest: dict[str, Plain], combination: Combination) -> Plain:
    data = _fill(rest, {axis: value.value for axis, value in combination.values.items()})
    if isinstance(rest.get("name"), str):  # a name is text, even where it is a placeholder alone
        data["name"] = str(_fill(rest["name"], {axis: value.label for axis, value in combination.values.items()}))
    return data


def _placeholders(data: Plain, path: KeyPath) -> list[tuple[KeyPath, str]]:
    if isinstance(data, str):
        return [(path, name) for name in PLACEHOLDER.findall(data)]
    if isinstance(data, dict):
        return [found for key, value in data.items() for found in _placeholders(value, (*path, key))]
    if isinstance(data, list):
        return [found for index, value in enumerate(data) for found in _placeholders(value, (*path, index))]
    return []


def _fill(data: Plain, values: Mapping[str, Plain]) -> Plain:
    """Substitute placeholders; text that is a placeholder alone takes the value with its type."""
    if isinstance(data, dict):
        return {key: _fill(value, values) for key, value in data.items()}
    if isinstance(data, list):
        return [_fill(value, values) for value in data]
    if not isinstance(data, str):
        return data
    whole = PLACEHOLDER.fullmatch(data)
    if whole:
        return values[whole.group(1)]
    return PLACEHOLDER.sub(lambda match: _text(values[match.group(1)]), data)


def _text(value: Plain) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
