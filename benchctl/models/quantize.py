"""A recipe's `quantize:`, done by llama-quantize once and kept: the base type, and tensors that keep another.

llama-quantize ignores a pattern that matches nothing, and every override when the base type is not quantized. So what
was asked is checked before, and the file that came out is read back.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchctl.cache_folder import cache_folder
from benchctl.errors import EngineError, StorageError, UsageError
from benchctl.models.ggml_types import TENSOR_TYPES
from benchctl.models.gguf_header import Tensor, read_header
from benchctl.models.hashes import Notice, file_sha256
from benchctl.plain_text import one_line
from benchctl.recipes.quantization import quantize_problems, tensor_regex
from benchctl.recipes.schema import QuantizeSpec

_LOG_LINES = 12


def quantized(files: Sequence[Path], spec: QuantizeSpec, tool: Path, *, notice: Notice | None = None) -> Path:
    """Return the quantized model of `files` (all shards, first one first), made by `tool` unless it is kept already.

    Raises UsageError before any work for what cannot mean anything, EngineError (`launch`) when the tool fails, and
    StorageError when the cache cannot be written.
    """
    for path, message in quantize_problems(spec):
        raise UsageError(message, where=".".join(("quantize", *path)))
    wanted = _wanted_types(files, spec)
    target = cache_folder() / "quantized" / f"{_key(files, spec, tool, notice)}.gguf"
    if target.is_file():
        return target
    if notice:
        notice(f"Quantizing {files[0].name} to {spec.type}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="making-") as folder:
            made = Path(folder) / "model.gguf"
            _run(files[0], made, spec, tool)
            _check(made, wanted)
            made.replace(target)
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(
            f"the quantized model cannot be kept: {reason}", where=one_line(str(target.parent))
        ) from None
    return target


def _wanted_types(files: Sequence[Path], spec: QuantizeSpec) -> dict[str, str]:
    """Return the type that every overridden tensor must have; the first matching pattern counts."""
    tensors = [tensor for file in files for tensor in read_header(file).tensors]
    done = sorted({t.type_name for t in tensors if t.type_id in TENSOR_TYPES and TENSOR_TYPES[t.type_id].quantized})
    if done:
        raise UsageError(
            f"the source is quantized already ({', '.join(done)}), and quantizing twice loses quality",
            where=one_line(str(files[0])),
            fix="Name the f16, bf16 or f32 file, or leave `quantize` out.",
        )
    wanted: dict[str, str] = {}
    for pattern, kind in spec.tensors.items():
        matching = [tensor for tensor in tensors if re.search(tensor_regex(pattern), tensor.name)]
        if not any(_can_be_quantized(tensor) for tensor in matching):
            what = "only one-dimensional tensors, which stay f32" if matching else "no tensor of this model"
            raise UsageError(
                f"the pattern '{pattern}' matches {what}",
                where=f"quantize.tensors.{pattern}",
                fix=f"Its tensors are named like: {', '.join(_examples(tensors))}.",
            )
        for tensor in filter(_can_be_quantized, matching):
            wanted.setdefault(tensor.name, kind.lower())
    return wanted


def _can_be_quantized(tensor: Tensor) -> bool:
    return sum(size > 1 for size in tensor.shape) > 1 and tensor.name.endswith(".weight")


def _examples(tensors: Sequence[Tensor]) -> list[str]:
    """Return the distinct names of quantizable tensors, without their block numbers."""
    names = (re.sub(r"^blk\.\d+\.", "", tensor.name) for tensor in tensors if _can_be_quantized(tensor))
    return list(dict.fromkeys(name.removesuffix(".weight") for name in names))[:20]


def _key(files: Sequence[Path], spec: QuantizeSpec, tool: Path, notice: Notice | None) -> str:
    """Name the result by everything that it depends on."""
    parts = {
        "files": [file_sha256(file, notice) for file in files],
        "type": spec.type.lower(),
        "tensors": [[pattern, kind.lower()] for pattern, kind in spec.tensors.items()],
        "tool": file_sha256(tool),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode("ascii")).hexdigest()


def _run(source: Path, result: Path, spec: QuantizeSpec, tool: Path) -> None:
    overrides = [f"--tensor-type={tensor_regex(pattern)}={kind}" for pattern, kind in spec.tensors.items()]
    options = [word for override in overrides for word in override.split("=", 1)]
    command = [str(tool), *options, str(source), str(result), spec.type.upper()]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LLAMA_", "GGML_"))}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except OSError as error:
        raise EngineError(f"llama-quantize cannot be started: {error}", kind="launch", where=str(tool)) from None
    if done.returncode != 0:
        if "iostream error" in done.stderr and shutil.disk_usage(result.parent).free < source.stat().st_size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        lines = [one_line(line, 200) for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise EngineError(
            f"llama-quantize failed with exit status {done.returncode}",
            kind="launch",
            where=str(tool),
            fix="Its last lines say why; types that need an importance matrix cannot be made here.",
            log_tail=tuple(lines[-_LOG_LINES:]),
        )


def _check(made: Path, wanted: dict[str, str]) -> None:
    """Read the result back: every override must have taken effect."""
    found = {tensor.name: tensor.type_name for tensor in read_header(made).tensors}
    wrong = [(name, kind, found.get(name, "absent")) for name, kind in wanted.items() if found.get(name) != kind]
    if wrong:
        name, kind, got = wrong[0]
        raise UsageError(
            f"llama-quantize made {one_line(name, 80)} {got} where {kind} was asked for ({len(wrong)} such tensors)",
            where="quantize.tensors",
            fix="llama-quantize leaves some tensors alone, and rows may not fit a type: leave it out, or try bf16.",
        )
