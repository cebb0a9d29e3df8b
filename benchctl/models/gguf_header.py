"""The header of a GGUF file: metadata and tensor list, read without touching tensor data and safe on hostile files.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Long arrays (a vocabulary) are kept as places in the
file until they are read, so that a header of 150,000 tokens is read in a tenth of a second (gguf's own reader takes
six). The types are gguf's.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import struct
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from benchctl.errors import UsageError
from benchctl.text import one_line


@dataclass(frozen=True)
class TensorType:
    """A way to store numbers: blocks of `block` elements in `size` bytes."""

    name: str
    block: int
    size: int


@cache
def _gguf_constants() -> Any:  # noqa: ANN401 - a module
    """Return gguf's module of constants, without the package that it lies in, which imports numpy."""
    package = find_spec("gguf")
    assert package is not None and package.submodule_search_locations
    file = Path(package.submodule_search_locations[0]) / "constants.py"
    spec = spec_from_file_location("benchctl_gguf_constants", file)
    assert spec is not None and spec.loader is not None
    constants = module_from_spec(spec)
    spec.loader.exec_module(constants)
    return constants


@cache
def tensor_types() -> dict[int, TensorType]:
    """Return the types of tensors by their number."""
    sizes = _gguf_constants().GGML_QUANT_SIZES
    return {kind.value: TensorType(kind.name.lower(), block, size) for kind, (block, size) in sizes.items()} | {
        9: TensorType("q8_1", 32, 36),  # gguf has the size of an older form
        42: TensorType("q2_0", 64, 18),
    }


@cache
def file_types() -> dict[int, str]:
    """Return the names of files' main types by their number."""
    kinds = _gguf_constants().LlamaFileType
    return {kind.value: kind.name.lower().removeprefix("mostly_").removeprefix("all_") for kind in kinds} | {41: "q2_0"}


STRING = 8
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""The types of values by their number, as `struct` calls them."""
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
    """A tensor as the header lists it. `nbytes` is None for a type that this benchctl does not know."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int
    nbytes: int | None

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @property
    def type_name(self) -> str:
        """The GGML type's name; `type 57` for an unknown type."""
        kind = tensor_types().get(self.type_id)
        return kind.name if kind else f"type {self.type_id}"


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
        array = self.metadata.get(key)
        if not isinstance(array, ArrayPlace) or array.kind not in SCALARS:
            return None
        form = f"<{array.count}{SCALARS[array.kind]}"
        with self.path.open("rb") as stream:
            stream.seek(array.offset)
            return list(struct.unpack(form, stream.read(struct.calcsize(form))))

    def integers(self, key: str) -> list[int] | None:
        """Read an array of integers; None when it is absent or of another type."""
        numbers = self.numbers(key)
        return (
            None
            if numbers is None or any(isinstance(number, float | bool) for number in numbers)
            else list(map(int, numbers))
        )

    def array_sha256(self, key: str) -> str:
        """Return the SHA-256 of an array of the metadata as it lies in the file. Raises KeyError for no array."""
        array = self.metadata[key]
        if not isinstance(array, ArrayPlace):
            raise KeyError(key)
        with self.path.open("rb") as stream:
            stream.seek(array.offset)
            return hashlib.sha256(stream.read(array.size)).hexdigest()

    def strings(self, key: str) -> list[bytes] | None:
        """Read an array of strings, as bytes; None when it is absent or of another type."""
        array = self.metadata.get(key)
        if not isinstance(array, ArrayPlace) or array.kind != STRING:
            return None
        with self.path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            items, position = [], array.offset
            for _ in range(array.count):
                end = position + 8 + int(_U64.unpack_from(data, position)[0])
                items.append(data[position + 8 : end])
                position = end
            return items


VERSIONS = (2, 3)
"""What benchctl and llama.cpp read."""
_MAX_KEYS = 100_000
_MAX_TENSORS = 100_000
_MAX_DIMENSIONS = 4
_MAX_ITEMS = 4_000_000
"""Most items of all arrays together. The largest vocabularies have less than a million tokens, and as many merges."""
_MAX_STRING = 1 << 20
"""Bytes of a string; the longest in use are chat templates of some 50 KB."""
_MAX_STRINGS = 1 << 24
"""Bytes of all strings outside of arrays, names of tensors included."""
_MAX_BYTES = 1 << 28
"""Longest header; without a limit, that of a sparse file fills the memory. A million tokens with merges take 60 MB."""

_ARRAY = 9


