"""Conditions: how long prompts are, how many requests are in flight, how fast they arrive, and at which temperature.

A file has them once for all arms: `context_length`, `concurrency`, `rate` and `sampling.temperature`, each a value or
a list. Where one
is a list of several values, every arm is measured under every combination, and takes a suffix that names it:
`spec_d4-c8-t0.8`. Every condition has its own baseline.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from benchctl.recipes.matrix import MAX_ARMS
from benchctl.recipes.problems import KeyPath, quoted
from benchctl.recipes.schema import MAX_NAME, Arm, Recipe
from benchctl.recipes.written import PLACES, WrittenRecipe

Found = list[tuple[KeyPath, str]]
_SHORT = {"context_length": "ctx"}
"""What stands for a condition in a name, where that is not its first letter."""


@dataclass(frozen=True)
class Conditions:
    """The values of each field of `Arm` that a file sets for all arms; a field that it leaves out is not in it."""

    values: dict[str, list[Any]]

    @property
    def swept(self) -> list[str]:
        """The fields with several values."""
        return [field for field, values in self.values.items() if len(values) > 1]


def conditions_of(recipe: WrittenRecipe) -> tuple[Conditions, Found]:
    """Return the conditions of a file, and which values are there twice."""
    values: dict[str, list[Any]] = {}
    problems: Found = []
    for field, place in PLACES.items():
        part = recipe.sampling if field == "temperature" else recipe
        value = getattr(part, field)
        if field not in part.model_fields_set or (field == "temperature" and not isinstance(value, list)):
            continue
        values[field] = []
        for index, item in enumerate(value if isinstance(value, list) else [value]):
            if item in values[field]:
                problems.append(((*place, index), f"{_spelled(item)} is here twice."))
            else:
                values[field].append(item)
    return Conditions(values), problems


def under_conditions(recipe: Recipe, conditions: Conditions) -> tuple[Recipe, Found]:
    """Return the recipe with every arm under every condition, and what does not fit together.

    The arms of a condition stand together, in the recipe's order; `baseline` is that of the first condition.
    """
    problems = _disagreements(recipe, conditions)
    swept = conditions.swept
    arms: list[Arm] = []
    for combination in itertools.product(*conditions.values.values()):
        condition = dict(zip(conditions.values, combination, strict=True))
        suffix = "".join(f"-{_SHORT.get(field, field[0])}{_spelled(condition[field])}" for field in swept)
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


def _disagreements(recipe: Recipe, conditions: Conditions) -> Found:
    problems: Found = []
    count = len(recipe.arms)
    for field in conditions.swept:
        count *= len(conditions.values[field])
        if count > MAX_ARMS:
            message = (
                f"{len(conditions.values[field])} values make {count} arms or more; at most {MAX_ARMS} are allowed."
            )
            problems.append((PLACES[field], message))
            break
    together = [
        field
        for field, one_at_a_time in (("concurrency", 1), ("rate", None))
        if any(value != one_at_a_time for value in conditions.values.get(field, []))
    ]
    if recipe.schedule == "interleaved" and together:
        message = f"interleaved has one request in flight at a time, and {quoted(together[0])} needs more."
        problems.append((("schedule",), f"{message} Write `schedule: blocks`."))
    answer, context_limit = recipe.sampling.max_tokens, recipe.engine.context
    for value in conditions.values.get("context_length", []):
        if value is not None and value + answer > context_limit:
            message = (
                f"{value} tokens of prompt and {answer} of answer do not fit engine.context, which is {context_limit}."
            )
            problems.append((PLACES["context_length"], message))
            break
    warm = [value for value in conditions.values.get("temperature", []) if value > 0]
    if warm and recipe.sampling.top_k == 1:
        message = f"top_k is 1, so that the answers at {_spelled(warm[0])} would be those at 0."
        problems.append((PLACES["temperature"], f"{message} Write `top_k: 0`, or as many tokens as you mean."))
    return problems


def _spelled(value: float) -> str:
    """Return a number as short as it can be told apart: `8`, `0.8`, `2` for 2.0."""
    return str(value).removesuffix(".0")
