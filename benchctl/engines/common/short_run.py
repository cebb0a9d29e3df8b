"""Run a program that answers and ends by itself: what it prints is bounded in bytes, its time in seconds."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

MOST_BYTES = 4 * 2**20
"""Of each of its two streams."""
_BLOCK = 65536
_POLL_S = 0.1


class NoAnswerError(Exception):
    """The program did not end, or printed without end; the message says which, without a full stop."""


@dataclass(frozen=True)
class Ended:
    """A program that has ended."""

    status: int
    output: bytes
    errors: bytes
    """Empty where both streams are one."""


def short_run(
    argv: Sequence[str], env: Mapping[str, str], *, timeout_s: float, cwd: str | None = None, one_stream: bool = False
) -> Ended:
    """Run `argv` to its end. Raises OSError where it cannot be run, NoAnswerError; it is then killed with its children.

    `one_stream`: what it prints as an error is in `output`, at its place.
    """
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
            printed = {stream: bytearray() for stream in (process.stdout, process.stderr) if stream is not None}
            for stream in printed:
                waiting.register(stream, selectors.EVENT_READ)
            while waiting.get_map():
                ready = waiting.select(_POLL_S)
                if not ready and process.poll() is not None:
                    break  # a child that it left behind holds its streams open
                for key, _ in ready:
                    stream = next(stream for stream in printed if stream is key.fileobj)
                    block = os.read(key.fd, _BLOCK)
                    printed[stream] += block
                    if not block:
                        waiting.unregister(stream)
                    elif len(printed[stream]) > MOST_BYTES:
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
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    output, errors = (*map(bytes, printed.values()), b"")[:2]
    return Ended(status, output, errors)