def read_header(path: Path) -> GgufHeader:
    """Read and check a GGUF file's header, and that all data lies within the file. Raises UsageError."""
    where = one_line(str(path))
    if path.is_dir():
        raise UsageError("this is a folder, not a model file", where=where, fix="Name the GGUF file in it.")
    try:
        size = path.stat().st_size
        if size == 0:
            raise UsageError("the model file is empty", where=where, fix="Download or convert it again.")
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Parser(path, data, size).parse()
    except FileNotFoundError:
        raise UsageError("there is no such model file", where=where) from None
    except (OSError, ValueError) as error:  # ValueError: something that cannot be mapped, such as a pipe
        raise UsageError(f"the model file cannot be read: {error}", where=where) from None
    except _BrokenError as error:
        raise UsageError(str(error), where=where, fix=error.fix) from None


_AGAIN = "Download a GGUF file of the model, or convert the original weights."
_OTHER_FILES = {
    **dict.fromkeys((b"tjgg", b"lmgg", b"fmgg"), ("a GGML file of the time before GGUF", _AGAIN)),
    b"algg": ("a LoRA adapter of the time before GGUF", "Name the model that it belongs to."),
    b"PK\x03\x04": ("a zip archive, such as PyTorch's weights", _AGAIN),
    b"\x80": ("a pickle, such as PyTorch's weights", _AGAIN),
    **dict.fromkeys((b"<!", b"<h", b"<H"), ("a web page: the download was refused", "Download it again, logged in.")),
    b"vers": ("a pointer of Git LFS, without the file", "Fetch the file: git lfs pull"),
    b"\x1f\x8b": ("a gzip archive", "Unpack it."),
    b"FROM": ("a Modelfile of Ollama", "Name the GGUF file that its FROM names."),
    b"{": ("a JSON file", "Name a GGUF file."),
}
"""By its beginning, what a file is, and what to do. GGML's are those of llama.cpp before August 2023."""


class _BrokenError(Exception):
    def __init__(self, message: str, fix: str = "Download or convert it again.") -> None:
        super().__init__(message)
        self.fix = fix


