"""What is wrong with a model's folder, before anything is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from benchctl.engines.transformers.adapter import TransformersSpec
from benchctl.models.folder_facts import folder_facts

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model")
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_BYTES_STORED = {"f32": 4, "bf16": 2, "f16": 2}


def model_config(folder: Path) -> Mapping[str, Any]:
    """Return the configuration of the language model in a folder; one nested for text stands for the whole."""
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    nested = config.get("text_config") if isinstance(config, dict) else None
    inner = nested if isinstance(nested, dict) else config
    return inner if isinstance(inner, dict) else {}


def model_problems(folder: Path, spec: TransformersSpec, *, on_cpu: bool) -> list[str]:
    """Return a sentence for everything that keeps a target from being loaded."""
    facts, config = folder_facts(folder), model_config(folder)
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
        problems.append(
            f"engine.context: {spec.context} is more than the {longest} tokens that the target was made for."
        )
    needed = _needed_bytes(facts, spec.dtype)
    free = psutil.virtual_memory().available
    if on_cpu and needed > free:
        problems.append(
            f"models.target: its weights need {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB of memory are free."
        )
    return problems


def _needed_bytes(facts: Mapping[str, Any], dtype: str) -> int:
    stored: Mapping[str, int] = facts["parameters_by_dtype"]
    return sum(count * (_BYTES.get(dtype) or _BYTES_STORED.get(kind, 4)) for kind, count in stored.items())
