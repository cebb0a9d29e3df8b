"""Conditions: how many requests are in flight, how fast they arrive, and at which temperature.

A file says them once for all arms: `concurrency`, `rate` and `sampling.temperature`, each a value or a list. Where one
is a list of several values, every arm is measured under every combination, and takes a suffix that names it:
`spec_d4-c8-t0.8`. Every condition has its own baseline.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from benchctl.recipes.matrix import MAX_ARMS
from benchctl.recipes.problems import KeyPath, Plain, quoted
from benchctl.recipes.schema import MAX_NAME, OF_CONDITIONS, Arm, Recipe
from benchctl.recipes.translate import translate, value_at

Found = list[tuple[KeyPath, str]]

_PLACES: dict[str, KeyPath] = {
    "concurrency": ("concurrency",),
    "rate": ("rate",),
    "temperature": ("sampling", "temperature"),
}
"""Where in a file the condition of an arm's field stands, in the order of the suffix."""


@dataclass(frozen=True)
class Conditions:
    """The values of each field of `Arm` that a file sets for all arms; a field that it leaves out is not in it."""

    values: dict[str, list[Any]]

    @property
    def swept(self) -> list[str]:
        """The fields with several values."""
        return [field for field, values in self.values.items() if len(values) > 1]


def take_conditions(
    data: dict[str, Plain], written: Callable[[KeyPath], str | None]
) -> tuple[dict[str, Plain], Conditions, Found]:
    """Take the conditions out of a file's data: the rest, the conditions, and what is wrong with them.

    `written` gives a number's spelling in the file. A list of temperatures leaves its first in `sampling`.
    """
    rest = {key: value for key, value in data.items() if (key,) not in _PLACES.values()}
    problems = _on_arms(data.get("arms"))
    conditions: dict[str, list[Any]] = {}
    for field, place in _PLACES.items():
        value = value_at(data, place)
        if place[0] not in data or (field == "temperature" and not isinstance(value, list)):
            continue
        values, wrong = _checked(field, place, value, written)
        problems += wrong
        conditions[field] = values
    if "temperature" in conditions:
        rest["sampling"] = {key: value for key, value in data["sampling"].items() if key != "temperature"}
        if conditions["temperature"]:
            rest["sampling"]["temperature"] = conditions["temperature"][0]
    return rest, Conditions(conditions), problems


def under_conditions(recipe: Recipe, conditions: Conditions) -> tuple[Recipe, Found]:
    """Return the recipe with every arm under every condition, and what does not fit together.

    The arms of a condition stand together, in the recipe's order; `baseline` is that of the first condition.
    """
    problems = _disagreements(recipe, conditions)
    swept = conditions.swept
    arms: list[Arm] = []
    for combination in itertools.product(*conditions.values.values()):
        condition = dict(zip(conditions.values, combination, strict=True))
        suffix = "".join(f"-{field[0]}{_spelled(condition[field])}" for field in swept)
        if "temperature" not in swept:
            condition.pop("temperature", None)  # it is what the recipe's sampling says
        for index, arm in enumerate(recipe.arms):
            name = arm.name + suffix
            if len(name) > MAX_NAME:
                problems.append(
                    (("arms", index, "name"), f"with its condition it is '{name}', longer than {MAX_NAME}.")
                )
            arms.append(arm.model_copy(update={"name": name, "of": arm.name if swept else None} | condition))
    first = arms[[arm.name for arm in recipe.arms].index(recipe.baseline)].name
    return recipe.model_copy(update={"arms": arms, "baseline": first}), problems


def _on_arms(arms: Plain) -> Found:
    """Complain of conditions that an arm of a file has for itself."""
    problems: Found = []
    for index, arm in enumerate(arms if isinstance(arms, list) else []):
        for key in OF_CONDITIONS if isinstance(arm, dict) else ():
            if key in arm:
                place = ".".join(map(str, _PLACES.get(key, ())))
                instead = f" of an arm; it stands once for all arms, as `{place}`." if place else "."
                problems.append((("arms", index, key), f"unknown key{instead}"))
    return problems


def _checked(
    field: str, place: KeyPath, value: Plain, written: Callable[[KeyPath], str | None]
) -> tuple[list[Any], Found]:
    """Return the values that the schema of `Arm` takes, and a sentence for each that it does not."""
    if value == []:
        return [], [(place, "expected a value, or a list of at least one, got an empty one.")]
    good: list[Any] = []
    problems: Found = []
    for index, item in enumerate(value if isinstance(value, list) else [value]):
        here: KeyPath = (*place, index) if isinstance(value, list) else place
        if item is None and isinstance(value, list):
            problems.append((here, "expected a number, got nothing."))
            continue
        try:
            checked = getattr(Arm.model_validate({"name": "any", field: item}), field)
        except ValidationError as error:
            told = translate(
                error.errors(include_url=False, include_input=False), {field: item}, Arm, _at(here, written)
            )
            problems += [(here, message) for _, message in told]
            continue
        if checked in good:
            problems.append((here, f"{_spelled(checked)} stands here twice."))
        else:
            good.append(checked)
    return good, problems


def _at(place: KeyPath, written: Callable[[KeyPath], str | None]) -> Callable[[KeyPath], str | None]:
    return lambda _: written(place)


def _disagreements(recipe: Recipe, conditions: Conditions) -> Found:
    problems: Found = []
    count = len(recipe.arms)
    for field in conditions.swept:
        count *= len(conditions.values[field])
        if count > MAX_ARMS:
            message = (
                f"{len(conditions.values[field])} values make {count} arms or more; at most {MAX_ARMS} are allowed."
            )
            problems.append((_PLACES[field], message))
            break
    together = [
        field
        for field, one_at_a_time in (("concurrency", 1), ("rate", None))
        if any(value != one_at_a_time for value in conditions.values.get(field, []))
    ]
    if recipe.schedule == "interleaved" and together:
        message = f"interleaved has one request in flight at a time, and {quoted(together[0])} asks for more."
        problems.append((("schedule",), f"{message} Write `schedule: blocks`."))
    warm = [value for value in conditions.values.get("temperature", []) if value > 0]
    if warm and recipe.sampling.top_k == 1:
        message = f"top_k is 1, so that the answers at {_spelled(warm[0])} would be those at 0."
        problems.append((_PLACES["temperature"], f"{message} Write `top_k: 0`, or as many tokens as you mean."))
    return problems


def _spelled(value: float) -> str:
    """Return a number as short as it can be told apart: `8`, `0.8`, `2` for 2.0."""
    return str(value).removesuffix(".0")
