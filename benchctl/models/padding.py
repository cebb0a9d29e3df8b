"""A bundled model with feed-forward layers padded with zeros: the same function, the memory traffic of a large one.

A token's time on a large model is the time of reading its weights; the bundled models are too small for that. Rows of
zeros in `ffn_gate` and `ffn_up`, and columns of zeros in `ffn_down`, add nothing to any activation: act(0) * 0 * 0 = 0.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
from pathlib import Path

from benchctl.errors import StorageError, UsageError
from benchctl.models.gguf_header import GgufHeader, Tensor, read_header
from benchctl.paths import cache_folder
from benchctl.recipes.source import PADDED, bundled_folder

_BF16, _F32 = 30, 0
_FFN = ("ffn_gate.weight", "ffn_up.weight", "ffn_down.weight")
_ALIGNMENT = 32
_ROOM = 2.0
"""Free memory that is asked for, as a multiple of the file: the weights are mapped, and lie in the page cache."""


def padded_file(name: str) -> Path:
    """Return where a padded model lies once it is made."""
    base, times = PADDED[name]
    return cache_folder() / "padded" / f"{base}-ffn-{times}.gguf"


def padded_model(name: str) -> Path:
    """Return the file of a padded bundled model, made where it is not there yet. Raises StorageError, UsageError."""
    base, times = PADDED[name]
    header, into = read_header(bundled_folder() / f"{base}.gguf"), padded_file(name)
    plan = _planned(header, times)
    size = _data_start(header) + sum(_aligned(_bytes(tensor)) for tensor in plan)
    if into.is_file() and into.stat().st_size == size:
        return into
    _check_room(into.parent, size)
    try:
        with tempfile.NamedTemporaryFile(dir=into.parent, prefix=".making-", delete=False) as file:
            made = Path(file.name)
            try:
                _write(header, plan, times, made)
                made.replace(into)
            finally:
                made.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"the padded model could not be written: {error.strerror}", where=str(into)) from error
    return into


def _check_room(folder: Path, size: int) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise StorageError(f"the padded model cannot be written: {error.strerror}", where=str(folder)) from error
    import psutil

    memory = psutil.virtual_memory().available
    for what, there, needed in (("disk", free, size), ("memory", memory, round(_ROOM * size))):
        if there < needed:
            raise StorageError(
                f"the padded model needs {needed / 1e9:.1f} GB of free {what}, and there are {there / 1e9:.1f} GB",
                where=str(folder),
                fix="Free some, or measure the bundled model itself.",
            )


def _planned(header: GgufHeader, times: int) -> list[Tensor]:
    """Return the tensors as they are written: offsets from the start of the data, feed-forward weights in float32."""
    planned, offset = [], 0
    for tensor in header.tensors:
        shape, kind = tensor.shape, tensor.type_id
        if tensor.name.endswith(_FFN):
            if kind not in (_BF16, _F32):
                raise UsageError(f"{tensor.name} is {tensor.type_name}; only bf16 and f32 are padded")
            inner = 0 if tensor.name.endswith("ffn_down.weight") else 1
            shape = tuple(size * times if axis == inner else size for axis, size in enumerate(shape))
            kind = _F32
        kept = Tensor(tensor.name, shape, kind, offset, None if kind == _F32 else tensor.nbytes)
        planned.append(kept)
        offset += _aligned(_bytes(kept))
    return planned


def _bytes(tensor: Tensor) -> int:
    return tensor.nbytes if tensor.nbytes is not None else 4 * tensor.elements


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _info_bytes(tensors: tuple[Tensor, ...] | list[Tensor]) -> bytes:
    """Return the list of tensors as GGUF has it."""
    return b"".join(
        struct.pack("<Q", len(tensor.name.encode()))
        + tensor.name.encode()
        + struct.pack(f"<I{len(tensor.shape)}QIQ", len(tensor.shape), *tensor.shape, tensor.type_id, tensor.offset)
        for tensor in tensors
    )


def _metadata(header: GgufHeader) -> bytes:
    """Return what stands before the list of tensors."""
    head = header.path.read_bytes()[: header.data_start]
    at = head.find(_info_bytes(header.tensors))
    if at < 0 or head[4:8] != struct.pack("<I", 3):
        raise UsageError("the bundled model is not as it was shipped", where=str(header.path))
    return head[:at]


def _data_start(header: GgufHeader) -> int:
    """Return where data starts: shapes and offsets change, their lengths do not."""
    return _aligned(len(_metadata(header)) + len(_info_bytes(header.tensors)))


def _widened(metadata: bytes, header: GgufHeader, times: int) -> bytes:
    """Return the metadata with the width of the padded layers."""
    key = f"{header.text('general.architecture')}.feed_forward_length"
    width = header.integer(key)
    named = struct.pack("<Q", len(key)) + key.encode()
    old = [named + struct.pack("<II", kind, width or 0) for kind in (4, 5) if width]  # a 32-bit number
    present = [text for text in old if metadata.count(text) == 1]
    if not present or width is None:
        raise UsageError(f"{key} is not there", where=str(header.path))
    return metadata.replace(present[0], present[0][:-4] + struct.pack("<I", width * times))


def _write(header: GgufHeader, plan: list[Tensor], times: int, into: Path) -> None:
    metadata = _widened(_metadata(header), header, times)
    with header.path.open("rb") as source, into.open("wb") as file:
        file.write(metadata + _info_bytes(plan))
        start = _data_start(header)
        for old, new in zip(header.tensors, plan, strict=True):
            source.seek(header.data_start + old.offset)
            content = source.read(old.nbytes or 0)
            file.seek(start + new.offset)
            file.write(content if old.shape == new.shape and old.type_id == new.type_id else _padded(content, old, new))
        file.truncate(start + _aligned(plan[-1].offset + _bytes(plan[-1])))


def _padded(content: bytes, old: Tensor, new: Tensor) -> bytes:
    """Return a matrix in float32, with zeros where it is wider."""
    import numpy as np

    if old.type_id == _BF16:  # the upper half of a float32
        values = (np.frombuffer(content, np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        values = np.frombuffer(content, np.float32)
    matrix = np.zeros(new.shape[::-1], np.float32)
    matrix[: old.shape[1], : old.shape[0]] = values.reshape(old.shape[::-1])
    return matrix.tobytes()
