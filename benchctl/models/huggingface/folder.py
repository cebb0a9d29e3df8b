"""A bundled model as the Hugging Face folder that vLLM, SGLang and transformers read, derived once and kept per user.

Nothing here defends itself against hostile files: `models.sources` derives bundled models alone, whose SHA-256 is
known, and `training` what it has just written.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchctl.errors import StorageError, UsageError
from benchctl.models.files import ORIGIN, Notice, file_sha256, unfinished
from benchctl.models.gguf_header import GgufHeader, Tensor, read_header
from benchctl.models.huggingface.architectures import LAYOUT_VERSION, LAYOUTS, Array, Config, TensorPair
from benchctl.paths import cache_folder
from benchctl.recipes.source import PADDED, bundled_folder
from benchctl.text import one_line

_SETTINGS = bundled_folder() / "huggingface"
_SHARED = ("chat_template.jinja", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
"""Files that are the same for all bundled models."""
_NUMPY = {"f32": "<f4", "f16": "<f2", "bf16": "<u2", "f64": "<f8", "i32": "<i4", "i64": "<i8"}


def bundled_config(name: str) -> Config:
    """Return the `config.json` of a bundled model, or of a padded one. Raises OSError for others."""
    base, times = PADDED.get(name, (name, 1))
    config: Config = json.loads((_SETTINGS / f"{base}.config.json").read_text("utf-8"))
    return config | {"intermediate_size": config["intermediate_size"] * times}


def huggingface_folder(
    gguf: Path, cache: Path | None = None, *, config: Config | None = None, notice: Notice | None = None
) -> Path:
    """Return the Hugging Face folder of a GGUF file, made unless it is kept already (below `cache`, else per user).

    `config`: its `config.json`, by default that of the bundled model of its name. Weights are bfloat16 where that keeps
    every number, else float32. Raises UsageError for a file that cannot be expressed as such, StorageError when the
    cache cannot be written.
    """
    header = read_header(gguf)
    architecture = header.text("general.architecture")
    if architecture not in LAYOUTS or any(tensor.type_name not in _NUMPY for tensor in header.tensors):
        raise UsageError(
            "no Hugging Face folder can be derived from this file",
            where=one_line(str(gguf)),
            fix=f"Derived are unquantized files of {', '.join(LAYOUTS)}; name the model's own safetensors instead.",
        )
    sha256 = file_sha256(gguf)
    folder = (cache or cache_folder()) / "huggingface" / f"v{LAYOUT_VERSION}" / sha256
    if _is_complete(folder, sha256):
        return folder
    if notice:
        notice(f"Deriving the Hugging Face folder of {gguf.name}")
    making = folder.with_name(f".{folder.name}.making")
    try:
        with unfinished(folder):
            if not _is_complete(folder, sha256):  # else made by the process that we waited for
                for leftover in (making, folder):  # of a killed process, or damaged
                    shutil.rmtree(leftover, ignore_errors=True)
                try:
                    _write(making, header, sha256, config or bundled_config(gguf.stem))
                    making.rename(folder)
                finally:
                    shutil.rmtree(making, ignore_errors=True)
    except OSError as error:
        message = f"the folder cannot be written: {error.strerror or error}"
        raise StorageError(message, where=one_line(str(folder))) from None
    return folder


def _is_complete(folder: Path, sha256: str) -> bool:
    """Return whether `folder` was derived from the file of this hash and still holds all its files."""
    try:
        origin: dict[str, Any] = json.loads((folder / ORIGIN).read_text("utf-8"))
        sizes = {name: (folder / name).stat().st_size for name in origin["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return (origin["sha256"], origin["files"]) == (sha256, sizes)


def _write(folder: Path, header: GgufHeader, sha256: str, config: Config) -> None:
    tensors = _tensors(header, LAYOUTS[header.text("general.architecture") or ""].tensors(config))
    single = any(array.dtype.name == "float32" for array in tensors.values())
    folder.mkdir(parents=True)
    for name in _SHARED:
        shutil.copyfile(_SETTINGS / name, folder / name)
    config |= {"dtype": "float32" if single else "bfloat16"}
    (folder / "config.json").write_text(_json(config), "utf-8", newline="")
    write_weights(folder / "model.safetensors", tensors)
    origin = {"sha256": sha256, "files": {path.name: path.stat().st_size for path in sorted(folder.iterdir())}}
    (folder / ORIGIN).write_text(_json(origin), "utf-8")


def _json(value: Config) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _tensors(header: GgufHeader, pairs: Iterable[TensorPair]) -> dict[str, Array]:
    """Return every tensor by its Hugging Face name; uint16 arrays are bfloat16."""
    listed = {tensor.name: tensor for tensor in header.tensors}
    return {pair.huggingface: _converted(_read(header, listed[pair.gguf]), pair) for pair in pairs}


def _read(header: GgufHeader, tensor: Tensor) -> Array:
    """Return a tensor's numbers: integers as they are, all others as float32."""
    start = header.data_start + tensor.offset
    raw = np.memmap(header.path, dtype=np.uint8, mode="r", offset=start, shape=tensor.nbytes)
    numbers = raw.view(_NUMPY[tensor.type_name]).reshape(tensor.shape[::-1])
    if tensor.type_name == "bf16":
        return from_bfloat16(numbers)
    return numbers.astype(np.float32) if numbers.dtype.kind == "f" else np.asarray(numbers)


def _converted(stored: Array, pair: TensorPair) -> Array:
    """Undo the transform; as bfloat16 where doing it again gives what is stored."""
    numbers = pair.transform.backward(stored)
    if numbers.dtype != np.float32:
        return numbers
    short = to_bfloat16(numbers)
    roundtrip = pair.transform.forward(from_bfloat16(short))
    return short if np.allclose(roundtrip, stored, rtol=pair.transform.tolerance, atol=0.0) else numbers


def to_bfloat16(numbers: Array) -> Array:
    """Round float32 numbers to the nearest bfloat16, ties to even; a NaN stays NaN."""
    import gguf

    stored = gguf.quantize(np.ascontiguousarray(numbers, dtype=np.float32), gguf.GGMLQuantizationType.BF16)
    return stored.view(np.uint16).reshape(numbers.shape)


def from_bfloat16(bits: Array) -> Array:
    """Return the float32 numbers, exactly."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def write_weights(path: Path, tensors: Mapping[str, Array]) -> None:
    """Write the tensors by name. Raises OSError when the file cannot be written."""
    from safetensors import TensorSpec, serialize

    arrays = {name: np.ascontiguousarray(array) for name, array in tensors.items()}  # alive until they are written
    specs = {
        name: TensorSpec(
            dtype="bfloat16" if array.dtype == np.uint16 else array.dtype.name,
            shape=array.shape,
            data_ptr=array.ctypes.data,
            data_len=array.nbytes,
        )
        for name, array in arrays.items()
    }
    path.write_bytes(serialize(specs, metadata={"format": "pt"}))
