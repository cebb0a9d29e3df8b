"""Programs that end by themselves: an engine's own tools, bounded probes, commands of installations."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from tempfile import TemporaryDirectory
from typing import BinaryIO, TextIO

from benchctl.engines.common.process import EngineProcess, engine_environment
from benchctl.errors import UsageError
from benchctl.models.files import file_sha256
from benchctl.models.quantize import OnLine, Program
from benchctl.paths import on_path
from benchctl.recipes.adapters import registered

_POLL_S = 0.1
_BLOCK = 65536
_BLOCK_BYTES = 2**20
"""Read at a time; a longer line is several."""
_EXTRA = re.compile(r"([\w-]+).*;.*extra == [\"']convert[\"']")

_LIBRARIES = ("libllama*", "libggml*", "libmtmd*")
"""Shared libraries of programs that compute with ggml."""


def program(file: Path) -> Program:
    """Return the program in `file`: a binary, or llama.cpp's converter, a Python script."""
    parts = [file_sha256(file), *sorted(sibling_hashes(file).values())]
    if file.suffix == ".py":  # its modules lie beside it, in a folder named after the source they came from
        parts.append(file.parent.name)
    run = _run_script if file.suffix == ".py" else run_to_end
    return Program((str(file),), hashlib.sha256(" ".join(parts).encode()).hexdigest(), run)


def _run_script(argv: Sequence[str], log: Path, on_line: OnLine | None = None) -> int:
    """Run the converter by a Python that has its packages. Raises UsageError when there is none."""
    return run_to_end([str(converting_python()), *argv], log, on_line)


def converting_python() -> Path:
    """Return a Python with the packages of the extra `convert`, this or an installed engine's. Raises UsageError."""
    requirements = (_EXTRA.match(line) for line in importlib.metadata.requires("benchctl") or ())
    missing = [match[1] for match in requirements if match and importlib.util.find_spec(match[1]) is None]
    if not missing:
        return Path(sys.executable)
    converting = {
        kind: adapter for kind, adapter in registered().adapters.items() if adapter.converting_python is not None
    }
    for adapter in converting.values():
        if (python := resolve_name(str(adapter.converting_python))()) is not None:
            return Path(python)
    message = f"Converting safetensors needs the Python packages {', '.join(missing)}."
    for kind in converting:
        fix = f"Install them: benchctl engines install {kind}. Or name a GGUF file."
        raise UsageError(message, fix=fix, installs=kind)
    raise UsageError(message, fix="Install them beside benchctl: pip install 'benchctl[convert]'. Or name a GGUF file.")


def run_to_end(
    argv: Sequence[str], log: Path, on_line: OnLine | None = None, *, env: Mapping[str, str] | None = None
) -> int:
    """Run `argv` to its end in `env`, by default an engine's scrubbed one; see `benchctl.models.quantize.Run`."""
    environment = engine_environment(os.environ, {"HF_HUB_OFFLINE": "1"}) if env is None else env
    process = EngineProcess(argv, environment, log)
    with ExitStack() as stopping:
        stopping.callback(process.stop, grace_s=2.0)
        stream = stopping.enter_context(log.open("rb"))
        while not process.wait(_POLL_S):
            _pass_on(stream, on_line)
        status = process.stop(grace_s=2.0)
        _pass_on(stream, on_line, last=True)
    return -1 if status is None else status


def _pass_on(stream: BinaryIO, on_line: OnLine | None, *, last: bool = False) -> None:
    """Call `on_line` with the lines that a log has grown by; a line that has not ended waits, unless it is the last."""
    while on_line is not None and (block := stream.readline(_BLOCK_BYTES)):
        if not (block.endswith(b"\n") or len(block) == _BLOCK_BYTES or last):
            stream.seek(-len(block), os.SEEK_CUR)
            return
        for line in block.decode("utf-8", "replace").splitlines():
            on_line(line)


@dataclass(frozen=True)
class FoundBinary:
    """A program, and the word for where it was found: `recipe`, `option`, `environment`, `PATH` or `bundled`."""

    path: Path
    found_in: str
    hashes: Mapping[str, object] = field(default_factory=dict)
    """The part of `Capabilities.details` that is known without running it: SHA-256 of its files."""


def which(value: str) -> Path | None:
    """Return the program of a path, or of a name on PATH, made absolute; None where there is none."""
    if os.sep not in value and not value.startswith("~"):
        return on_path(value)
    path = Path(value).expanduser().absolute()
    return path if path.is_file() and os.access(path, os.X_OK) else None


