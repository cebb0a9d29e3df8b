"""A Hugging Face folder of safetensors, made into a GGUF file by llama.cpp's own converter, once.

The converter is that of the source distribution that the engine is built from, so that model and engine agree.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import tempfile
from pathlib import Path

from benchctl.errors import EngineError, StorageError, UsageError
from benchctl.models.files import Notice, file_sha256, made_once
from benchctl.models.folder_facts import weights_of
from benchctl.models.gguf_facts import ROTARY_HEADS, rotates_nothing
from benchctl.models.gguf_header import ArrayPlace, read_header
from benchctl.models.quantize import Program
from benchctl.paths import cache_folder
from benchctl.text import one_line

_READ = (".safetensors", ".json", ".jsonl", ".model", ".jinja", ".txt")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer.jsonl", "vocab.json", "vocab.txt")
_HEADS = re.compile(r"eagle|dflash|dspark", re.IGNORECASE)
_CODE = ".py"
_LOG_LINES = 12


def is_safetensors_folder(path: Path) -> bool:
    """Whether `path` is a model folder as the Hugging Face hub keeps it."""
    return path.is_dir() and (path / "config.json").is_file() and any(path.glob("*.safetensors"))


def needs_target(folder: Path) -> bool:
    """Whether this is a draft head (EAGLE-3, DFlash, DSpark), which is converted with its target's tokenizer."""
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        named = [str(name) for name in config.get("architectures") or ()]
    except (OSError, ValueError, AttributeError, TypeError):
        return False
    no_tokenizer = not any((folder / name).is_file() for name in _TOKENIZERS)
    return no_tokenizer or "draft_vocab_size" in config or any(_HEADS.search(name) for name in named)


def converted(folder: Path, converter: Program, *, notice: Notice | None = None, target: Path | None = None) -> Path:
    """Return the GGUF file of a safetensors folder, in the precision of its weights, from the cache where it is kept.

    It is kept by the SHA-256 of every file that the converter reads and of the converter, and by the precision.
    `target`: the folder of a draft head's target. Raises UsageError when the converter's packages are missing or the
    folder cannot be converted, EngineError (`launch`), StorageError.
    """
    precision = _precision(folder)
    hashes = [_hashes(folder, notice)] + ([] if target is None else [_hashes(target, notice)])
    key = hashlib.sha256(json.dumps([*hashes, converter.build, precision, ROTARY_HEADS]).encode()).hexdigest()
    kept = cache_folder() / "converted" / f"{key}.gguf"

    def make(part: Path) -> None:
        if notice:
            notice(f"Converting {folder.name} to GGUF")
        _convert(folder, part, converter, precision, target)

    try:
        return made_once(kept, make, notice)
    except OSError as error:
        reason = error.strerror or str(error)
        where = one_line(str(kept.parent))
        raise StorageError(f"the converted model cannot be kept: {reason}", where=where) from None


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
    with tempfile.TemporaryDirectory(prefix="benchctl-") as temporary:
        log = Path(temporary) / "convert.log"
        options = ["--outtype", precision, "--outfile", str(part)]
        options += [] if target is None else ["--target-model-dir", str(target)]
        status = converter.run([*converter.command, *options, str(folder)], log, None)
        lines = [one_line(line, 200) for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    if status != 0:
        if any("No space left" in line for line in lines):
            raise OSError("no space left on device")
        raise EngineError(
            f"llama.cpp's converter failed with exit status {status}",
            kind="launch",
            where=one_line(str(folder)),
            fix="Its last lines give the reason: it may not know this architecture, or the folder may lack a file.",
            log_tail=tuple(lines[-_LOG_LINES:]),
        )
    try:
        _rotate(part)
    except UsageError as error:
        raise EngineError(
            f"llama.cpp's converter wrote no whole model: {error.what}",
            kind="launch",
            where=one_line(str(folder)),
            fix="Convert it by hand with convert_hf_to_gguf.py, and name the GGUF file.",
        ) from None


def _rotate(model: Path) -> None:
    """Give layer 0 the heads of the attention layers, where it has none. Raises UsageError for what is no whole model.

    Nothing else reads a Mamba layer's own number of heads: llama.cpp knows it by its key and value heads, which stay 0.
    """
    header = read_header(model)
    place = header.metadata.get(ROTARY_HEADS)
    if not rotates_nothing(header) or not isinstance(place, ArrayPlace):
        return
    with model.open("r+b") as stream:
        stream.seek(place.offset)
        stream.write(struct.pack("<I", max(header.integers(ROTARY_HEADS) or ())))
