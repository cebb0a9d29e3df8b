"""What a model file or folder is by its own header or content, where it is no model that generates text.

The keys are those of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and of llama.cpp's converters.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchctl.errors import UsageError
from benchctl.models.gguf_header import GgufHeader
from benchctl.text import one_line

_MODEL = "Name the model that it belongs to."
_KINDS = {
    "adapter": ("a LoRA adapter", "Name a model that it is merged into (llama-export-lora)."),
    "mmproj": ("a projector for images (mmproj)", _MODEL),
    "imatrix": ("an importance matrix", _MODEL),
    "clip": ("a projector for images (mmproj)", _MODEL),
    "controlvector": ("a control vector", _MODEL),
}
"""By `general.type`, or `general.architecture` of older files."""
_ENCODERS = (
    *("bert", "modern-bert", "neo-bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3", "eurobert"),
    *("gemma-embedding", "t5encoder"),
)
_MAX_INDEX_BYTES = 64 << 20


def check_kind(headers: Sequence[GgufHeader]) -> None:
    """Raises UsageError where the files of a model, in order, are no whole model that generates text."""
    first = headers[0]
    architecture = first.text("general.architecture") or ""
    where = one_line(str(first.path))
    for kind in (first.text("general.type"), architecture):
        if kind in _KINDS:
            name, fix = _KINDS[kind]
            raise UsageError(f"by its header this is {name}, not a model", where=where, fix=fix)
    if architecture in _ENCODERS or first.integer(f"{architecture}.pooling_type"):
        reason = f"this is an embedding model ({one_line(architecture, 40)}), which generates no text"
        raise UsageError(f"by its header {reason}", where=where, fix="Name a model that generates text.")
    for index, header in enumerate(headers):
        _check_split(header, index, len(headers))
    if not any(header.tensors for header in headers):
        kind = "a vocabulary" if first.count("tokenizer.ggml.tokens") else "metadata"
        raise UsageError(f"this file has {kind} alone, and no weights", where=where, fix="Name a file with weights.")


def _check_split(header: GgufHeader, index: int, files: int) -> None:
    count, number = header.integer("split.count") or 1, header.integer("split.no") or 0
    if (count, number) != (files, index) and "split.count" in header.metadata:
        named = "its name is that of no shard" if files == 1 else f"its name that it is shard {index + 1} of {files}"
        raise UsageError(
            f"its header says that it is shard {number + 1} of {count}, and {named}",
            where=one_line(str(header.path)),
            fix=f"Call the shards NAME-00001-of-{count:05d}.gguf and so on, in one folder. Shards that were joined "
            "are no model: join them with llama-gguf-split --merge.",
        )


def folder_error(folder: Path) -> UsageError:
    """Return why a folder that is no folder of safetensors cannot be taken as a model."""
    where = one_line(str(folder))
    ggufs = sorted(path.name for path in folder.glob("*.gguf"))
    if ggufs:
        fix = f"Name the GGUF file in it: {one_line(', '.join(ggufs), 200)}."
        return UsageError("this is a folder, not a model file", where=where, fix=fix)
    if (folder / "adapter_config.json").is_file():
        return UsageError("this folder has a LoRA adapter (PEFT), not a model", where=where, fix=_KINDS["adapter"][1])
    weights = [path.name for pattern in ("*.bin", "*.pth", "*.pt") for path in sorted(folder.glob(pattern))]
    if any(folder.glob("*.safetensors")):
        return UsageError("this folder has safetensors and no config.json", where=where, fix="Download config.json.")
    if weights:
        fix = "Take a repository with *.safetensors, convert the weights to them, or name a GGUF file."
        message = f"this folder has its weights in PyTorch's format alone ({one_line(', '.join(weights), 120)})"
        return UsageError(f"{message}, which benchctl does not load", where=where, fix=fix)
    fix = "A model is a folder with config.json and *.safetensors or, for llama.cpp, a GGUF file."
    return UsageError("this folder has no model", where=where, fix=fix)


def check_index(folder: Path) -> None:
    """Raises UsageError where a folder of safetensors is MLX's, or lacks shards that its index lists."""
    if _is_of_mlx(folder / "config.json"):
        message = "the weights in this folder are quantized by MLX, which no engine of benchctl loads"
        fix = "Name the original repository, or measure MLX's server as an endpoint."
        raise UsageError(message, where=one_line(str(folder)), fix=fix)
    index = folder / "model.safetensors.index.json"
    try:
        if not index.is_file() or index.stat().st_size > _MAX_INDEX_BYTES:
            return
        names = set(map(str, json.loads(index.read_text("utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        fix = "Download it again."
        raise UsageError("the index of the safetensors cannot be read", where=one_line(str(index)), fix=fix) from None
    if missing := sorted(name for name in names if not (folder / name).is_file()):
        raise UsageError(
            f"{len(missing)} of {len(names)} shards of this model are missing: {one_line(', '.join(missing), 300)}",
            where=one_line(str(folder)),
            fix="Download the missing shards into the same folder.",
        )


def _is_of_mlx(config: Path) -> bool:
    """Whether a configuration has MLX's `quantization`; other methods have `quantization_config` with a name."""
    try:
        if config.stat().st_size > _MAX_INDEX_BYTES:
            return False
        keys = json.loads(config.read_text("utf-8")).get("quantization")
        return isinstance(keys, dict) and {"bits", "group_size"} <= keys.keys()
    except (OSError, ValueError, AttributeError, RecursionError):
        return False
