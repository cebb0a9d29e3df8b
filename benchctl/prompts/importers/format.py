"""What an importer is: how one row of a question file becomes one question."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from benchctl.prompts.suite import Message
from benchctl.recipes.problems import Plain, quoted

Kind = Literal["chat", "raw"]
Fields = dict[str, Plain]
"""One row: a JSON object of a line, or a row of a table."""


class UnexpectedRowError(ValueError):
    """A row that is not of its format; the message names what was expected. The reader of the file adds where."""


@dataclass(frozen=True)
class Question:
    """The question of a row."""

    task: str
    """The row's own name of its category; the suite's task name is made of it."""
    content: str | tuple[Message, ...]
    reference: str | None = None
    later_turns: int = 0
    """Further user turns, which are not sent: they follow on the model's own answers."""


@dataclass(frozen=True)
class Format:
    """A kind of question file."""

    name: str
    title: str
    home: str | None
    """Where the questions come from, for the suite's `source`."""
    licence: str | None
    """The questions' own licence where they have one and it is known; else the user must name it."""
    kind: Kind | None
    """Chat or raw unless the user chooses; None: as the first row is."""
    example: str
    """One row, for error messages."""
    read: Callable[[Fields], Question | None]
    """Returns None for a row without its text; raises UnexpectedRowError."""


def text_of(fields: Fields, key: str) -> str:
    """Return a text that must be there and not blank."""
    value = fields.get(key)
    if not isinstance(value, str) or not value.strip():
        raise UnexpectedRowError(f"expected `{key}`, a text that is not empty; got {quoted(value)}")
    return value


def turns_of(fields: Fields) -> list[str]:
    """Return the user turns of a conversation, at least one."""
    turns = fields.get("turns")
    if not isinstance(turns, list) or not turns:
        got = "an empty list" if turns == [] else quoted(turns)
        raise UnexpectedRowError(f"expected `turns`, a list of the user's turns; got {got}")
    for number, turn in enumerate(turns):
        if not isinstance(turn, str) or not turn.strip():
            raise UnexpectedRowError(f"expected `turns[{number}]` to be a text that is not empty; got {quoted(turn)}")
    return turns


def first_reference(value: Plain) -> str | None:
    """Return the reference answer to the first turn: files hold a text, a list with one for every turn, or nothing."""
    while isinstance(value, list):
        value = value[0] if value else None
    if value is None or isinstance(value, str):
        return value or None
    if isinstance(value, (int, float)):
        return str(value)
    raise UnexpectedRowError(f"expected `reference` to be a text or a list of texts; got {quoted(value)}")


def first_turn(fields: Fields) -> Question:
    """Read a row of `category`, `turns` and perhaps `reference`: its first turn is the question."""
    turns = turns_of(fields)
    reference = first_reference(fields.get("reference"))
    return Question(text_of(fields, "category"), turns[0], reference, later_turns=len(turns) - 1)
