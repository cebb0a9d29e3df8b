"""Headers of files that are good, broken, or made to do harm."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import gguf
import pytest

from benchctl.errors import UsageError
from benchctl.models.gguf_header import read_header
from benchctl.models.inspection import inspect_model
from tests.security.test_servers import little_memory

STRING, ARRAY, U32 = 8, 9, 4


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def header(keys: bytes = b"", tensors: bytes = b"", *, version: int = 3, counts: tuple[int, int] = (0, 0)) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, *counts) + keys + tensors


def key(name: bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: bytes, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


HUGE = 2**63
AGAIN = "\nDownload or convert it again."
BROKEN = {
    "empty": (b"", "the model file is empty" + AGAIN),
    "zeros": (bytes(5000), "the model file contains zeros: its download or conversion did not finish" + AGAIN),
    "text": (b"not a model", "this is no GGUF file: it starts with b'not ', expected b'GGUF'\nName a GGUF file."),
    "safetensors": (
        struct.pack("<Q", 2) + b"{}",
        "this is a safetensors file, not GGUF\nName the folder that it lies in, with its config.json.",
    ),
    "magic alone": (b"GGUF", "the model file is truncated or corrupt: it ends within the header" + AGAIN),
    "version 4": (
        header(version=4),
        "this GGUF file is of version 4; benchctl reads 2 and 3\nUpdate benchctl, or convert the model again.",
    ),
    "version 1": (
        header(version=1),
        "this GGUF file is of version 1; benchctl reads 2 and 3\nConvert the model again.",
    ),
    "big-endian": (
        header(version=0x03000000),
        "this is a big-endian GGUF file, which llama.cpp reads on big-endian machines only" + AGAIN,
    ),
    "endless tensors": (
        header(counts=(HUGE, 0)),
        f"the model file is truncated or corrupt: it announces {HUGE} tensors and 0 keys" + AGAIN,
    ),
    "endless keys": (
        header(counts=(0, HUGE)),
        f"the model file is truncated or corrupt: it announces 0 tensors and {HUGE} keys" + AGAIN,
    ),
    "an endless key name": (
        header(struct.pack("<Q", HUGE) + bytes(20), counts=(0, 1)),
        "the model file is truncated or corrupt: it ends within a key's name" + AGAIN,
    ),
    "an endless string": (
        header(key(b"general.name", STRING, struct.pack("<Q", HUGE)), counts=(0, 1)),
        "the model file is truncated or corrupt: it ends within the metadata" + AGAIN,
    ),
    "an endless array": (
        header(key(b"a", ARRAY, struct.pack("<IQ", U32, HUGE)), counts=(0, 1)),
        f"the header is corrupt: an array announces {HUGE} items" + AGAIN,
    ),
    "a long array of nothing": (
        header(key(b"a", ARRAY, struct.pack("<IQ", STRING, 4_000_000)), counts=(0, 1)),
        "the model file is truncated or corrupt: it ends within the metadata" + AGAIN,
    ),
    "an array whose last string is endless": (
        header(key(b"a", ARRAY, struct.pack("<IQQ", STRING, 1, HUGE)), counts=(0, 1)),
        f"the header is corrupt: a string of an array has {HUGE:,} bytes" + AGAIN,
    ),
    "an array of arrays": (
        header(key(b"a", ARRAY, struct.pack("<IQ", ARRAY, 1)), counts=(0, 1)),
        "the header is corrupt: an array has values of type 9" + AGAIN,
    ),
    "an unknown value type": (
        header(key(b"a", 77, b""), counts=(0, 1)),
        "the header is corrupt: a value has the unknown type 77" + AGAIN,
    ),
    "a key twice": (
        header(key(b"a", U32, bytes(4)) * 2, counts=(0, 2)),
        "the header is corrupt: the key a occurs twice" + AGAIN,
    ),
    "an alignment of 3": (
        header(key(b"general.alignment", U32, struct.pack("<I", 3)), counts=(0, 1)),
        "the header is corrupt: general.alignment is 3, which is no power of two" + AGAIN,
    ),
    "many dimensions": (
        header(b"", text(b"t") + struct.pack("<I", 2**31) + bytes(40), counts=(1, 0)),
        "the header is corrupt: tensor t has 2147483648 dimensions" + AGAIN,
    ),
    "rows that do not fit": (
        header(b"", tensor(b"t", (33,), 8, 0) + bytes(99), counts=(1, 0)),
        "the header is corrupt: rows of t do not fit its type q8_0" + AGAIN,
    ),
    "a tensor twice": (
        header(b"", tensor(b"t", (1,), 0, 0) * 2 + bytes(99), counts=(2, 0)),
        "the header is corrupt: two tensors have the same name" + AGAIN,
    ),
    "a tensor without data": (
        header(b"", tensor(b"t", (1000,), 0, 0), counts=(1, 0)),
        "the model file is truncated: 4,007 of 4,064 bytes are missing" + AGAIN,
    ),
    "a tensor beyond everything": (
        header(b"", tensor(b"t", (HUGE, HUGE), 0, HUGE), counts=(1, 0)),
        None,
    ),
    "tensors one over the other": (
        header(b"", tensor(b"t", (8,), 0, 0) + tensor(b"u", (8,), 0, 0) + bytes(200), counts=(2, 0)),
        "the header is corrupt: tensor u is at 0, expected 32" + AGAIN,
    ),
    "terminal escapes in a name": (
        header(key(b"\x1b[31m", U32, bytes(4)) * 2, counts=(0, 2)),
        "the header is corrupt: the key ␛[31m occurs twice" + AGAIN,
    ),
}


@pytest.mark.parametrize(("data", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file_is_one_message(tmp_path: Path, data: bytes, message: str | None) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(UsageError) as caught:
        read_header(path)
    if message is None:
        assert caught.value.what.startswith("the model file is truncated: ")
    else:
        assert str(caught.value) == f"{path}: {message}"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (key(b"a", STRING, struct.pack("<Q", 2**35)), "the header is corrupt: it is longer than 256 MiB"),
        (
            key(b"a", ARRAY, struct.pack("<IQ", 0, 9_000_000) + bytes(9_000_000))
            + key(b"b", ARRAY, struct.pack("<IQ", STRING, 9_000_000)),
            "the header is corrupt: an array announces 9000000 items",
        ),
    ],
    ids=["one long text", "many arrays"],
)
def test_a_hole_of_gigabytes_takes_no_memory_and_no_time(tmp_path: Path, value: bytes, message: str) -> None:
    path = tmp_path / "sparse.gguf"
    path.write_bytes(header(value, counts=(0, 2)))
    os.truncate(path, 2**36)
    with pytest.raises(UsageError, match=message):
        read_header(path)


def test_a_missing_file_and_a_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such model file"):
        read_header(tmp_path / "none.gguf")
    with pytest.raises(UsageError, match="not a model file"):
        read_header(tmp_path)


@pytest.mark.parametrize("kept", [10, 40, 100, 0.3, 0.9, 0.999])
def test_a_real_model_cut_anywhere_is_refused(tmp_path: Path, tiny_target: Path, kept: float) -> None:
    data = tiny_target.read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(data[: int(kept if kept > 1 else kept * len(data))])
    with pytest.raises(UsageError, match="truncated"):
        read_header(path)


def test_it_agrees_with_gguf_py_on_a_real_model(tiny_target: Path) -> None:
    ours, theirs = read_header(tiny_target), gguf.GGUFReader(tiny_target)
    assert [(t.name, list(t.shape), t.elements, t.nbytes, t.type_name) for t in ours.tensors] == [
        (t.name, t.shape.tolist(), t.n_elements, t.n_bytes, t.tensor_type.name.lower()) for t in theirs.tensors
    ]
    for name, value in ours.metadata.items():
        field = theirs.fields[name]
        if isinstance(value, str | int | float):
            assert value == field.contents()
        else:
            assert value.count == len(field.data)
    tokens = ours.strings("tokenizer.ggml.tokens")
    assert tokens is not None
    assert [token.decode() for token in tokens] == theirs.fields["tokenizer.ggml.tokens"].contents()


def test_an_unknown_tensor_type_is_read_without_a_size(make_gguf: Callable[..., Path]) -> None:
    path = make_gguf()
    data = path.read_bytes()
    name = b"blk.0.attn_q.weight"
    offset = data.index(name) + len(name) + 4 + 16
    path.write_bytes(data[:offset] + struct.pack("<I", 99) + data[offset + 4 :])
    tensor = read_header(path).tensors[1]
    assert (tensor.type_name, tensor.nbytes) == ("type 99", None)


def test_arrays_of_numbers_are_read_when_asked_for(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_array("a.ints", [3, -1, 7])
    writer.add_array("a.floats", [0.5, 2.0])
    writer.add_array("a.flags", [True, False])
    writer.add_array("a.words", ["x", "y"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read_header(tmp_path / "model.gguf")
    assert header.numbers("a.ints") == [3, -1, 7]
    assert header.numbers("a.floats") == [0.5, 2.0]
    assert header.numbers("a.flags") == [True, False]
    assert header.numbers("a.words") is None
    assert header.numbers("absent") is None
    assert header.strings("a.ints") is None


def test_tensor_data_begins_where_gguf_says(tiny_draft: Path) -> None:
    header = read_header(tiny_draft)
    theirs = {t.name: int(t.data_offset) for t in gguf.GGUFReader(tiny_draft).tensors}
    assert {t.name: header.data_start + t.offset for t in header.tensors} == theirs


def test_whatever_a_damaged_byte_says_it_is_one_error_and_soon(tmp_path: Path, make_gguf: Callable[..., Path]) -> None:
    """A header with any few bytes replaced is read, or refused; it is never a crash."""
    complete = make_gguf(numbers={"llama.block_count": 2}, flags={"tokenizer.ggml.add_bos_token": True}).read_bytes()
    header_bytes = complete.index(b"blk.0.attn_q.weight") + 60
    random = Random(20261121)
    path = tmp_path / "damaged.gguf"
    outcomes = set()
    for _ in range(400):
        data = bytearray(complete)
        for _ in range(random.choice((1, 1, 2, 8))):
            offset = random.randrange(header_bytes)
            data[offset : offset + random.choice((1, 4, 8))] = random.choice(
                (
                    b"\0",
                    b"\xff",
                    b"\xff" * 8,
                    bytes(8),
                    b"\x7f" + b"\xff" * 7,
                    struct.pack("<Q", random.getrandbits(64)),
                )
            )
        if random.random() < 0.3:
            del data[random.randrange(len(data)) :]
        path.write_bytes(data)
        try:
            inspect_model(path)
            outcomes.add("read")
        except UsageError as error:
            assert str(path) in str(error)
            assert "\n" not in error.what
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


@pytest.mark.parametrize(
    ("byte", "place"), [(b"\xf0", "value"), (b"\xff", "value"), (b"a", "value"), (b"a", "key"), (b"a", "item")]
)
def test_a_sparse_file_with_a_huge_string_is_refused_at_once(tmp_path: Path, byte: bytes, place: str) -> None:
    size = 200 << 20
    huge = struct.pack("<Q", size) + byte
    value = struct.pack("<IQ", STRING, 1) + huge if place == "item" else huge
    named = text(b"general.name") + struct.pack("<I", ARRAY if place == "item" else STRING) + value
    path = tmp_path / "m.gguf"
    path.write_bytes(header(huge if place == "key" else named, counts=(0, 1)))
    os.truncate(path, size + 4096)
    with little_memory(64), pytest.raises(UsageError, match="209,715,200 bytes"):
        read_header(path)


def test_many_long_strings_are_refused(tmp_path: Path) -> None:
    keys = b"".join(key(b"k%d" % number, STRING, text(b"\xff" * (1 << 20))) for number in range(20))
    path = tmp_path / "m.gguf"
    path.write_bytes(header(keys, counts=(0, 20)))
    with pytest.raises(UsageError, match="all have too many"):
        read_header(path)


def test_a_vocabulary_of_ten_million_empty_tokens_is_refused_before_it_is_read(tmp_path: Path) -> None:
    count = 9_900_000
    tokens = struct.pack("<IQ", STRING, count) + bytes(8 * count)
    path = tmp_path / "m.gguf"
    path.write_bytes(header(key(b"tokenizer.ggml.tokens", ARRAY, tokens), counts=(0, 1)))
    began = time.process_time()
    with pytest.raises(UsageError, match="9900000 items"):
        read_header(path)
    assert time.process_time() - began < 1
