"""The axes of a recipe: `matrix` beside `arms`, whose keys are keys of the recipe.

    matrix:
      models.draft: [{source: small.gguf}, {source: large.gguf}]     # or by name: {small: {source: …}, none: null}
      cache_type: [f16, q8_0]
      concurrency: [1, 8]

`concurrency`, `rate`, `sampling.temperature`, `sampling.max_tokens` and `context_length` are conditions. Every
combination of the others is a setup: an engine with a pair of models, in which all arms are measured under all
conditions. What changes the target's own computation (all but the draft) makes a group with a baseline of its own for
each condition; an arm that takes no draft model is measured once a group.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from benchctl.recipes.engine_spec import EngineSpec
from benchctl.recipes.matrix import MAX_ARMS, Combination, Matrix, Messages
from benchctl.recipes.problems import KeyPath, Plain, did_you_mean, value_at
from benchctl.recipes.schema import MAX_ARM_NAME, NAME_PATTERN, Arm, Recipe, Setup
from benchctl.recipes.speculation import NEEDS_DRAFT_MODEL, takes_draft

TEMPERATURE, MAX_TOKENS = "sampling.temperature", "sampling.max_tokens"
CONDITIONS = ("context_length", MAX_TOKENS, "concurrency", "rate", TEMPERATURE)
"""Axes that are conditions: a setup is the same under each."""
BINARY = "engine.binary"
"""The axis of builds."""
PREFIXES: dict[str, str] = {
    "models.target": "t_",
    "models.target.quantize": "t_",
    "models.draft": "d_",
    "models.draft.quantize": "d_",
    "cache_type": "kv_",
    "context_length": "ctx",
    MAX_TOKENS: "n",
    "concurrency": "c",
    "rate": "r",
    TEMPERATURE: "t",
    "engine": "",
    BINARY: "",
}
"""The axes, and what a label of each begins with in the names of arms; beside them any single key of `engine`."""
_OF_SAMPLING = {TEMPERATURE: "temperature", MAX_TOKENS: "max_tokens"}
"""The conditions of `sampling`, and what an arm calls its own."""
OF_THE_DRAFT = ("models.draft", "models.draft.quantize")
"""Axes that change the draft and not what the target computes."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_.+]+")


def lists_as_axes(data: dict[str, Plain]) -> tuple[dict[str, Plain], dict[str, KeyPath]]:
    """Return a file's data with the conditions and builds that it lists in their own places as axes, and these
    places."""
    moved: dict[str, Plain] = {}
    for axis in (*CONDITIONS, BINARY):
        outer, _, inner = axis.rpartition(".")
        section = data.get(outer) if outer else data
        if isinstance(section, dict) and isinstance(section.get(inner), list):
            moved[axis] = section[inner]
            remaining = {key: value for key, value in section.items() if key != inner}
            data = {**data, outer: remaining} if outer else remaining
    matrix = {} if data.get("matrix") is None else data["matrix"]
    if not moved or not isinstance(matrix, dict):
        return data, {}
    axes = {**moved, **{key: value for key, value in matrix.items() if key not in moved}}
    return {**data, "matrix": axes}, {axis: tuple(axis.split(".")) for axis in moved}


def axes_of(matrix: Plain, elsewhere: Mapping[str, KeyPath]) -> tuple[list[Combination], Messages]:
    """Return the combinations of a recipe's axes, and what is wrong with them.

    `elsewhere`: the places of axes that do not stand in the file's `matrix`.
    """
    rules = Matrix(("matrix",), _wrong_name, _labels, "{cache_type: [f16, q8_0]}", takes_arms=True, elsewhere=elsewhere)
    combinations = rules.combinations(matrix)
    for combination in combinations:
        if "rate" in combination.values and combination.values["rate"].value is None:
            rules.refuse(combination.values["rate"].path, "expected a number, got nothing.")
    for inner in matrix if isinstance(matrix, dict) and "engine" in matrix else ():
        if inner.startswith("engine."):
            rules.refuse(("matrix", inner), "engine is an axis already, and its values contain this key.")
    return combinations, rules.messages


def too_many_arms(combinations: Sequence[Combination], arms: int) -> Messages:
    """Return what is wrong where the conditions multiply so many arms beyond what a recipe is likely to mean."""
    setups = Counter(
        tuple((axis, value.label) for axis, value in combination.values.items() if axis not in CONDITIONS)
        for combination in combinations
    )
    count = max(setups.values(), default=0)
    if count <= 1 or count * arms <= MAX_ARMS:
        return []
    axis_path = next(value.path[:-1] for axis, value in combinations[0].values.items() if axis in CONDITIONS)
    return [(axis_path, f"{count} conditions make {count * arms} arms or more; at most {MAX_ARMS} are allowed.")]


