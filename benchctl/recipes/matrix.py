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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from benchctl.recipes.problems import KeyPath, Plain, did_you_mean, quoted
from benchctl.recipes.schema import NAME_PATTERN
from benchctl.recipes.speculation import PLACEHOLDER

MAX_ARMS = 200
"""More arms than this in a recipe, or in a setup under all conditions, are taken for a mistake."""
MAX_COMBINATIONS = 20_000
ARM = "arm"
"""In `exclude` beside `arms`: a pattern of arms; the other keys limit where they are left out."""

Messages = list[tuple[KeyPath, str]]
"""What is wrong, by its place in the file."""


@dataclass(frozen=True)
class Value:
    """A value of an axis."""

    label: str
    value: Plain
    path: KeyPath
    """Where in the file it is."""


@dataclass(frozen=True)
class Combination:
    """A value of every axis, by the axis."""

    values: Mapping[str, Value] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    """Patterns of arms that are excluded from it."""

    def filled(self, data: Mapping[str, Plain]) -> dict[str, Plain]:
        """Return a recipe's data with the values in their places."""
        filled = {key: value for key, value in data.items() if key != "matrix"}
        for axis in sorted(self.values, key=len):  # a model before its quantization
            filled = replaced(filled, axis.split("."), self.values[axis].value)
        return filled

    def in_file(self, path: KeyPath) -> KeyPath:
        """Return where in the file the value at a path of the filled-in data stands."""
        for axis in sorted(self.values, key=len, reverse=True):
            keys = tuple(axis.split("."))
            if path[: len(keys)] == keys:
                return (*self.values[axis].path, *path[len(keys) :])
        return path


def replaced(data: dict[str, Plain], keys: Sequence[str], value: object) -> dict[str, Plain]:
    """Return `data` with another value at a path of keys; a mapping is made where there is none."""
    if len(keys) == 1:
        return {**data, keys[0]: value}
    inner = data.get(keys[0])
    return {**data, keys[0]: replaced(inner if isinstance(inner, dict) else {}, keys[1:], value)}


Entries = list[tuple[KeyPath, dict[str, Plain]]]
"""The places and mappings of `include` or `exclude`."""


