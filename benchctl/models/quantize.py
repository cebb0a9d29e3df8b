"""GGUF files that llama.cpp's own programs make, once: of a Hugging Face folder, and a recipe's `quantize:`.

The converter is that of the source distribution that the engine is built from, so that model and engine agree.
llama-quantize ignores a pattern that matches nothing, and every override when the base type is not quantized. So the
request is checked before, and the file that was written is read back.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import signal
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchctl.errors import EngineError, StorageError, UsageError
from benchctl.models.files import Notice, file_sha256, finish, made_once, unfinished
from benchctl.models.folder_facts import weights_of
from benchctl.models.gguf_facts import ROTARY_HEADS, rotates_nothing, tensors_of
from benchctl.models.gguf_header import ArrayPlace, Tensor, read_header
from benchctl.models.tensor_types import is_quantized, requested_types
from benchctl.paths import cache_folder
from benchctl.recipes.quantization import UNQUANTIZED, quantize_problems, tensor_regex
from benchctl.recipes.schema import QuantizeSpec
from benchctl.text import one_line

OnLine = Callable[[str], None]
"""Called with every line of a program's output, as it comes; untrusted text."""

Run = Callable[[Sequence[str], Path, OnLine | None], int]
"""(command, log, on_line): run it to its end with its output in `log`; return the exit status, negative for a signal.

Whatever happens to benchctl meanwhile, the program ends with it. Raises EngineError (`launch`) when it does not start.
"""


@dataclass(frozen=True)
class Program:
    """A program and how to run it."""

    command: tuple[str, ...]
    """What its arguments are added to."""
    build: str
    """SHA-256 of what decides its result: the program with its libraries."""
    run: Run

    def output(self, arguments: Sequence[str], on_line: OnLine | None = None) -> tuple[int, str]:
        """Run it to its end; return the exit status and what it printed."""
        with tempfile.TemporaryDirectory(prefix="benchctl-") as folder:  # not beside the result, whose disk may fill up
            log = Path(folder) / "output.log"
            status = self.run([*self.command, *arguments], log, on_line)
            return status, log.read_text("utf-8", "replace")


Steps = Callable[[int, int], None]
"""Called with (tensors that are done, tensors in all)."""

_LOG_LINES = 12
_OTHER_BUILD = "Use another build of llama.cpp: `benchctl engines list`."
_STEP = re.compile(r"\[\s*(\d+)/\s*(\d+)\] ")
_SPARE_BYTES = 1 << 20
"""A disk with less than this is full."""


def quantized(files: Sequence[Path], spec: QuantizeSpec, tool: Program, *, notice: Notice | None = None) -> Path:
    """Return the quantized model, kept by the SHA-256 of source, request and tool. Raises as `quantize_to` does."""
    required = checked(files, spec)
    target = _kept(files, spec, tool, notice)

    def make(part: Path) -> None:
        if notice:
            notice(f"Quantizing {files[0].name} to {spec.type}")
        _make(files, part, spec, tool, required, None)

    with _stored(target.parent):
        return made_once(target, make, notice)


def quantized_before(files: Sequence[Path], spec: QuantizeSpec, tool: Program, notice: Notice | None) -> Path | None:
    """Return what `quantized` would, where it has made it before; `None` where it would make it now."""
    checked(files, spec)
    target = _kept(files, spec, tool, notice)
    return target if target.is_file() else None


def _kept(files: Sequence[Path], spec: QuantizeSpec, tool: Program, notice: Notice | None) -> Path:
    return cache_folder() / "quantized" / f"{_key(files, spec, tool, notice)}.gguf"


def quantize_to(
    files: Sequence[Path], spec: QuantizeSpec, tool: Program, target: Path, *, steps: Steps | None = None
) -> None:
    """Write the quantized model of `files` to `target`, which appears only when it is whole and as requested.

    Raises UsageError for what cannot mean anything, EngineError (`launch`) when the tool fails, StorageError.
    """
    required = checked(files, spec)
    if any(target.resolve() == file.resolve() for file in files):
        raise UsageError("the result would replace its own source", where=one_line(str(target)))
    with _stored(target.parent), unfinished(target) as part:
        _make(files, part, spec, tool, required, steps)
        finish(part, target)


def quantize_arguments(spec: QuantizeSpec, source: Path, target: Path) -> list[str]:
    """Return what llama-quantize is called with, its own name left out: options, source, target, base type."""
    overrides = [("--tensor-type", f"{tensor_regex(pattern)}={kind}") for pattern, kind in spec.tensors.items()]
    requantize = ["--allow-requantize"] if spec.allow_requantize else []
    return [*requantize, *(word for pair in overrides for word in pair), str(source), str(target), spec.type.upper()]


def check_arguments(spec: QuantizeSpec) -> None:
    """Raise UsageError for a type or a pattern that llama-quantize cannot mean, whatever the model."""
    for path, message in quantize_problems(spec):
        raise UsageError(message, where=".".join(("quantize", *path)))


