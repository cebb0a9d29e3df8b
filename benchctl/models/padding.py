"""A bundled model with feed-forward layers padded with zeros: the same function, the memory traffic of a large model.

A token's time on a large model is the time of reading its weights; the bundled models are too small for that. Rows of
zeros in `ffn_gate` and `ffn_up`, and columns of zeros in `ffn_down`, add nothing to any activation: act(0) * 0 * 0 = 0.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchctl.errors import StorageError, UsageError
from benchctl.models.files import Notice, made_once
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


def padded_model(name: str, notice: Notice | None = None) -> Path:
    """Return the file of a padded bundled model, made where it is not there yet. Raises StorageError, UsageError."""
    base, times = PADDED[name]
    header, into = read_header(bundled_folder() / f"{base}.gguf"), padded_file(name)
    layout = _layout(header, times)

    def make(part: Path) -> None:
        _check_room(into.parent, layout.size)
        _write(header, layout, part)

    try:
        if into.is_file() and into.stat().st_size != layout.size:
            into.unlink()
        return made_once(into, make, notice)
    except OSError as error:
        raise StorageError(f"the padded model could not be written: {error.strerror}", where=str(into)) from error


def _check_room(folder: Path, size: int) -> None:
    import psutil

    free = {"disk": shutil.disk_usage(folder).free, "memory": psutil.virtual_memory().available}
    for what, needed in (("disk", size), ("memory", round(_ROOM * size))):
        if free[what] < needed:
            raise StorageError(
                f"the padded model needs {needed / 1e9:.1f} GB of free {what}, and there are {free[what] / 1e9:.1f} GB",
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


def _infos(tensors: Sequence[Tensor]) -> bytes:
    """Return the list of tensors as GGUF has it."""
    return b"".join(
        struct.pack("<Q", len(tensor.name.encode()))
        + tensor.name.encode()
        + struct.pack(f"<I{len(tensor.shape)}QIQ", len(tensor.shape), *tensor.shape, tensor.type_id, tensor.offset)
        for tensor in tensors
    )


@dataclass(frozen=True)
class _Layout:
    """How the padded file is written."""

    head: bytes
    """What stands before the data: metadata and the list of tensors."""
    tensors: list[Tensor]

    @property
    def data_start(self) -> int:
        """Where in the file tensor data begins."""
        return _aligned(len(self.head))

    @property
    def size(self) -> int:
        """Bytes of the file."""
        last = self.tensors[-1]
        return self.data_start + last.offset + _aligned(_bytes(last))


def _layout(header: GgufHeader, times: int) -> _Layout:
    head = header.path.read_bytes()[: header.data_start]
    infos_at = head.find(_infos(header.tensors))
    if infos_at < 0 or head[4:8] != struct.pack("<I", 3):
        raise UsageError("the bundled model is not as it was shipped", where=str(header.path))
    tensors = _planned(header, times)
    return _Layout(_widened(head[:infos_at], header, times) + _infos(tensors), tensors)


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


def _write(header: GgufHeader, layout: _Layout, into: Path) -> None:
    with header.path.open("rb") as source, into.open("wb") as file:
        file.write(layout.head)
        for old, new in zip(header.tensors, layout.tensors, strict=True):
            source.seek(header.data_start + old.offset)
            content = source.read(old.nbytes or 0)
            file.seek(layout.data_start + new.offset)
            file.write(content if old.shape == new.shape and old.type_id == new.type_id else _padded(content, old, new))
        file.truncate(layout.size)


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