def _wrong_name(axis: str) -> str | None:
    parts = axis.split(".")
    if axis in PREFIXES or (len(parts) == 2 and parts[0] == "engine" and parts[1] not in ("", "kind")):
        return None
    near = did_you_mean(axis, (*PREFIXES, "engine.threads", "include", "exclude"))
    return f"there is no axis of this name; known: {', '.join(PREFIXES)}, and keys of engine.{near}"


def _labels(axis: str, values: Sequence[Plain]) -> list[str]:
    if axis in CONDITIONS:
        return ["none" if value is None else _safe(str(value).removesuffix(".0")) for value in values]
    if axis == BINARY and len(values) > 1:
        values = _distinct_ends([str(value).split("/") for value in values])
    return _without_shared_start([_label(axis, value) for value in values])


def _distinct_ends(paths: list[list[str]]) -> list[str]:
    """Return as few parts of each path as tell them apart, without the end that all share: a build's folder."""
    while len({path[-1] for path in paths}) == 1 and all(len(path) > 1 for path in paths):
        paths = [path[:-1] for path in paths]
    longest = max(map(len, paths))
    names = (["/".join(path[-count:]) for path in paths] for count in range(1, longest + 1))
    return next((labels for labels in names if len(set(labels)) == len(labels)), ["/".join(path) for path in paths])


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


def _without_shared_start(labels: list[str]) -> list[str]:
    """Leave out what all labels begin with, up to the last separator: files of a model differ at their end."""
    named = [label for label in labels if label not in ("none", "as_is")]
    shared = os.path.commonprefix(named) if len(named) > 1 else ""  # noqa: RUF071 - these are no paths
    cut = max(shared.rfind(sign) for sign in "_.") + 1
    shortened = [label[cut:] if label in named else label for label in labels]
    return shortened if all(re.fullmatch(NAME_PATTERN, label) for label in shortened) else labels


def needs_draft(arm: Plain) -> bool:
    """Whether an arm, as a file has it, cannot run without a draft model."""
    types = value_at(arm, ("speculation", "type"))
    return any(str(name) in NEEDS_DRAFT_MODEL for name in (types if isinstance(types, list) else [types]))


def merged(parts: Sequence[tuple[Combination, Recipe]]) -> tuple[Recipe, Messages]:
    """Return the recipe of all combinations: the arms of a group side by side, its baseline first."""
    first = parts[0][1]
    names = _ArmNames([combination for combination, _ in parts])
    setups: dict[str, Setup] = {}
    groups: dict[str, str] = {}
    arms: dict[str, dict[str, Arm]] = {}
    problems: Messages = []
    for combination, recipe in parts:
        cache = next((arm.cache_type for arm in recipe.arms), None)
        alike = _key(recipe.engine, recipe.models.target.model_dump(), cache.target if cache else None)
        group = groups.setdefault(alike, _suffix(combination, names.group_axes) or "all")
        setup = _suffix(combination, names.setup_axes) or "all"
        if setup not in setups:
            labels = {axis: value.label for axis, value in combination.values.items() if axis not in CONDITIONS}
            setups[setup] = Setup(name=setup, group=group, axes=labels, engine=recipe.engine, models=recipe.models)
        problems += _same_at_any_temperature(combination, recipe)
        sampling = {name: getattr(recipe.sampling, name) for axis, name in _OF_SAMPLING.items() if axis in names.varied}
        group_arms = arms.setdefault(group, {})
        for arm in recipe.arms:
            if any(fnmatchcase(arm.name, pattern) for pattern in combination.without):
                continue
            name = names.name(arm, combination, setup, group)
            if len(name) > MAX_ARM_NAME:
                message = f"with its axes an arm is called '{name[:60]}…', longer than {MAX_ARM_NAME}."
                problems.append((("matrix",), message))
            identity = {"name": name, "of": arm.name, "setup": setup, "group": group} | sampling
            group_arms.setdefault(name, arm.model_copy(update=identity))
    return _joined(first, list(setups.values()), arms, names), problems + _wrong_arms(first, arms)


