"""A matrix of an arm, expanded: one entry of the file stands for the product of its values."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from benchctl.recipes.placeholders import PLACEHOLDER
from benchctl.recipes.problems import KeyPath, Plain, did_you_mean, quoted

MAX_ARMS = 200
"""More arms than this in one recipe are taken for a mistake."""

Scalar = str | int | float | bool


@dataclass(frozen=True)
class ExpandedArm:
    """An arm as plain data, and which entry of the file's `arms` it comes from."""

    data: Plain
    index: int
    values: dict[str, Scalar]
    """The matrix values it stands for; empty without a matrix."""


def expand(arms: list[Plain]) -> tuple[list[ExpandedArm], list[tuple[KeyPath, str]]]:
    """Return the arms that a file's `arms` stand for, and what is wrong with its matrices."""
    expanded: list[ExpandedArm] = []
    problems: list[tuple[KeyPath, str]] = []
    for index, arm in enumerate(arms):
        if not isinstance(arm, dict) or "matrix" not in arm:
            expanded.append(ExpandedArm(arm, index, {}))
            continue
        rest = {key: value for key, value in arm.items() if key != "matrix"}
        wrong = _check(arm["matrix"], rest, ("arms", index))
        if wrong:
            problems += wrong
            continue
        keys = list(arm["matrix"])
        size = 1
        for key in keys:
            size *= len(arm["matrix"][key])
        if len(expanded) + size > MAX_ARMS:
            message = f"the matrices make {len(expanded) + size} arms or more; at most {MAX_ARMS} are allowed."
            problems.append((("arms", index, "matrix"), message))
            continue
        for combination in itertools.product(*arm["matrix"].values()):
            values = dict(zip(keys, combination, strict=True))
            filled = _fill(rest, values)
            if isinstance(rest.get("name"), str):  # a name is text, even where it is one placeholder alone
                filled["name"] = str(filled["name"])
            expanded.append(ExpandedArm(filled, index, values))
    return expanded, problems


def _check(matrix: Plain, rest: dict[str, Plain], arm: KeyPath) -> list[tuple[KeyPath, str]]:
    here = (*arm, "matrix")
    if not isinstance(matrix, dict) or not matrix:
        got = "an empty one" if matrix == {} else quoted(matrix)
        return [(here, f"expected a mapping such as {{depth: [2, 4]}}, got {got}.")]
    problems: list[tuple[KeyPath, str]] = []
    used = _placeholders(rest, arm)
    names = {name for _, name in used}
    for key, values in matrix.items():
        if not PLACEHOLDER.fullmatch(f"{{{key}}}"):
            problems.append(((*here, key), "expected a word of letters, digits and '_'."))
        elif not isinstance(values, list) or not values:
            got = "an empty one" if values == [] else quoted(values)
            problems.append(((*here, key), f"expected a list of at least one value, got {got}."))
        elif key not in names:
            problems.append(((*here, key), f"no value of this arm uses it; write {{{key}}} where it belongs."))
        else:
            for position, value in enumerate(values):
                if not isinstance(value, str | int | float | bool):
                    message = f"expected a number or text, got {quoted(value)}."
                    problems.append(((*here, key, position), message))
    for path, name in used:
        if name not in matrix:
            message = f"the placeholder {{{name}}} has no values; the matrix has: {', '.join(map(str, matrix))}."
            problems.append((path, message + did_you_mean(name, matrix)))
    return problems


def _placeholders(data: Plain, path: KeyPath) -> list[tuple[KeyPath, str]]:
    if isinstance(data, str):
        return [(path, name) for name in PLACEHOLDER.findall(data)]
    if isinstance(data, dict):
        return [found for key, value in data.items() for found in _placeholders(value, (*path, key))]
    if isinstance(data, list):
        return [found for index, value in enumerate(data) for found in _placeholders(value, (*path, index))]
    return []


def _fill(data: Plain, values: dict[str, Scalar]) -> Plain:
    """Substitute placeholders; text that is one placeholder alone takes the value with its type."""
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


def _text(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
