"""A GGUF file as the Hugging Face folder that vLLM and transformers read, derived once and kept per user."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchctl.errors import StorageError, UsageError
from benchctl.models.files import Notice, file_sha256, unfinished
from benchctl.models.gguf_header import TENSOR_TYPES, GgufHeader, Tensor, read_header
from benchctl.models.huggingface.architectures import LAYOUTS
from benchctl.models.huggingface.layout import LAYOUT_VERSION, Config, Layout, ModelHeader, TensorPair
from benchctl.models.huggingface.tokenizer import ends_of_answer, special_tokens, tokenizer_config, tokenizer_json
from benchctl.paths import cache_folder
from benchctl.text import one_line

if TYPE_CHECKING:
    from benchctl.models.huggingface.layout import Array


ORIGIN = "derived-from.json"
"""In a derived folder: the source's SHA-256 and name, the layout and its version, and each file's size in bytes."""


def huggingface_folder(gguf: Path, cache: Path | None = None, *, notice: Notice | None = None) -> Path:
    """Return the Hugging Face folder of a GGUF file, made unless it is kept already (below `cache`, else per user).

    It holds `config.json`, `generation_config.json`, `model.safetensors`, the tokenizer, the chat template and
    `derived-from.json`; its name is the source's SHA-256. Weights are bfloat16 where that keeps every number of the
    file, else float32. Safe with several processes at once. Raises UsageError for a file that cannot be expressed
    (unknown architecture, quantized, damaged), StorageError when the cache cannot be written.
    """
    header = read_header(gguf)
    sha256 = file_sha256(gguf)
    folder = (cache or cache_folder()) / "huggingface" / f"v{LAYOUT_VERSION}" / sha256
    if is_complete(folder, sha256):
        return folder
    if notice:
        notice(f"Deriving the Hugging Face folder of {gguf.name}")
    return _derive(header, sha256, folder)


def export_folder(gguf: Path, folder: Path) -> None:
    """Write the Hugging Face folder of a GGUF file as `folder`, which must be new, or derived from this very file.

    Raises UsageError for another folder and as `huggingface_folder` does, StorageError when it cannot be written.
    """
    header = read_header(gguf)
    sha256 = file_sha256(gguf)
    if is_complete(folder, sha256):
        return
    if os.path.lexists(folder):
        what = "this is there already and was not derived from this model"
        raise UsageError(what, where=_path_text(folder), fix="Name a folder that is not there yet.")
    _derive(header, sha256, folder)


def is_complete(folder: Path, sha256: str) -> bool:
    """Return whether `folder` was derived by this layout from the file of this hash and still holds all its files."""
    try:
        origin: dict[str, Any] = json.loads((folder / ORIGIN).read_text("utf-8"))
        sizes = {name: (folder / name).stat().st_size for name in origin["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return (origin["sha256"], origin["layout_version"], origin["files"]) == (sha256, LAYOUT_VERSION, sizes)


def _derive(header: GgufHeader, sha256: str, folder: Path) -> Path:
    """Write the folder beside its place and rename it; what stands there is damaged and goes away."""
    try:
        texts, tensors = _contents(header)
    except (ValueError, ArithmeticError) as error:  # shapes that contradict each other, text that is no UTF-8
        raise UsageError(f"the model file contradicts itself: {error}", where=_path_text(header.path)) from None
    making = folder.with_name(f".{folder.name}.making")
    try:
        with unfinished(folder):
            if is_complete(folder, sha256):  # made by the process that we waited for
                return folder
            shutil.rmtree(making, ignore_errors=True)  # left behind by a killed process
            try:
                _write(making, texts, tensors)
                _write_origin(making, header, sha256)
                if folder.exists():
                    shutil.rmtree(folder)
                making.rename(folder)
            finally:
                shutil.rmtree(making, ignore_errors=True)
    except OSError as error:
        raise StorageError(
            f"the folder cannot be written: {error.strerror or error}", where=_path_text(folder)
        ) from None
    return folder


def _contents(header: GgufHeader) -> tuple[dict[str, str], dict[str, Array]]:
    """Return the text files and the tensors of a model."""
    layout = layout_of(header.text("general.architecture"))
    _check_blocks(header)
    config = {"architectures": [layout.model_class], **layout.config(ModelHeader(header))}
    tensors = huggingface_tensors(header, layout.tensors(config))
    single = any(array.dtype.name == "float32" for array in tensors.values())
    special = {f"{name}_token_id": token for name, token in special_tokens(header).items()}
    config |= {"dtype": "float32" if single else "bfloat16", **special}
    texts = {
        "config.json": _json(config),
        "generation_config.json": _json({**special, "eos_token_id": ends_of_answer(header)}),
        "tokenizer.json": _json(tokenizer_json(header)),
        "tokenizer_config.json": _json(tokenizer_config(header)),
    }
    if template := header.text("tokenizer.chat_template"):
        texts["chat_template.jinja"] = template
    return texts, tensors


def _check_blocks(header: GgufHeader) -> None:
    """Raise UsageError for more blocks than tensors, before a list of four billion blocks is made."""
    for key in ("block_count", "nextn_predict_layers"):
        blocks = header.integer(f"{header.text('general.architecture')}.{key}") or 0
        if blocks > len(header.tensors):
            what = f"the model file contradicts itself: {key} is {blocks}, and it has {len(header.tensors)} tensors"
            raise UsageError(what, where=_path_text(header.path))


def _write(folder: Path, texts: Mapping[str, str], tensors: Mapping[str, Array]) -> None:
    folder.mkdir()
    for name, text in texts.items():
        (folder / name).write_text(text, "utf-8", newline="")
    write_weights(folder / "model.safetensors", tensors)


def _write_origin(folder: Path, header: GgufHeader, sha256: str) -> None:
    origin = {
        "sha256": sha256,
        "source": header.path.name,
        "name": header.text("general.name"),
        "architecture": header.text("general.architecture"),
        "layout_version": LAYOUT_VERSION,
        "files": {path.name: path.stat().st_size for path in sorted(folder.iterdir())},
    }
    (folder / ORIGIN).write_text(_json(origin), "utf-8")


def _json(value: Config) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _path_text(folder: Path) -> str:
    return one_line(str(folder))


def layout_of(architecture: str | None) -> Layout:
    """Return the layout of a GGUF architecture. Raises UsageError for an unknown architecture."""
    if architecture not in LAYOUTS:
        raise UsageError(
            f"no Hugging Face folder can be derived for the architecture '{one_line(str(architecture), 60)}'",
            fix=f"Known: {', '.join(LAYOUTS)}. Use the model's own repository of safetensors instead.",
        )
    return LAYOUTS[architecture]


_NUMPY = {"f32": "<f4", "f16": "<f2", "bf16": "<u2", "f64": "<f8", "i32": "<i4", "i64": "<i8"}


def huggingface_tensors(header: GgufHeader, pairs: Iterable[TensorPair]) -> dict[str, Array]:
    """Return every tensor by its Hugging Face name; uint16 arrays are bfloat16.

    Raises UsageError for a quantized file, and when the file's tensors are not those of the layout.
    """
    listed = {tensor.name: tensor for tensor in header.tensors}
    required = list(pairs)
    where = one_line(str(header.path))
    quantized = sorted({t.type_name for t in header.tensors if t.type_name not in _NUMPY})
    if quantized:
        known = [name for name in quantized if any(kind.name == name for kind in TENSOR_TYPES.values())]
        what = f"it is quantized ({', '.join(known)})" if known else f"its type {quantized[0]} is not known"
        fix = "Name the bf16, f16 or f32 file that it was made from."
        raise UsageError(f"no Hugging Face folder can be derived from this file: {what}", where=where, fix=fix)
    names = {pair.gguf for pair in required}
    for problem, odd in (("lacks", names - listed.keys()), ("has, beyond its architecture,", listed.keys() - names)):
        if odd:
            some = one_line(", ".join(sorted(odd)[:5]), 200)
            raise UsageError(f"the model file {problem} {len(odd)} tensors: {some}", where=where)
    return {pair.huggingface: _converted(_read(header, listed[pair.gguf]), pair) for pair in required}


def _read(header: GgufHeader, tensor: Tensor) -> Array:
    """Return a tensor's numbers: integers as they are, all others as float32."""
    import numpy as np

    raw = np.memmap(
        header.path, dtype=np.uint8, mode="r", offset=header.data_start + tensor.offset, shape=tensor.nbytes
    )
    numbers = raw.view(_NUMPY[tensor.type_name]).reshape(tensor.shape[::-1])
    if tensor.type_name == "bf16":
        return from_bfloat16(numbers)
    return numbers.astype(np.float32) if numbers.dtype.kind == "f" else np.asarray(numbers)


def _converted(stored: Array, pair: TensorPair) -> Array:
    """Undo the transform; as bfloat16 where doing it again gives what is stored."""
    import numpy as np

    numbers = pair.transform.backward(stored)
    if numbers.dtype != np.float32:
        return numbers
    short = to_bfloat16(numbers)
    again = pair.transform.forward(from_bfloat16(short))
    return short if np.allclose(again, stored, rtol=pair.transform.tolerance, atol=0.0) else numbers


def to_bfloat16(numbers: Array) -> Array:
    """Round float32 numbers to the nearest bfloat16, ties to even; a NaN stays NaN."""
    import numpy as np

    bits = np.ascontiguousarray(numbers, dtype=np.float32).view(np.uint32)
    nearest = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(bits.view(np.float32)), quiet, nearest).astype(np.uint16).reshape(numbers.shape)


def from_bfloat16(bits: Array) -> Array:
    """Return the float32 numbers, exactly."""
    import numpy as np

    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def write_weights(path: Path, tensors: Mapping[str, Array]) -> None:
    """Write the tensors by name. Raises OSError when the file cannot be written."""
    import numpy as np
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
