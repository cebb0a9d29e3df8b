"""What a GGUF header holds: metadata and a tensor list; long arrays stay places in the file until they are read."""

from __future__ import annotations

import hashlib
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

from benchctl.models.ggml_types import TENSOR_TYPES

STRING = 8
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""The types of values by their number, as `struct` calls them."""
_INTEGERS = frozenset({0, 1, 2, 3, 4, 5, 10, 11})
_U64 = struct.Struct("<Q")


@dataclass(frozen=True)
class ArrayPlace:
    """Where a long array lies in the file."""

    offset: int
    kind: int
    count: int
    size: int
    """Bytes."""


@dataclass(frozen=True)
class Tensor:
    """One tensor as the header lists it. `nbytes` is None for a type that this benchctl does not know."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int
    nbytes: int | None

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def type_name(self) -> str:
        """The GGML type's name; `type 57` for one that is not known here."""
        known = TENSOR_TYPES.get(self.type_id)
        return known.name if known else f"type {self.type_id}"


@dataclass(frozen=True)
class GgufHeader:
    """What stands before the tensor data."""

    path: Path
    version: int
    metadata: dict[str, int | float | bool | str | ArrayPlace]
    tensors: tuple[Tensor, ...]
    data_start: int
    """Where in the file tensor data begins; tensors' offsets count from there."""

    def text(self, key: str) -> str | None:
        """Return a string of the metadata; None when it is absent or of another type."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None

    def integer(self, key: str) -> int | None:
        """Return an integer of the metadata; None when it is absent or of another type."""
        value = self.metadata.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def count(self, key: str) -> int | None:
        """Return the length of an array of the metadata; None when it is absent or no array."""
        value = self.metadata.get(key)
        return value.count if isinstance(value, ArrayPlace) else None

    def numbers(self, key: str) -> list[int | float | bool] | None:
        """Read an array of numbers or booleans; None when it is absent or of another type."""
        place = self.metadata.get(key)
        if not isinstance(place, ArrayPlace) or place.kind not in SCALARS:
            return None
        form = f"<{place.count}{SCALARS[place.kind]}"
        with self.path.open("rb") as stream:
            stream.seek(place.offset)
            return list(struct.unpack(form, stream.read(struct.calcsize(form))))

    def integers(self, key: str) -> list[int] | None:
        """Read an array of integers; None when it is absent or of another type."""
        place = self.metadata.get(key)
        if not isinstance(place, ArrayPlace) or place.kind not in _INTEGERS:
            return None
        return [int(number) for number in self.numbers(key) or ()]

    def array_sha256(self, key: str) -> str:
        """Return the SHA-256 of an array of the metadata as it lies in the file. Raises KeyError for no array."""
        place = self.metadata[key]
        if not isinstance(place, ArrayPlace):
            raise KeyError(key)
        with self.path.open("rb") as stream:
            stream.seek(place.offset)
            return hashlib.sha256(stream.read(place.size)).hexdigest()

    def strings(self, key: str) -> list[bytes] | None:
        """Read an array of strings, as bytes; None when it is absent or of another type."""
        place = self.metadata.get(key)
        if not isinstance(place, ArrayPlace) or place.kind != STRING:
            return None
        with self.path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            items, at = [], place.offset
            for _ in range(place.count):
                end = at + 8 + int(_U64.unpack_from(data, at)[0])
                items.append(data[at + 8 : end])
                at = end
            return items
