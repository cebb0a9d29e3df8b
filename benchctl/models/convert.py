"""GGUF files of Hugging Face folders, made once by the converter of llama.cpp.

It is that of the source distribution that the engine is built from, so that model and engine agree.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from benchctl.errors import EngineError, UsageError
from benchctl.models.files import Notice, file_sha256, made_once
from benchctl.models.folder_facts import weights_of
from benchctl.models.gguf_facts import ROTARY_HEADS, rotates_nothing
from benchctl.models.gguf_header import ArrayPlace, read_header
from benchctl.models.quantize import Program, storing, tool_failed
from benchctl.paths import cache_folder
from benchctl.text import one_line

_READ = (".safetensors", ".json", ".jsonl", ".model", ".jinja", ".txt")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer.jsonl", "vocab.json", "vocab.txt")
_HEADS = re.compile(r"eagle|dflash|dspark", re.IGNORECASE)
_CODE = ".py"
_OWN_CLASS = re.compile(r"\w+\.\w+")


def is_safetensors_folder(path: Path) -> bool:
    """Whether `path` is a model folder as the Hugging Face hub keeps it."""
    return path.is_dir() and (path / "config.json").is_file() and any(path.glob("*.safetensors"))


def code_in(folder: Path) -> Path | None:
    """Return what in a model's folder or below it may have transformers run code, as the converter lets it.

    A file of Python, a link to a folder, or JSON whose `auto_map` names a class that lies elsewhere.
    """
    return next((path for path in folder.rglob("*") if _may_run(path)), None)


def _may_run(path: Path) -> bool:
    suffix = path.suffix.lower()
    return suffix == _CODE or (path.is_symlink() and path.is_dir()) or (suffix == ".json" and _names_code(path))


def _names_code(file: Path) -> bool:
    """Whether an `auto_map` names more than MODULE.CLASS of its own folder: FOLDER--MODULE.CLASS, or a path.

    What cannot be parsed here cannot be parsed by transformers either.
    """
    elsewhere = False

    def check(pairs: list[tuple[str, object]]) -> dict[str, object]:
        nonlocal elsewhere
        for key, value in pairs:
            if key == "auto_map":
                elsewhere |= any(not _OWN_CLASS.fullmatch(name) for name in _texts_of(value))
        return dict(pairs)

    with suppress(OSError, ValueError, RecursionError):
        data = file.read_bytes()
        if b"auto_map" in data or b"\\u" in data:
            json.loads(data.decode("utf-8"), object_pairs_hook=check)
    return elsewhere


def _texts_of(value: object) -> Iterator[str]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts_of(item)
    elif value is not None:
        yield str(value)


def needs_target(folder: Path) -> bool:
    """Whether this is a draft head (EAGLE-3, DFlash, DSpark), which is converted with its target's tokenizer."""
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        named = [str(name) for name in config.get("architectures") or ()]
    except (OSError, ValueError, AttributeError, TypeError):
        return False
    no_tokenizer = not any((folder / name).is_file() for name in _TOKENIZERS)
    return no_tokenizer or "draft_vocab_size" in config or any(_HEADS.search(name) for name in named)


def converted(
    folder: Path,
    converter: Program,
    *,
    notice: Notice | None = None,
    target: Path | None = None,
    make_now: bool = True,
) -> Path:
    """Return the GGUF file of a safetensors folder, in the precision of its weights, from the cache where it is kept.

    `target`: the folder of a draft head's target. `make_now`: whether it is made where it is missing; else that is an
    error. Raises UsageError where the converter's packages are missing or the
    folder cannot be converted, EngineError (`launch`), StorageError.
    """
    precision = _precision(folder)
    hashes = [_hashes(folder, notice)] + ([] if target is None else [_hashes(target, notice)])
    key = hashlib.sha256(json.dumps([*hashes, converter.build, precision, ROTARY_HEADS]).encode()).hexdigest()
    cached = cache_folder() / "converted" / f"{key}.gguf"

    if not make_now and not cached.is_file():
        raise UsageError(
            "this folder of safetensors is not converted to GGUF yet, and a dry run converts nothing",
            where=one_line(str(folder)),
            fix="Start the run, or convert it first: benchctl models quantize FOLDER --type bf16 -o FILE",
        )

    def make(part: Path) -> None:
        if notice:
            notice(f"Converting {folder.name} to GGUF")
        _convert(folder, part, converter, precision, target)

    with storing(cached.parent):
        return made_once(cached, make, notice)


def _hashes(folder: Path, notice: Notice | None) -> list[list[str]]:
    files = sorted(file for file in folder.iterdir() if file.is_file() and file.suffix in (*_READ, _CODE))
    return [[file.name, file_sha256(file, notice)] for file in files]


def _precision(folder: Path) -> str:
    """Return the type that holds most of the weights' numbers; `auto` for a type that GGUF has not, such as float8.

    The converter's own `auto` would make float32 weights float16, which rounds them and can overflow.
    """
    commonest = weights_of(folder)[1].most_common(1)
    return commonest[0][0] if commonest and commonest[0][0] in {"f32", "f16", "bf16"} else "auto"


def _convert(folder: Path, part: Path, converter: Program, precision: str, target: Path | None) -> None:
    options = ["--outtype", precision, "--outfile", str(part)]
    options += [] if target is None else ["--target-model-dir", str(target)]
    status, text = converter.output([*options, str(folder)])
    where = one_line(str(folder))
    if status != 0:
        if "No space left" in text:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fix = "Its last lines give the reason: it may not know this architecture, or the folder may lack a file."
        raise tool_failed(f"llama.cpp's converter failed with exit status {status}", where, fix, text)
    try:
        _rotate(part)
    except UsageError as error:
        fix = "Convert it by hand with convert_hf_to_gguf.py, and name the GGUF file."
        message = f"llama.cpp's converter wrote no whole model: {error.what}"
        raise EngineError(message, kind="launch", where=where, fix=fix) from None


def _rotate(model: Path) -> None:
    """Give layer 0 the heads of the attention layers, where it has none. Raises UsageError for what is no whole model.

    Nothing else reads a Mamba layer's own number of heads: llama.cpp knows it by its key and value heads, which stay 0.
    """
    header = read_header(model)
    heads = header.metadata.get(ROTARY_HEADS)
    if not rotates_nothing(header) or not isinstance(heads, ArrayPlace):
        return
    with model.open("r+b") as stream:
        stream.seek(heads.offset)
        stream.write(struct.pack("<I", max(header.integers(ROTARY_HEADS) or ())))