class _ArmNames:
    """How the arms of a recipe with axes are called: by the axes that differ among its combinations."""

    def __init__(self, combinations: Sequence[Combination]) -> None:
        axes = list(dict.fromkeys(axis for combination in combinations for axis in combination.values))
        self.varied = [axis for axis in axes if len({_label_of(combination, axis) for combination in combinations}) > 1]
        self.setup_axes = [axis for axis in self.varied if axis not in CONDITIONS]
        self.group_axes = [axis for axis in self.setup_axes if axis not in OF_THE_DRAFT]
        index = self.varied.index(self.setup_axes[0]) if self.setup_axes else 0
        self.leading_conditions = self.varied[:index]
        """Conditions that are written before the axes of setups, and so in names."""
        self.trailing_conditions = [axis for axis in self.varied[index:] if axis in CONDITIONS]

    def name(self, arm: Arm, combination: Combination, setup: str, group: str) -> str:
        ran_in = setup if arm.speculation and takes_draft(arm.speculation.types) else group
        parts = [
            arm.name,
            _suffix(combination, self.leading_conditions),
            ran_in if self.setup_axes and ran_in != "all" else "",
            _suffix(combination, self.trailing_conditions),
        ]
        return "-".join(filter(None, parts))


def _joined(
    first: Recipe, setups: Sequence[Setup], groups: Mapping[str, Mapping[str, Arm]], names: _ArmNames
) -> Recipe:
    arms = [arm for group in groups.values() for arm in group.values()]
    if len(setups) == 1:  # conditions alone: a single setup, which needs no name
        arms = [arm.model_copy(update={"setup": None, "group": None}) for arm in arms]
    else:
        arms = [arm for group in groups.values() for arm in _baselines_first(list(group.values()), first)]
    baseline = next((arm.name for arm in arms if arm.of == first.baseline), first.baseline)
    if not names.varied:
        arms = [arm.model_copy(update={"of": None}) for arm in arms]
    used = {arm.setup for arm in arms}
    used_setups = [setup for setup in setups if setup.name in used]
    first_setup = {"engine": used_setups[0].engine, "models": used_setups[0].models} if used_setups else {}
    # What a context has to hold, and a plan counts at most.
    longest = max(first.sampling_of(arm).max_tokens for arm in arms) if arms else first.sampling.max_tokens
    sampling = first.sampling.model_copy(update={"max_tokens": longest})
    merged_keys = {"arms": arms, "setups": used_setups, "baseline": baseline, "sampling": sampling}
    return first.model_copy(update=merged_keys | first_setup)


def _baselines_first(arms: list[Arm], recipe: Recipe) -> list[Arm]:
    """Return the arms condition by condition, the baseline of each first."""
    order = list(dict.fromkeys(map(recipe.group_of, arms)))
    return sorted(arms, key=lambda arm: (order.index(recipe.group_of(arm)), arm.of != recipe.baseline))


def _wrong_arms(recipe: Recipe, groups: Mapping[str, Mapping[str, Arm]]) -> Messages:
    arms = [arm for group in groups.values() for arm in group.values()]
    problems: Messages = []
    with_baseline = {recipe.group_of(arm) for arm in arms if arm.of == recipe.baseline}
    if uncovered := next((arm for arm in arms if recipe.group_of(arm) not in with_baseline), None):
        message = (
            f"the group {uncovered.group} has no baseline: {recipe.baseline} is excluded there, and "
            f"{uncovered.name} is not."
        )
        problems.append((("matrix", "exclude"), f"{message} Exclude the whole combination, or keep its baseline."))
    names = Counter(arm.name.casefold() for arm in arms)
    if twice := next((name for name, times in names.items() if times > 1), None):
        message = f"two arms would be called '{twice}'; name the values of the axes: {{name: value}}."
        problems.append((("matrix",), message))
    return problems


def _same_at_any_temperature(combination: Combination, recipe: Recipe) -> Messages:
    value = combination.values.get(TEMPERATURE)
    if value is None or recipe.sampling.temperature == 0 or recipe.sampling.top_k != 1:
        return []
    message = f"top_k is 1, so that the answers at {value.label} would be those at 0."
    return [(value.path, f"{message} Write `top_k: 0`, or as many tokens as you mean.")]


def _key(engine: EngineSpec, target: Plain, cache: str | None) -> str:
    return json.dumps([engine.model_dump(mode="json"), target, cache], sort_keys=True, default=str)


def _label_of(combination: Combination, axis: str) -> str:
    return combination.values[axis].label if axis in combination.values else ""


def _suffix(combination: Combination, axes: Sequence[str]) -> str:
    def prefix(axis: str) -> str:
        return PREFIXES.get(axis, f"{axis.rpartition('.')[2]}_")

    return "-".join(f"{prefix(axis)}{_label_of(combination, axis)}" for axis in axes if axis in combination.values)