class _Parser:
    def __init__(self, path: Path, data: mmap.mmap, size: int) -> None:
        self.path, self.data, self.size, self.at = path, data, size, 0
        self.items = self.string_bytes = 0

    def parse(self) -> GgufHeader:
        version = self.version()
        tensor_count, key_count = self.u64(), self.u64()
        if tensor_count > min(_MAX_TENSORS, self.size // 24) or key_count > min(_MAX_KEYS, self.size // 13):
            claim = f"it announces {tensor_count} tensors and {key_count} keys"
            raise _BrokenError(f"the model file is truncated or corrupt: {claim}")
        metadata: dict[str, int | float | bool | str | ArrayPlace] = {}
        for _ in range(key_count):
            key = self.string("a key's name")
            if key in metadata:
                raise _BrokenError(f"the header is corrupt: the key {one_line(key, 60)} occurs twice")
            metadata[key] = self.value(self.u32())
        tensors = tuple(self.tensor() for _ in range(tensor_count))
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise _BrokenError(f"the header is corrupt: general.alignment is {alignment}, which is no power of two")
        start = -(-self.at // alignment) * alignment
        self.check_places(tensors, start, alignment)
        return GgufHeader(self.path, version, metadata, tensors, start)

    def version(self) -> int:
        magic = self.data[:4]
        if magic != b"GGUF":
            if not any(self.data[:4096]):
                raise _BrokenError("the model file contains zeros: its download or conversion did not finish")
            if self.path.suffix == ".safetensors" or self.data[8:9] == b"{":
                fix = "Name the folder that it lies in, with its config.json."
                raise _BrokenError("this is a safetensors file, not GGUF", fix)
            if other := next((kind for start, kind in _OTHER_FILES.items() if magic.startswith(start)), None):
                raise _BrokenError(f"this is {other[0]}, not a GGUF file", other[1])
            raise _BrokenError(f"this is no GGUF file: it starts with {magic!r}, expected b'GGUF'", "Name a GGUF file.")
        self.at = 4
        version = self.u32()
        if version & 0xFFFF == 0:
            raise _BrokenError("this is a big-endian GGUF file, which llama.cpp reads on big-endian machines only")
        if version not in VERSIONS:
            readable = " and ".join(map(str, VERSIONS))
            fix = (
                "Convert the model again."
                if version < min(VERSIONS)
                else "Update benchctl, or convert the model again."
            )
            raise _BrokenError(f"this GGUF file is of version {version}; benchctl reads {readable}", fix)
        return version

    def take(self, count: int, part: str) -> int:
        """Move on by `count` bytes and return where they start."""
        start = self.at
        if count > self.size - start:
            raise _BrokenError(f"the model file is truncated or corrupt: it ends within {part}")
        if start + count > _MAX_BYTES:
            raise _BrokenError(f"the header is corrupt: it is longer than {_MAX_BYTES >> 20} MiB")
        self.at = start + count
        return start

    def scalar(self, form: str, part: str = "the header") -> Any:  # noqa: ANN401 - as `form` says
        return struct.unpack_from(f"<{form}", self.data, self.take(struct.calcsize(f"<{form}"), part))[0]

    def u32(self) -> int:
        return int(self.scalar("I"))

    def u64(self) -> int:
        return int(self.scalar("Q"))

    def string(self, part: str) -> str:
        length = self.u64()
        start = self.take(length, part)
        self.string_bytes += length
        if length > _MAX_STRING or self.string_bytes > _MAX_STRINGS:
            raise _BrokenError(f"the header is corrupt: a string has {length:,} bytes, or all have too many")
        return self.data[start : self.at].decode("utf-8", "replace")

    def value(self, kind: int) -> int | float | bool | str | ArrayPlace:
        if kind == STRING:
            return self.string("the metadata")
        if kind == _ARRAY:
            return self.array()
        if kind not in SCALARS:
            raise _BrokenError(f"the header is corrupt: a value has the unknown type {kind}")
        value: int | float | bool = self.scalar(SCALARS[kind], "the metadata")
        return value

    def array(self) -> ArrayPlace:
        kind, count = self.u32(), self.u64()
        start = self.at
        self.items += count
        if self.items > _MAX_ITEMS:
            raise _BrokenError(f"the header is corrupt: an array announces {count} items")
        if kind in SCALARS:
            self.take(count * struct.calcsize("<" + SCALARS[kind]), "the metadata")
        elif kind == STRING:
            self.skip_strings(count)
        else:
            raise _BrokenError(f"the header is corrupt: an array has values of type {kind}")
        return ArrayPlace(start, kind, count, self.at - start)

    def skip_strings(self, count: int) -> None:
        unpack, data, end, position = _U64.unpack_from, self.data, self.size - 8, self.at
        for _ in range(count):
            if position > end:
                raise _BrokenError("the model file is truncated or corrupt: it ends within the metadata")
            length = unpack(data, position)[0]
            if length > _MAX_STRING:
                raise _BrokenError(f"the header is corrupt: a string of an array has {length:,} bytes")
            position += 8 + length
        self.at = position
        self.take(0, "the metadata")

    def tensor(self) -> Tensor:
        name = self.string("the tensor list")
        dimensions = self.u32()
        if dimensions > _MAX_DIMENSIONS:
            raise _BrokenError(f"the header is corrupt: tensor {one_line(name, 60)} has {dimensions} dimensions")
        shape = tuple(self.u64() for _ in range(dimensions))
        type_id, offset = self.u32(), self.u64()
        kind = tensor_types().get(type_id)
        if kind and shape and shape[0] % kind.block:
            raise _BrokenError(f"the header is corrupt: rows of {one_line(name, 60)} do not fit its type {kind.name}")
        nbytes = math.prod(shape) // kind.block * kind.size if kind else None
        return Tensor(name, shape, type_id, offset, nbytes)

    def check_places(self, tensors: tuple[Tensor, ...], start: int, alignment: int) -> None:
        """Tensors lie side by side in the order of the list, as llama.cpp demands, and within the file."""
        names = {tensor.name for tensor in tensors}
        if len(names) < len(tensors):
            raise _BrokenError("the header is corrupt: two tensors have the same name")
        needed = max((start + tensor.offset + (tensor.nbytes or 0) for tensor in tensors), default=0)
        if needed > self.size:
            missing = needed - self.size
            raise _BrokenError(f"the model file is truncated: {missing:,} of {needed:,} bytes are missing")
        expected = 0
        for tensor in tensors:
            if tensor.offset != expected:
                name = one_line(tensor.name, 60)
                raise _BrokenError(f"the header is corrupt: tensor {name} is at {tensor.offset}, expected {expected}")
            if tensor.nbytes is None:
                return  # what follows a type that is not known here may lie anywhere
            expected += -(-tensor.nbytes // alignment) * alignment
