"""A bundled model with feed-forward layers padded with zeros: the same function, the memory traffic of a large model.

A token's time on a large model is the time of reading its weights; the bundled models are too small for that. Rows of
zeros in `ffn_gate` and `ffn_up`, and columns of zeros in `ffn_down`, add nothing to any activation: act(0) * 0 * 0 = 0.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from benchctl.errors import StorageError, UsageError
from benchctl.models.files import Notice, made_once
from benchctl.models.gguf_header import read_header
from benchctl.paths import cache_folder
from benchctl.recipes.source import PADDED, bundled_folder

_WIDER = {"ffn_gate.weight": 0, "ffn_up.weight": 0, "ffn_down.weight": 1}
"""The feed-forward matrices, and which of their axes (rows, columns) is padded."""
_ROOM = 2.0
"""Free memory that is asked for, as a multiple of the file: the weights are mapped, and lie in the page cache."""


def padded_file(name: str) -> Path:
    """Return where a padded model lies once it is made."""
    base, times = PADDED[name]
    return cache_folder() / "padded" / f"{base}-ffn-{times}.gguf"


def padded_model(name: str, notice: Notice | None = None) -> Path:
    """Return the file of a padded bundled model, made where it is not there yet. Raises StorageError."""
    base, times = PADDED[name]
    source, into = bundled_folder() / f"{base}.gguf", padded_file(name)

    def make(part: Path) -> None:
        wider = sum(tensor.elements for tensor in read_header(source).tensors if _axis(tensor.name) is not None)
        _check_room(into.parent, source.stat().st_size + 4 * times * wider)
        _write(source, part, times)

    try:
        read_header(into)
    except UsageError:  # missing, or cut short
        with suppress(OSError):
            into.unlink()
    try:
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


def _axis(tensor: str) -> int | None:
    return next((axis for name, axis in _WIDER.items() if tensor.endswith(name)), None)


def _write(source: Path, into: Path, times: int) -> None:
    import gguf
    import numpy as np

    reader = gguf.GGUFReader(source)
    architecture = str(reader.fields["general.architecture"].contents())
    writer = gguf.GGUFWriter(into, architecture)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            value = field.contents()
            wide = value * times if name == f"{architecture}.feed_forward_length" else value
            writer.add_key_value(name, wide, field.types[0], field.types[-1] if len(field.types) > 1 else None)
    for tensor in reader.tensors:
        if (axis := _axis(tensor.name)) is None:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        else:
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
            zeros = [(0, size * (times - 1) if place == axis else 0) for place, size in enumerate(values.shape)]
            writer.add_tensor(tensor.name, np.pad(values, zeros))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