def checked(files: Sequence[Path], spec: QuantizeSpec) -> dict[str, str]:
    """Return the type of every overridden tensor. Raises UsageError for a request that cannot mean anything."""
    check_arguments(spec)
    tensors = tensors_of(files)
    done = sorted({tensor.type_name for tensor in tensors if is_quantized(tensor)})
    if done and not spec.allow_requantize:
        raise UsageError(
            f"the source is quantized already ({', '.join(done)}), and quantizing twice loses quality",
            where=one_line(str(files[0])),
            fix="Name the f16, bf16 or f32 file, or leave `quantize` out. To do it all the same: "
            "`allow_requantize: true` in the recipe, or --allow-requantize.",
        )
    return requested_types(tensors, spec.tensors)


def _key(files: Sequence[Path], spec: QuantizeSpec, tool: Program, notice: Notice | None) -> str:
    """Name the result by everything that it depends on."""
    parts = {
        "files": [file_sha256(file, notice) for file in files],
        "type": spec.type.lower(),
        "tensors": [[pattern, kind.lower()] for pattern, kind in spec.tensors.items()],
        "tool": tool.build,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode("ascii")).hexdigest()


def _make(
    files: Sequence[Path], part: Path, spec: QuantizeSpec, tool: Program, required: dict[str, str], steps: Steps | None
) -> None:
    """Have the tool write `part`, and read it back. Raises OSError for disk failures."""

    def on_line(line: str) -> None:
        if steps and (step := _STEP.match(line)):
            steps(int(step[1]), int(step[2]))

    status, text = tool.output(quantize_arguments(spec, files[0], part), on_line)
    if status != 0:
        _explain(status, text, tool, part)
    _read_back(files, part, spec, required)


def _explain(status: int, text: str, tool: Program, part: Path) -> None:
    """Raise what a failed run means."""
    if status == -signal.SIGXFSZ:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    full = shutil.disk_usage(part.parent).free < max(_SPARE_BYTES, part.stat().st_size // 100)
    if "iostream error" in text or full:
        code = errno.ENOSPC if full else errno.EIO
        raise OSError(code, os.strerror(code))
    ended = f"ended by signal {-status}" if status < 0 else f"failed with exit status {status}"
    fix = "Its last lines give the reason; types that need an importance matrix cannot be made here."
    raise _failed(f"llama-quantize {ended}", tool.command[-1], fix, text)


def _failed(message: str, where: str, fix: str, output: str) -> EngineError:
    lines = [one_line(line, 200) for line in output.splitlines() if line.strip()]
    return EngineError(message, kind="launch", where=where, fix=fix, log_tail=tuple(lines[-_LOG_LINES:]))


def _extents(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape without trailing 1s, which llama-quantize does not write (a single head's norm: 128 × 1)."""
    shape = list(tensor.shape)
    while len(shape) > 1 and shape[-1] == 1:
        shape.pop()
    return tuple(shape)


def _read_back(files: Sequence[Path], part: Path, spec: QuantizeSpec, required: dict[str, str]) -> None:
    """Compare the result with the request: every tensor there with its shape, every override in effect."""
    try:
        result = {tensor.name: tensor for tensor in read_header(part).tensors}
    except UsageError as error:
        message = f"llama-quantize wrote no whole model: {error.what}"
        raise EngineError(message, kind="launch", fix=_OTHER_BUILD) from None
    source = tensors_of(files)
    extents = {name: _extents(tensor) for name, tensor in result.items()}
    lost = [tensor.name for tensor in source if extents.get(tensor.name) != _extents(tensor)]
    if lost or len(result) != len(source):
        named = f", such as {one_line(lost[0], 80)}" if lost else ""
        raise EngineError(
            f"llama-quantize wrote {len(result)} tensors of a model of {len(source)}; {len(lost)} are missing or of "
            f"another shape{named}",
            kind="launch",
            fix=_OTHER_BUILD,
        )
    mismatches = [
        (name, kind, result[name].type_name) for name, kind in required.items() if result[name].type_name != kind
    ]
    if mismatches:
        name, kind, got = mismatches[0]
        raise UsageError(
            f"llama-quantize made {one_line(name, 80)} {got} where {kind} was requested "
            f"({len(mismatches)} such tensors)",
            where="quantize.tensors",
            fix=f"This build leaves such tensors alone, or has another rule for them: leave it out, or try {got}.",
        )
    base = spec.type.lower()
    if base not in UNQUANTIZED and not any(is_quantized(tensor) for tensor in result.values()) and not required:
        raise UsageError(
            f"llama-quantize left every tensor unquantized where {base} was requested",
            where="quantize.type",
            fix="Its matrices may be too small, or their rows may fit no block: leave `quantize` out.",
        )


@contextmanager
def _stored(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        fix = None
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            fix = "Free some space, or keep it elsewhere: set BENCHCTL_CACHE, or name another file with -o."
        message = f"the model cannot be kept: {error.strerror or error}"
        raise StorageError(message, where=one_line(str(folder)), fix=fix) from None


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

    with _stored(cached.parent):
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
        raise _failed(f"llama.cpp's converter failed with exit status {status}", where, fix, text)
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