@dataclass
class Matrix:
    """A `matrix` of a file, and what its axes may be where it stands."""

    path: KeyPath
    wrong_name: Callable[[str], str | None]
    """What is wrong with an axis's name; `None`: nothing."""
    labels: Callable[[str, Sequence[Plain]], list[str]]
    """Short names of an axis's values, in their order."""
    example: str
    takes_arms: bool = False
    """Whether an entry of `exclude` may name arms."""
    elsewhere: Mapping[str, KeyPath] = field(default_factory=dict)
    """Axes whose values stand in another place of the file."""
    messages: Messages = field(default_factory=list)
    """What is wrong, by its place in the file."""
    axes: dict[str, list[Value]] = field(default_factory=dict)

    def combinations(self, matrix: Plain) -> list[Combination]:
        """Return what the file has stands for; what is wrong with it is added to `messages`."""
        if not isinstance(matrix, dict) or not matrix:
            got = "an empty one" if matrix == {} else quoted(matrix)
            self.refuse(self.path, f"expected a mapping such as {self.example}, got {got}.")
            return []
        for axis, values in matrix.items():
            if axis not in ("include", "exclude"):
                self._read_axis(axis, values)
        included, excluded = (self._entries(matrix.get(which, []), which) for which in ("include", "exclude"))
        size = math.prod(map(len, self.axes.values()))
        if size > MAX_COMBINATIONS:
            self.refuse(self.path, f"the axes have {size} combinations; at most {MAX_COMBINATIONS} are allowed.")
        if self.messages:
            return []
        product = itertools.product(*self.axes.values()) if self.axes else ()
        product_combinations = [Combination(dict(zip(self.axes, values, strict=True))) for values in product]
        included_combinations = [
            limited for combination in product_combinations if (limited := _excluded(combination, excluded)) is not None
        ]
        included_combinations = self._include(included_combinations, included)
        if not included_combinations:
            self.refuse(self.path, "nothing is left to measure: every combination is excluded.")
        return included_combinations

    def refuse(self, path: KeyPath, message: str) -> None:
        """Keep what is wrong."""
        self.messages.append((path, message))

    def _read_axis(self, axis: str, values: Plain) -> None:
        path = self.elsewhere.get(axis, (*self.path, axis))
        if message := self.wrong_name(axis):
            self.refuse(path, message)
        elif not isinstance(values, list | dict) or not values:
            got = "an empty one" if values in ([], {}) else quoted(values)
            self.refuse(path, f"expected a list of values, or a mapping of names to values; got {got}.")
        else:
            self.axes[axis] = self._values(axis, values, path)

    def _values(self, axis: str, values: Plain, path: KeyPath) -> list[Value]:
        if isinstance(values, dict):
            for name in values:
                if not re.fullmatch(NAME_PATTERN, name) or len(name) > 40:
                    self.refuse((*path, name), "expected a name of letters, digits, '_', '.' and '+'.")
            return [Value(name, value, (*path, name)) for name, value in values.items()]
        for number, value in enumerate(values):
            if value in values[:number]:
                self.refuse((*path, number), f"{quoted(value)} is here twice.")
        labels = self.labels(axis, values)
        return [
            Value(label if labels.count(label) == 1 else f"{label}.{number + 1}", value, (*path, number))
            for number, (label, value) in enumerate(zip(labels, values, strict=True))
        ]

    def _entries(self, entries: Plain, which: str) -> Entries:
        """Return `include` or `exclude`; what they name that the matrix does not have is wrong."""
        if not isinstance(entries, list):
            self.refuse((*self.path, which), f"expected a list of mappings, got {quoted(entries)}.")
            return []
        checked = []
        for number, entry in enumerate(entries):
            path: KeyPath = (*self.path, which, number)
            if not isinstance(entry, dict) or not entry:
                self.refuse(path, f"expected a mapping such as {{cache_type: q8_0}}, got {quoted(entry)}.")
                continue
            checked.append((path, entry))
            for key, value in entry.items():
                if message := self._misfit(key, value, excludes=which == "exclude"):
                    self.refuse((*path, key), message)
        return checked

    def _misfit(self, key: str, value: Plain, *, excludes: bool) -> str | None:
        if excludes and self.takes_arms and key == ARM:
            return None
        axis_values = self.axes.get(key, [])
        if excludes and axis_values and not any(_matches(had, value) for had in axis_values):
            labels = [had.label for had in axis_values]
            message = f"no value of this axis is {quoted(value)}; they are called {', '.join(labels)}."
            return message + did_you_mean(value, labels)
        if not axis_values and (excludes or self.wrong_name(key)):
            return f"there is no axis of this name.{did_you_mean(key, (*self.axes, ARM))}"
        return None

    def _include(self, combinations: list[Combination], entries: Entries) -> list[Combination]:
        """Add the entries of `include`: to every combination that has their values, else as a further combination."""
        extra: list[Combination] = []
        for path, entry in entries:
            entry_values = {
                axis: Value(self.labels(axis, [value])[0], value, (*path, axis)) for axis, value in entry.items()
            }
            new = {axis: value for axis, value in entry_values.items() if axis not in self.axes}
            named = {axis: value for axis, value in entry.items() if axis in self.axes}
            fits = [number for number, combination in enumerate(combinations) if _fits_entry(combination, named)]
            for number in fits:
                combinations[number] = replace(combinations[number], values={**combinations[number].values, **new})
            if not fits:
                existing = {
                    axis: had for axis in named for had in reversed(self.axes[axis]) if _matches(had, named[axis])
                }
                extra.append(Combination(entry_values | existing))
        return combinations + extra


def _matches(value: Value, requested: Plain) -> bool:
    """Whether an entry matches a value: by its label, its whole value, or some of its keys."""
    if isinstance(requested, dict) and isinstance(value.value, dict):
        return all(key in value.value and value.value[key] == part for key, part in requested.items())
    return requested == value.value or (requested is not None and str(requested) == value.label)


def _fits_entry(combination: Combination, entry: Mapping[str, Plain]) -> bool:
    return all(_matches(combination.values[axis], value) for axis, value in entry.items() if axis != ARM)


