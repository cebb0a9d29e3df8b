"""The header of a GGUF file: metadata and tensor list, read without touching tensor data and safe on hostile files.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Long arrays (a vocabulary) are kept as places in the
file until they are read, so that a header of 150,000 tokens is read in a tenth of a second.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from benchctl.errors import UsageError
from benchctl.models.ggml_types import TENSOR_TYPES
from benchctl.models.gguf_contents import SCALARS, STRING, ArrayPlace, GgufHeader, Tensor
from benchctl.text import one_line

__all__ = ["NEWEST_VERSION", "ArrayPlace", "GgufHeader", "Tensor", "read_header"]

NEWEST_VERSION = 3
_OLDEST_VERSION = 2
_MAX_KEYS = 100_000
_MAX_TENSORS = 100_000
_MAX_DIMENSIONS = 4
_MAX_ITEMS = 10_000_000
"""Of all arrays together; the largest vocabularies in use are below a million tokens."""
_MAX_BYTES = 1 << 28
"""Longest header; without a limit, one in a sparse file fills the memory. A million tokens with merges take 60 MB."""

_ARRAY = 9
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


def read_header(path: Path) -> GgufHeader:
    """Read and check the header of a GGUF file, and that every tensor's data lies within the file.

    Raises UsageError with what is wrong: missing, a folder, empty, not GGUF, of a newer version, truncated.
    """
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


class _BrokenError(Exception):
    def __init__(self, message: str, fix: str = "Download or convert it again.") -> None:
        super().__init__(message)
        self.fix = fix


class _Parser:
    def __init__(self, path: Path, data: mmap.mmap, size: int) -> None:
        self.path, self.data, self.size, self.at = path, data, size, 0
        self.items = 0

    def parse(self) -> GgufHeader:
        version = self.version()
        tensor_count, key_count = self.u64(), self.u64()
        if tensor_count > min(_MAX_TENSORS, self.size // 24) or key_count > min(_MAX_KEYS, self.size // 13):
            what = f"it announces {tensor_count} tensors and {key_count} keys"
            raise _BrokenError(f"the model file is truncated or corrupt: {what}")
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
                raise _BrokenError("this is a safetensors file, not GGUF", "Convert it with llama.cpp's converter.")
            raise _BrokenError(f"this is no GGUF file: it starts with {magic!r}, expected b'GGUF'", "Name a GGUF file.")
        self.at = 4
        version = self.u32()
        if version & 0xFFFF == 0:
            raise _BrokenError("this is a big-endian GGUF file, which llama.cpp reads on big-endian machines only")
        if version > NEWEST_VERSION:
            fix = "Update benchctl, or convert the model with an older llama.cpp."
            raise _BrokenError(f"this GGUF file is of version {version}; benchctl reads up to {NEWEST_VERSION}", fix)
        if version < _OLDEST_VERSION:
            fix = "Convert the model again with a current llama.cpp."
            raise _BrokenError(f"this GGUF file is of version {version}, which llama.cpp reads no more", fix)
        return version

    def take(self, count: int, what: str) -> int:
        """Move on by `count` bytes and return where they start."""
        start = self.at
        if count > self.size - start:
            raise _BrokenError(f"the model file is truncated or corrupt: it ends within {what}")
        if start + count > _MAX_BYTES:
            raise _BrokenError(f"the header is corrupt: it is longer than {_MAX_BYTES >> 20} MiB")
        self.at = start + count
        return start

    def u32(self) -> int:
        return int(_U32.unpack_from(self.data, self.take(4, "the header"))[0])

    def u64(self) -> int:
        return int(_U64.unpack_from(self.data, self.take(8, "the header"))[0])

    def string(self, what: str) -> str:
        start = self.take(self.u64(), what)
        return self.data[start : self.at].decode("utf-8", "replace")

    def value(self, kind: int) -> int | float | bool | str | ArrayPlace:
        if kind == STRING:
            return self.string("the metadata")
        if kind == _ARRAY:
            return self.array()
        if kind not in SCALARS:
            raise _BrokenError(f"the header is corrupt: a value has the unknown type {kind}")
        form = "<" + SCALARS[kind]
        found: int | float | bool = struct.unpack_from(
            form, self.data, self.take(struct.calcsize(form), "the metadata")
        )[0]
        return found

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
        unpack, data, end, at = _U64.unpack_from, self.data, self.size - 8, self.at
        for _ in range(count):
            if at > end:
                raise _BrokenError("the model file is truncated or corrupt: it ends within the metadata")
            at += 8 + unpack(data, at)[0]
        self.at = at
        self.take(0, "the metadata")

    def tensor(self) -> Tensor:
        name = self.string("the tensor list")
        dimensions = self.u32()
        if dimensions > _MAX_DIMENSIONS:
            raise _BrokenError(f"the header is corrupt: tensor {one_line(name, 60)} has {dimensions} dimensions")
        shape = tuple(self.u64() for _ in range(dimensions))
        type_id, offset = self.u32(), self.u64()
        tensor = Tensor(name, shape, type_id, offset, None)
        known = TENSOR_TYPES.get(type_id)
        if known is None:
            return tensor
        if shape and shape[0] % known.block:
            raise _BrokenError(f"the header is corrupt: rows of {one_line(name, 60)} do not fit its type {known.name}")
        return Tensor(name, shape, type_id, offset, tensor.elements // known.block * known.size)

    def check_places(self, tensors: tuple[Tensor, ...], start: int, alignment: int) -> None:
        """Tensors lie one after the other in the order of the list, as llama.cpp demands, and within the file."""
        names = {tensor.name for tensor in tensors}
        if len(names) < len(tensors):
            raise _BrokenError("the header is corrupt: two tensors have the same name")
        needed = max((start + tensor.offset + (tensor.nbytes or 0) for tensor in tensors), default=0)
        if needed > self.size:
            missing = needed - self.size
            message = f"the model file is truncated: {missing:,} of {needed:,} bytes are missing"
            raise _BrokenError(message)
        at = 0
        for tensor in tensors:
            if tensor.offset != at:
                name = one_line(tensor.name, 60)
                raise _BrokenError(f"the header is corrupt: tensor {name} is at {tensor.offset}, expected {at}")
            if tensor.nbytes is None:
                return  # what follows a type that is not known here may lie anywhere
            at += -(-tensor.nbytes // alignment) * alignment
