"""GGUF files that a recipe's `quantize:` asks for, made once by llama.cpp's own program.

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
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchctl.errors import EngineError, StorageError, UsageError
from benchctl.models.files import Notice, file_sha256, finish, made_once, unfinished
from benchctl.models.gguf_facts import tensors_of
from benchctl.models.gguf_header import Tensor, read_header
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

    with storing(target.parent):
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
    with storing(target.parent), unfinished(target) as part:
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
    raise tool_failed(f"llama-quantize {ended}", tool.command[-1], fix, text)


def tool_failed(message: str, where: str, fix: str, output: str) -> EngineError:
    """Return the error of a program that failed, with the last lines of its output."""
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
def storing(folder: Path) -> Iterator[None]:
    """Raise StorageError where a model cannot be written to a folder."""
    try:
        yield
    except OSError as error:
        fix = None
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            fix = "Free some space, or keep it elsewhere: set BENCHCTL_CACHE, or name another file with -o."
        message = f"the model cannot be kept: {error.strerror or error}"
        raise StorageError(message, where=one_line(str(folder)), fix=fix) from None
