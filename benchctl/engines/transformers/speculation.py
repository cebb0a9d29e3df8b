"""Checks an arm's speculation against what the server can do, and lists the settings that are worth trying."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from benchctl.engines.transformers.adapter import TransformersSpec
from benchctl.engines.transformers.methods import GROUP, REFUSED, Method, method_of, registered
from benchctl.models.files import ResolvedPair
from benchctl.models.folder_facts import folder_facts, text_config, vocabulary_differences
from benchctl.recipes.problems import did_you_mean
from benchctl.recipes.speculation import Speculation

_UNUSED = ("min", "p_min", "size_n", "size_m", "min_hits")
"""Keys of a speculation that have no effect here, unless a method lists them."""


def depth_of(speculation: Speculation) -> int | None:
    """Return the depth, by either of its keys: for prompt lookup it may be `size_m`."""
    return speculation.max if speculation.max is not None else speculation.size_m


def recipe_problems(speculation: Speculation) -> list[str]:
    """Return a sentence for everything in an arm's speculation that this server cannot do with any model."""
    if len(speculation.types) > 1:
        return [f"transformers takes one method at a time, not {' and '.join(speculation.types)}."]
    (type_name,) = speculation.types
    name = method_of(type_name)
    if type_name in REFUSED:
        return [f"{type_name}: {REFUSED[type_name]}."]
    methods = registered()
    if name not in methods:
        return [
            f"transformers has no method `{type_name}`.{did_you_mean(type_name, methods)} It has {', '.join(methods)}; "
            f"a package installed beside benchctl can bring another ({GROUP})."
        ]
    method = methods[name]
    problems = [] if depth_of(speculation) is not None else [f"{type_name} has no depth of its own; give `max`."]
    unused = [key for key in _UNUSED if key not in method.keys]
    problems += [f"`{key}` has no effect on {type_name}." for key in unused if getattr(speculation, key) is not None]
    return problems + _option_problems(type_name, method, speculation.options or {})


def speculation_problems(speculation: Speculation, models: ResolvedPair) -> list[str]:
    """Return a sentence for everything in an arm's speculation that this server cannot do with these models."""
    if problems := recipe_problems(speculation):
        return problems
    (type_name,) = speculation.types
    method, options = registered()[method_of(type_name)], speculation.options or {}
    config = text_config(models.target.path / "config.json")
    if unfit := method.unfit(str(config.get("model_type"))):
        problems.append(f"{type_name}: the target ({config.get('model_type')}) {unfit}.")
    if method.draft:
        problems += _pair_problems(type_name, models)
    lists = {key: value for key, value in options.items() if isinstance(value, list)}
    if type_name == "self-skip" and not lists:
        problems.append(f"{type_name} needs a list of layers in its options: layers, attention, recurrent or mlp.")
    layers = config.get("num_hidden_layers")
    if isinstance(layers, int):
        for key, numbers in {**lists, "exit_layer": [options.get("exit_layer", 0)]}.items():
            if beyond := [number for number in numbers if isinstance(number, int) and number >= layers]:
                problems.append(f"options.{key}: {beyond[0]} is beyond the last of the target's {layers} layers.")
    return problems


_WORTH_TRYING: tuple[dict[str, Any], ...] = (
    {"type": "assisted", "max": 4},
    {"type": "prompt-lookup", "max": 4, "size_n": 3},
    {"type": "self-ssm", "max": 4},
    {"type": "self-linear", "max": 4},
    {"type": "self-layerskip", "max": 4, "options": {"skip": 0.5}},
    {"type": "assisted", "max": 2},
    {"type": "prompt-lookup", "max": 8, "size_n": 2},
    {"type": "self-ssm", "max": 2},
    {"type": "self-linear", "max": 2},
    {"type": "self-layerskip", "max": 2, "options": {"skip": 0.25}},
    {"type": "assisted", "max": 8},
    {"type": "prompt-lookup", "max": 16, "size_n": 4},
)
"""The likeliest to pay first."""


def worth_trying(models: ResolvedPair) -> list[Speculation]:
    """Return the settings that this server can run with these models."""
    settings = [Speculation.model_validate(setting) for setting in _WORTH_TRYING]
    return [setting for setting in settings if not speculation_problems(setting, models)]


def _option_problems(type_name: str, method: Method, options: Mapping[str, object]) -> list[str]:
    if method.options is None:
        return [
            f"options.{key}: options of {type_name} are numbers, true or false, not {value!r}."
            for key, value in options.items()
            if not isinstance(value, (int, float))
        ]
    problems = []
    for key, value in options.items():
        if key not in method.options:
            names = ", ".join(method.options) or "none"
            near = did_you_mean(key, method.options)
            problems.append(f"options.{key}: {type_name} has no such option.{near} It has {names}.")
        elif problem := method.options[key].problem(value):
            problems.append(f"options.{key}: it {problem}, not {value!r}.")
    return problems


def _pair_problems(type_name: str, models: ResolvedPair) -> list[str]:
    """Return why transformers cannot draft with this model for this target."""
    if models.draft is None:
        return [f"{type_name} needs a draft model; name one in models.draft."]
    differences = "; ".join(vocabulary_differences(models.target.path, models.draft.path))
    if type_name == "assisted-universal":
        return [] if differences else [f"{type_name} is for a draft of another tokenizer; this one needs assisted."]
    if not differences:
        return []
    return [f"{type_name}: the draft has another vocabulary, which assisted-universal alone takes: {differences}."]


_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model")
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "f32": 4, "bf16": 2, "f16": 2}


def model_problems(folder: Path, spec: TransformersSpec, *, on_cpu: bool) -> list[str]:
    """Return a sentence for everything that keeps a target from being loaded."""
    facts, config = folder_facts(folder), text_config(folder / "config.json")
    problems = []
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        problems.append(f"models.target: {folder} has no tokenizer; it must hold tokenizer.json.")
    if config.get("auto_map") and not spec.remote_code:
        problems.append(
            "models.target: the folder brings code of its own (auto_map in config.json), which could do anything. "
            "If you trust it, write `remote_code: true` in engine."
        )
    longest = facts["context_length"]
    if isinstance(longest, int) and spec.context > longest:
        problems.append(f"engine.context: {spec.context} is more than the target's {longest} tokens.")
    stored: Mapping[str, int] = facts["parameters_by_dtype"]
    needed = sum(count * _BYTES.get(spec.dtype, _BYTES.get(kind, 4)) for kind, count in stored.items()) / 2**30
    free = psutil.virtual_memory().available / 2**30
    if on_cpu and needed > free:
        problems.append(f"models.target: its weights need {needed:.1f} GiB, and {free:.1f} GiB of memory are free.")
    return problems
