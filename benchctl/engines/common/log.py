"""An engine's log: its last lines, without control sequences, and by a list of patterns why the engine ended."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchctl.writing import cannot_write, open_unlinked

READ_THE_LOG = "Read the engine's log."
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_LOG_MENTIONED = re.compile(r"the engine's log(?=[.;,]|$)")
_TAIL_BYTES = 128 * 1024
_END_BYTES = 8 * 2**20
"""Of a longer log, so many bytes are read at its beginning and at its end."""
_LONGEST_LINE = 4096
"""Patterns are searched for in lines that are cut to this length."""
_LINE_CHARACTERS = 600


def clean(text: str) -> str:
    """Return `text` without escapes, controls (tabs and newlines stay), direction overrides and half characters."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text))


def read_log(path: Path) -> list[str]:
    """Return the lines of a log, cleaned and cut; of a long log its beginning and its end. Empty: there is none yet."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, 2)
            log.seek(0)
            content = log.read(_END_BYTES if size > 2 * _END_BYTES else size)
            if size > 2 * _END_BYTES:
                log.seek(-_END_BYTES, 2)
                content += b"\n" + log.read(_END_BYTES)
    except FileNotFoundError:
        return []
    return [line[:_LONGEST_LINE] for line in clean(content.decode("utf-8", "replace")).split("\n")]


def log_tail(path: Path, lines: int = 20) -> tuple[str, ...]:
    """Return the last `lines` lines that are not blank, oldest first, each cut to a readable length."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, 2)
            log.seek(max(0, size - _TAIL_BYTES))
            text = log.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ()
    not_blank = [line.rstrip()[:_LINE_CHARACTERS] for line in clean(text).split("\n") if line.strip()]
    return tuple(not_blank[-lines:])


def name_log(advice: str, path: Path | None) -> str:
    """Return `advice` with the file's path where it mentions the engine's log; `None`: the log is not benchctl's."""
    return _LOG_MENTIONED.sub(lambda match: f"{match[0]} ({path})" if path else "the server's own log", advice)


def make_private(path: Path) -> None:
    """Create the file of a log that only this user may read. Raises StorageError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = open_unlinked(path, os.O_WRONLY | os.O_CREAT)
        os.fchmod(descriptor, 0o600)
        os.close(descriptor)
    except OSError as error:
        raise cannot_write(error, path) from error


def hide(path: Path, secret: str) -> None:
    """Put stars where a log holds `secret`, in place: the engine may still be writing."""
    with suppress(FileNotFoundError), path.open("r+b") as log:
        content, sought = log.read(), secret.encode()
        position = content.find(sought)
        while position >= 0:
            log.seek(position)
            log.write(b"*" * len(sought))
            position = content.find(sought, position + len(sought))


Reason = tuple[str, str]
"""(A sentence that says what happened, what to do.)"""


@dataclass(frozen=True)
class Cause:
    """Explains a log line to the user; `{0}` in the sentence is the pattern's first group."""

    pattern: str
    sentence: str
    fix: str


def read_causes(file: Path) -> dict[str, tuple[Cause, ...]]:
    """Read causes by section, three lines each: the pattern, and below it the sentence and what to do."""
    _, *parts = re.split(r"^\[(.+)\]$", file.read_text("utf-8"), flags=re.MULTILINE)
    return {name: causes_in(table) for name, table in zip(parts[::2], parts[1::2], strict=True)}


def causes_in(table: str) -> tuple[Cause, ...]:
    """Read causes from a table, three lines each: the pattern, and below it the sentence and what to do."""
    lines = [line.strip() for line in table.splitlines() if line.strip()]
    return tuple(Cause(*lines[index : index + 3]) for index in range(0, len(lines), 3))


def first_cause(log: Sequence[str], causes: Sequence[Cause]) -> tuple[str, str, str] | None:
    """Return (sentence, fix, log line) for the first of `causes` that the log shows."""
    for cause in causes:
        pattern = re.compile(cause.pattern)
        for line in log:
            match = pattern.search(line)
            if match:
                groups = [str(group)[:300] for group in match.groups() or ("",)]
                return cause.sentence.format(*groups), cause.fix, line
    return None


def first_reason(log: Sequence[str], causes: Sequence[Cause]) -> Reason | None:
    """Return (sentence, fix) for the first of `causes` that the log shows."""
    cause = first_cause(log, causes)
    return cause and cause[:2]
