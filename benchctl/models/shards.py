"""Models in several files: `name-00001-of-00003.gguf` and its siblings."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from benchctl.errors import UsageError
from benchctl.models.gguf_header import Tensor, read_header
from benchctl.text import one_line

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})\.gguf\Z", re.IGNORECASE)


def shard_names(name: str) -> tuple[str, ...]:
    """Return the names of all shards, first one first, of the model that the file `name` belongs to."""
    match = _SHARD.match(name)
    total = int(match["total"]) if match else 0
    if match is None or total == 0:
        return (name,)
    return tuple(f"{match['stem']}-{number:05d}-of-{match['total']}.gguf" for number in range(1, total + 1))


def model_name(path: Path) -> str:
    """Return what a model's file is called without its ending and without the number of its shard."""
    match = _SHARD.match(path.name)
    return match["stem"] if match else path.stem


def all_shards(path: Path) -> tuple[Path, ...]:
    """Return the files of a model from any of them, first one first. Raises UsageError that names missing shards."""
    names = shard_names(path.name)
    if len(names) == 1:
        return (path,)
    paths = tuple(path.with_name(name) for name in names)
    missing = [shard.name for shard in paths if not shard.is_file()]
    if missing:
        raise UsageError(
            f"{len(missing)} of {len(paths)} shards of this model are missing: {one_line(', '.join(missing), 300)}",
            where=one_line(str(path)),
            fix="Download the missing shards into the same folder.",
        )
    return paths


def tensors_of(files: Iterable[Path]) -> list[Tensor]:
    """Return the tensors of a model from the headers of all its files. Raises UsageError."""
    return [tensor for file in files for tensor in read_header(file).tensors]
