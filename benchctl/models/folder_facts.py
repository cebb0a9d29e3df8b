"""Facts of a Hugging Face folder for the manifest, and whether two folders have the same vocabulary."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

from benchctl.errors import UsageError
from benchctl.models.vocabulary import text_differences
from benchctl.text import one_line

_RECURRENT = re.compile(r"\.(?:mamba|linear_attn|mixer|ssm|conv)\.")
_ATTENTION = re.compile(r"\.(?:self_attn|attn|attention)\.")


def folder_facts(folder: Path) -> dict[str, Any]:
    """Return what `config.json` and the headers of `*.safetensors` tell, else `None`. Raises UsageError."""
    config = _read(folder / "config.json")
    nested = config.get("text_config")
    inner = nested if isinstance(nested, dict) else config
    names, parameters = weights_of(folder)
    recurrent = any(_RECURRENT.search(name) for name in names)
    attending = any(_ATTENTION.search(name) for name in names)
    classes = config.get("architectures")
    return {
        "architecture": classes[0] if isinstance(classes, list) and classes else None,
        "model_type": config.get("model_type"),
        "parameters": sum(parameters.values()),
        "parameters_by_dtype": dict(parameters.most_common()),
        "context_length": inner.get("max_position_embeddings"),
        "vocab_size": inner.get("vocab_size"),
        "layers": inner.get("num_hidden_layers"),
        "memory": ("hybrid" if attending else "recurrent") if recurrent else "attention" if attending else None,
        "end_tokens": _end_tokens(folder, inner),
    }


def _end_tokens(folder: Path, config: dict[str, Any]) -> list[int]:
    """Return the ids that end an answer, by `generation_config.json`, else `config.json`; empty where neither has."""
    file = folder / "generation_config.json"
    token_ids = _read(file).get("eos_token_id") if file.is_file() else None
    ids = config.get("eos_token_id") if token_ids is None else token_ids
    return sorted(token for token in (ids if isinstance(ids, list) else [ids]) if isinstance(token, int))


def text_config(file: Path) -> dict[str, Any]:
    """Return the configuration of the language model, also where it is nested in another's. Raises UsageError."""
    config = _read(file)
    nested = config.get("text_config")
    return {**config, **(nested if isinstance(nested, dict) else {})}


def weights_of(folder: Path) -> tuple[set[str], Counter[str]]:
    """Return the names of all tensors, and how many numbers there are of each type (`bf16`). Raises UsageError."""
    from safetensors import SafetensorError, safe_open

    names: set[str] = set()
    numbers: Counter[str] = Counter()
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="numpy") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - this is no dict
                    piece = tensors.get_slice(name)
                    names.add(name)
                    numbers[piece.get_dtype().lower()] += math.prod(piece.get_shape())
        except (SafetensorError, OSError) as error:
            message = f"this safetensors file is truncated or damaged: {one_line(str(error), 200)}"
            raise UsageError(message, where=one_line(str(file)), fix="Download it again.") from None
    return names, numbers


def vocabulary_differences(target: Path, draft: Path) -> list[str]:
    """Return in which ways two folders' tokenizers differ; empty when token ids mean the same in both.

    By `tokenizer.json`; folders without it (a sentencepiece model alone) are compared by the size of the vocabulary.
    Raises UsageError for a file that cannot be read.
    """
    ours, theirs = (_vocabulary(folder) for folder in (target, draft))
    if ours is None or theirs is None:
        sizes = [folder_facts(folder)["vocab_size"] for folder in (target, draft)]
        return [] if sizes[0] == sizes[1] else [f"one has {sizes[0]} tokens, the other {sizes[1]}"]
    return list(text_differences(ours, theirs))


def _vocabulary(folder: Path) -> dict[int, str] | None:
    if not (folder / "tokenizer.json").is_file():
        return None
    data = _read(folder / "tokenizer.json")
    try:
        listed = data["model"]["vocab"]
        if isinstance(listed, list):  # unigram: pairs of text and score
            texts = {number: str(entry[0]) for number, entry in enumerate(listed)}
        else:
            texts = {int(number): text for text, number in listed.items()}
        return texts | {int(token["id"]): str(token["content"]) for token in data.get("added_tokens") or ()}
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError):
        raise UsageError("this is no tokenizer that can be read", where=str(folder / "tokenizer.json")) from None


def _read(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = "its JSON is nested too deeply" if isinstance(error, RecursionError) else one_line(str(error))
        fix = "Download it again, or name another model."
        raise UsageError(f"this file cannot be read: {reason}", where=str(file), fix=fix) from None
    if not isinstance(data, dict):
        raise UsageError("expected a JSON object", where=str(file))
    return data
