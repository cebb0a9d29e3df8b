"""llama-perplexity: how far a quantized model's distributions are from its reference's."""

from __future__ import annotations

import errno
import io
import math
import os
import re
import signal
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from benchctl.engines.common.log import log_tail, read_log
from benchctl.engines.quantizing import Divergence, TextTooShortError
from benchctl.errors import EngineError
from benchctl.models.quantize import Program

_NUMBER = r"\s*:\s*(-?[\d.]+|-?nan|-?inf)"
_ERROR = r"\s*±\s*(-?[\d.]+|-?nan|-?inf)"
_LINES = {
    "divergence": rf"Mean\s+KLD{_NUMBER}{_ERROR}",
    "worst": rf"99\.9%\s+KLD{_NUMBER}()",
    "same_top": rf"Same top p{_NUMBER}{_ERROR}",
    "perplexity": rf"Mean PPL\(Q\)\s*{_NUMBER}{_ERROR}",
}
_TOO_SHORT = re.compile(r"tokenizes to only (\d+) tokens")
_HEAD = struct.Struct("<8sIii")
Result = TypeVar("Result")

_ATTEMPTS = 8
"""llama.cpp's logger may be cut off when a program ends, and the last lines, which are the result, are lost then
(llama.cpp issue 22142): of a small model on a busy machine, one time in five. The same call gives the same numbers."""


@dataclass(frozen=True)
class Perplexity:
    """llama-perplexity, and what every call of it is given; see `benchctl.engines.quantizing.DivergenceMeter`.

    It reads a text in pieces of `context` tokens and scores the second half of each, so that every scored token has
    some text before it. First the reference's distributions over the whole vocabulary are written to a file, with the
    tokens; then another model is compared with that file (`tools/perplexity/perplexity.cpp`, `--kl-divergence`).
    """

    program: Program
    threads: int
    device: str
    """As in a recipe."""

    def write_reference(self, model: Path, text: Path, target: Path, log: Path, *, context: int, pieces: int) -> int:
        """Write the distributions of `model` over the first `pieces` pieces of `text`; return how many positions were
        scored.

        Raises TextTooShortError, EngineError (`crash`, `protocol`), and OSError when the file came out short: the
        program itself does not notice a full disk.
        """
        options = ["-f", str(text), "-c", str(context), "-b", str(context), "--chunks", str(pieces)]

        def read(output: str) -> int | None:
            if match := _TOO_SHORT.search(output):
                raise TextTooShortError(int(match[1]))
            return _scored(target)

        return self._result(model, [*options, "--kl-divergence-base", str(target)], log, read)

    def compare(self, model: Path, reference: Path, log: Path, *, context: int) -> Divergence:
        """Compare `model` with a file of `write_reference`. Raises EngineError (`crash`, `protocol`)."""
        options = ["-c", str(context), "-b", str(context), "--kl-divergence", "--kl-divergence-base", str(reference)]
        return self._result(model, options, log, read_divergence)

    def _result(self, model: Path, options: Sequence[str], log: Path, read: Callable[[str], Result | None]) -> Result:
        for _ in range(_ATTEMPTS):
            if (result := read(self._run(model, options, log))) is not None:
                return result
        raise EngineError(
            "llama-perplexity gave no result, although it exited with status 0",
            kind="protocol",
            fix="Its last lines may show why; or use the build of `benchctl engines install llama.cpp`.",
            log_tail=log_tail(log),
        )

    def _run(self, model: Path, options: Sequence[str], log: Path) -> str:
        device = {"auto": [], "cpu": ["-ngl", "0", "--device", "none"]}.get(self.device, ["-ngl", "999"])
        arguments = ["-m", str(model), "-t", str(self.threads), *device, *options]
        status = self.program.run([*self.program.command, *arguments], log, None)
        if status == -signal.SIGXFSZ:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        if status != 0:
            raise EngineError(
                f"llama-perplexity {f'ended by signal {-status}' if status < 0 else f'failed with status {status}'}",
                kind="crash",
                where=str(model),
                fix="Its last lines show why; too little memory is the usual cause.",
                log_tail=log_tail(log),
            )
        return "\n".join(read_log(log))


def read_divergence(output: str) -> Divergence | None:
    """Read the table at the end of the program's output; `None` when it is not all there."""
    values: dict[str, float | None] = {}
    for name, pattern in _LINES.items():
        line = re.search(pattern, output)
        if line is None:
            return None
        for field, text in ((name, line[1]), (f"{name}_error", line[2])):
            value = float(text or "nan") / (100 if name == "same_top" else 1)
            values[field] = value if math.isfinite(value) else None
    del values["worst_error"]
    return Divergence(**values)


def reference_bytes(vocabulary: int, context: int, pieces: int) -> int:
    """Return the size of a file of `write_reference`."""
    row = 2 * ((vocabulary + 1) // 2) + 4
    return _HEAD.size + pieces * (4 * context + 2 * row * _scored_of(context))


def _scored_of(context: int) -> int:
    return context - 1 - context // 2


def _scored(file: Path) -> int | None:
    """Return how many positions a file holds, `None` when it holds none. Raises OSError when it is not whole."""
    with file.open("rb") if file.is_file() else io.BytesIO() as stream:
        head = stream.read(_HEAD.size)
    if len(head) < _HEAD.size or head[:8] != b"_logits_":
        return None
    _, context, vocabulary, pieces = _HEAD.unpack(head)
    if file.stat().st_size != reference_bytes(vocabulary, context, pieces):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return int(pieces * _scored_of(context))