def reserved(options: Mapping[str, str]) -> dict[str, str]:
    """Return by each option that benchctl relies on what a recipe has in its place; `options`: the other way round."""
    return {name: instead for instead, names in options.items() for name in names.split()}


def sibling_hashes(binary: Path) -> dict[str, str]:
    """Return name and SHA-256 of ggml's shared libraries beside the binary or in the `lib` folder next to it."""
    home = binary.resolve().parent
    libraries = {
        library.resolve()
        for folder in (home, home.parent / "lib")
        for pattern in _LIBRARIES
        for library in folder.glob(pattern)
        if library.is_file() and (".so" in library.name or library.suffix == ".dylib")
    }
    return {library.name: file_sha256(library) for library in sorted(libraries)}


MOST_BYTES = 4 * 2**20
"""The most that a program may print on each of its two streams."""


class NoAnswerError(Exception):
    """The program did not end, or printed without end; the message says which, without a full stop."""


@dataclass(frozen=True)
class Ended:
    """A program that has ended."""

    status: int
    output: bytes
    errors: bytes
    """Empty where both are a single stream."""


def short_run(
    argv: Sequence[str], env: Mapping[str, str], *, timeout_s: float, cwd: str | None = None, one_stream: bool = False
) -> Ended:
    """Run `argv` to its end, bounded; `one_stream`: errors stand in `output`. Raises OSError, NoAnswerError."""
    deadline = time.monotonic() + timeout_s
    process = subprocess.Popen(
        list(argv),
        env=dict(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if one_stream else subprocess.PIPE,
        process_group=0,
    )
    try:
        with selectors.DefaultSelector() as waiting:
            printed = [(pipe, bytearray()) for pipe in (process.stdout, process.stderr) if pipe is not None]
            for pipe, block_of in printed:
                waiting.register(pipe, selectors.EVENT_READ, block_of)
            while waiting.get_map():
                ready = waiting.select(_POLL_S)
                if not ready and process.poll() is not None:
                    break  # a child that it left behind holds its streams open
                for key, _ in ready:
                    block = os.read(key.fd, _BLOCK)
                    key.data.extend(block)
                    if not block:
                        waiting.unregister(key.fileobj)
                    elif len(key.data) > MOST_BYTES:
                        raise NoAnswerError(f"it printed more than {MOST_BYTES >> 20} MiB")
                if time.monotonic() > deadline:
                    raise NoAnswerError(f"it did not end within {timeout_s:g} s")
        status = process.wait(max(0.0, deadline - time.monotonic()))
    except BaseException as error:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            raise NoAnswerError(f"it did not end within {timeout_s:g} s") from None
        raise
    finally:
        for pipe in filter(None, (process.stdout, process.stderr)):
            pipe.close()
    output, errors = (*(bytes(printed_bytes) for _, printed_bytes in printed), b"")[:2]
    return Ended(status, output, errors)


_KEPT_LINES = 4000
_LONGEST_LINE = 8192
_TAIL_LINES = 20
_TROUBLE = re.compile(r"\berror\b|^FAILED:|CMake Error|undefined reference|\*\*\*|No space left|Killed", re.IGNORECASE)


class CommandFailedError(Exception):
    """A command ended with another status than 0. `lines` is the end of its output: untrusted text."""

    def __init__(self, argv: Sequence[str], status: int, lines: Sequence[str]) -> None:
        super().__init__(f"{argv[0]} exited with status {status}")
        self.status = status
        self.lines = tuple(lines)

    def tail(self) -> tuple[str, ...]:
        """Return the lines that show the cause: from the first sign of trouble on, else the last ones."""
        for index, line in enumerate(self.lines):
            if _TROUBLE.search(line):
                return self.lines[index : index + _TAIL_LINES]
        return self.lines[-_TAIL_LINES:]


def run_logged(
    argv: Sequence[str],
    *,
    log: TextIO,
    env: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] | None = None,
) -> tuple[str, ...]:
    """Run `argv`; return the end of all its output. An interrupt ends its children, too. Raises CommandFailedError."""
    log.write(f"$ {' '.join(argv)}\n")
    lines: deque[str] = deque(maxlen=_KEPT_LINES)

    def keep(line: str) -> None:
        log.write(f"{line}\n")
        lines.append(line[:_LONGEST_LINE])
        if on_line:
            on_line(lines[-1])

    with TemporaryDirectory() as folder:
        status = run_to_end(argv, Path(folder) / "output", keep, env=env or os.environ)
    log.flush()
    if status:
        raise CommandFailedError(argv, status, lines)
    return tuple(lines)
