"""What is wrong with a recipe: a line a problem, with file, line, key, what was expected and the nearest name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from benchctl.errors import UsageError
from benchctl.text import one_line

KeyPath = tuple[str | int, ...]
"""Where a value stands in a file: `("arms", 2, "speculation", "type")`."""

Plain: TypeAlias = Any
"""Plain data as a YAML file gives it: str, int, float, bool, None, and lists and dicts of these."""

MAX_QUOTED = 60
"""Longest value, in characters, that a message quotes."""


@dataclass(frozen=True, order=True)
class Problem:
    """A thing that is wrong. `line` counts from 1; 0 means the file as a whole."""

    line: int
    path: KeyPath
    message: str


class RecipeError(UsageError):
    """A recipe that cannot be used; `problems` lists everything that is wrong with the file."""

    def __init__(self, file: Path, problems: Sequence[Problem]) -> None:
        self.file = file
        self.problems = tuple(problems)
        super().__init__("\n".join(_line(file, problem) for problem in problems))


def _line(file: Path, problem: Problem) -> str:
    position = f"{one_line(str(file))}:{problem.line}" if problem.line else one_line(str(file))
    key = f"{path_text(problem.path)}: " if problem.path else ""
    return f"{position}: {key}{problem.message}"


def path_text(path: KeyPath) -> str:
    """Return `arms[2].speculation.type` for `("arms", 2, "speculation", "type")`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{excerpt(part)}" if text else excerpt(part)
    return text


def value_at(data: Plain, path: KeyPath) -> Plain:
    """Return what stands at `path` in plain data; None where nothing does."""
    for part in path:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def excerpt(text: str) -> str:
    """Return untrusted `text` shortened, on a line and without control characters."""
    return one_line(text, MAX_QUOTED)


def quoted(value: object) -> str:
    """Return how a message names a value: text in quotes, numbers as written, collections by their kind."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"'{excerpt(value)}'"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    return excerpt(str(value))


def did_you_mean(word: object, valid: Iterable[str], alike: float = 0.6) -> str:
    """Return ` Did you mean 'x'?` for the nearest known name, or nothing. `alike`: at least, from 0 to 1 (the same)."""
    if not isinstance(word, str) or len(word) > MAX_QUOTED:
        return ""
    lowered = {name.lower(): name for name in valid}
    near = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=alike)
    return f" Did you mean '{lowered[near[0]]}'?" if near else ""