def _excluded(combination: Combination, entries: Entries) -> Combination | None:
    without: list[str] = []
    for _, entry in entries:
        if _fits_entry(combination, entry):
            if ARM not in entry:
                return None
            without.append(str(entry[ARM]))
    return replace(combination, without=tuple(without))


@dataclass(frozen=True)
class ExpandedArm:
    """An arm as plain data, and which entry of the file's `arms` it comes from."""

    data: Plain
    index: int


def expand(arms: Plain) -> tuple[list[ExpandedArm], Messages]:
    """Return the arms that a file's `arms` stand for, none where they are no list, and what is wrong with them."""
    expanded: list[ExpandedArm] = []
    messages: Messages = []
    for index, arm in enumerate(arms if isinstance(arms, list) else ()):
        if not isinstance(arm, dict) or arm.get("matrix") is None:
            expanded.append(ExpandedArm(arm, index))
            continue
        template = {key: value for key, value in arm.items() if key != "matrix"}
        used = _placeholders(template, ("arms", index))
        matrix = _matrix_of_arm(index, {name for _, name in used})
        combinations = matrix.combinations(arm["matrix"])
        matrix.messages.extend(
            message for combination in combinations for message in _placeholder_messages(combination, used)
        )
        count = len(expanded) + len(combinations)
        if not matrix.messages and count > MAX_ARMS:
            matrix.refuse(matrix.path, f"the matrices make {count} arms or more; at most {MAX_ARMS} are allowed.")
        if not matrix.messages:
            expanded += [ExpandedArm(_arm_of(template, combination), index) for combination in combinations]
        messages += matrix.messages
    if not messages and len(expanded) > MAX_ARMS:
        messages.append((("arms",), f"expected at most {MAX_ARMS} arms, got {len(expanded)}."))
    return expanded, messages


def _matrix_of_arm(index: int, used: set[str]) -> Matrix:
    def wrong_name(axis: str) -> str | None:
        if not PLACEHOLDER.fullmatch(f"{{{axis}}}"):
            return "expected a word of letters, digits and '_'."
        return None if axis in used else f"no value of this arm uses it; write {{{axis}}} where it belongs."

    return Matrix(("arms", index, "matrix"), wrong_name, lambda _, values: list(map(_text, values)), "{depth: [2, 4]}")


def _placeholder_messages(combination: Combination, used: Sequence[tuple[KeyPath, str]]) -> Messages:
    """Return what placeholders and values of an arm have no use for each other."""
    problems: Messages = []
    for value in combination.values.values():
        if not isinstance(value.value, str | int | float | bool):
            problems.append((value.path, f"expected a number or text, got {quoted(value.value)}."))
    for path, name in used:
        if name not in combination.values:
            message = f"the placeholder {{{name}}} has no values; the matrix has: {', '.join(combination.values)}."
            problems.append((path, message + did_you_mean(name, combination.values)))
    return problems


def _arm_of(arm: dict[str, Plain], combination: Combination) -> Plain:
    data = _fill(arm, {axis: value.value for axis, value in combination.values.items()})
    if isinstance(arm.get("name"), str):  # a name is text, even where it is a placeholder alone
        data["name"] = str(_fill(arm["name"], {axis: value.label for axis, value in combination.values.items()}))
    return data


def _placeholders(data: Plain, path: KeyPath) -> list[tuple[KeyPath, str]]:
    if isinstance(data, str):
        return [(path, name) for name in PLACEHOLDER.findall(data)]
    if isinstance(data, dict):
        return [placeholder for key, value in data.items() for placeholder in _placeholders(value, (*path, key))]
    if isinstance(data, list):
        return [placeholder for index, value in enumerate(data) for placeholder in _placeholders(value, (*path, index))]
    return []


def _fill(data: Plain, values: Mapping[str, Plain]) -> Plain:
    """Substitute placeholders; text that is a placeholder alone takes the value with its type."""
    if isinstance(data, dict):
        return {key: _fill(value, values) for key, value in data.items()}
    if isinstance(data, list):
        return [_fill(value, values) for value in data]
    if not isinstance(data, str):
        return data
    placeholder = PLACEHOLDER.fullmatch(data)
    if placeholder:
        return values[placeholder.group(1)]
    return PLACEHOLDER.sub(lambda match: _text(values[match.group(1)]), data)


def _text(value: Plain) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
