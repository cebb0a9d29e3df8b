"""The models that benchctl ships, and a larger one that is made of them by padding."""

from __future__ import annotations

import hmac
import json
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchctl.errors import StorageError, UsageError
from benchctl.models.files import Notice, file_sha256, made_once
from benchctl.models.gguf_header import read_header
from benchctl.paths import cache_folder
from benchctl.recipes.problems import did_you_mean
from benchctl.recipes.source import PADDED, BundledSource, bundled_folder
from benchctl.text import one_line


@dataclass(frozen=True)
class BundledModel:
    """An entry of `index.json`."""

    name: str
    path: Path
    role: str
    """What it is for: `target`, `draft`, or the draft of a kind of speculation."""
    architecture: str
    """`general.architecture` of the file."""
    parameters: int
    size: int
    """Bytes."""
    sha256: str
    licence: str

    def as_dict(self) -> dict[str, Any]:
        """Return the entry as plain JSON data."""
        return {**asdict(self), "path": str(self.path)}


def bundled_models() -> tuple[BundledModel, ...]:
    """Return the bundled models in the index's order; empty when this installation has none."""
    index = bundled_folder() / "index.json"
    entries = json.loads(index.read_text("utf-8")) if index.is_file() else {}
    return tuple(
        BundledModel(name, bundled_folder() / entry.pop("file"), size=entry.pop("bytes"), **entry)
        for name, entry in entries.items()
    )


def bundled_file(source: BundledSource, notice: Notice | None) -> Path:
    """Return the file of a model that benchctl ships, checked by its hash, or made of one. Raises UsageError."""
    models = {model.name: model for model in bundled_models()}
    if not models:
        fix = "Install a released benchctl, or check out the repository with its model files."
        raise UsageError("this installation of benchctl has no bundled models", fix=fix)
    if source.name in PADDED:
        bundled_file(BundledSource(PADDED[source.name][0]), notice)
        return padded_model(source.name, notice)
    if source.name not in models:
        fix = did_you_mean(source.name, models).strip() or f"Known: {', '.join(models)}."
        raise UsageError(f"benchctl ships no model called '{one_line(source.name, 60)}'", fix=fix)
    path, fix = models[source.name].path, "Install benchctl again."
    if not path.is_file():
        raise UsageError(f"the bundled file {path.name} is missing", fix=fix)
    if not hmac.compare_digest(file_sha256(path, notice), models[source.name].sha256):
        raise UsageError(f"the bundled file {path.name} is not what benchctl ships", fix=fix)
    return path


# A token's time on a large model is the time of reading its weights; the bundled models are too small for that. Zeros
# in rows of `ffn_gate` and `ffn_up` and in columns of `ffn_down` add nothing to any activation: act(0) * 0 * 0 = 0.

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
    for resource, needed in (("disk", size), ("memory", round(_ROOM * size))):
        if free[resource] < needed:
            raise StorageError(
                f"the padded model needs {needed / 1e9:.1f} GB of free {resource}, and there are "
                f"{free[resource] / 1e9:.1f} GB",
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
            zeros = [
                (0, size * (times - 1) if axis_index == axis else 0) for axis_index, size in enumerate(values.shape)
            ]
            writer.add_tensor(tensor.name, np.pad(values, zeros))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
