"""A row of a question file, and the question that is made of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from benchctl.prompts.answers import Answer
from benchctl.prompts.suite import REQUEST_FIELDS, Message
from benchctl.recipes.problems import Plain, path_text, quoted

Kind = Literal["chat", "raw"]
Fields = dict[str, Plain]
"""A row: a JSON object of a line, or a row of a table."""


class RowError(ValueError):
    """Why a row is no prompt, in the words of its file."""


@dataclass(frozen=True)
class Question:
    """The question of a row."""

    task: str
    """The row's own name of its category; the suite's task name is made of it."""
    content: str | tuple[Message, ...]
    reference: str | None = None
    answer: Answer | None = None
    later_turns: int = 0
    """Further user turns, which are not sent: they follow on the model's own answers."""
    earlier_turns: int = 0
    """User turns before the turn that is asked, which are sent with their answers."""
    goes_on: bool = False
    """Whether the row has turns after the turn that is asked."""
    request: Mapping[str, Plain] = field(default_factory=dict)
    """What is sent beside the messages, by `SENT_FIELDS`."""
    unsent: tuple[str, ...] = ()
    """Further keys of the row and of its turns."""


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("expected a text that is not empty")
    return text


def _first_text(value: Plain) -> Plain:
    """Return the reference answer to the first turn: files hold a text, a list of texts by turn, or nothing."""
    while isinstance(value, list):
        value = value[0] if value else None
    return str(value) if isinstance(value, int | float) else value or None


Text = Annotated[str, AfterValidator(_not_blank)]
Reference = Annotated[str | None, BeforeValidator(_first_text)]


class Row(BaseModel):
    """A row of a question file; a class that derives from it is a format."""

    model_config = ConfigDict(strict=True, frozen=True)

    name: ClassVar[str]
    title: ClassVar[str]
    home: ClassVar[str | None] = None
    """Where the questions come from, for the suite's `source`."""
    licence: ClassVar[str | None] = None
    """The questions' own licence where they have any and it is known; else the user must name it."""
    kind: ClassVar[Kind | None] = "chat"
    """Chat or raw unless the user chooses; None: as the first row is."""
    example: ClassVar[str]
    """A row, for error messages."""
    takes_requests: ClassVar[bool] = False
    """Whether a row may have the keys of a request (`REQUEST_FIELDS`)."""
    columns: ClassVar[tuple[str, ...]] = ()
    """The columns of a CSV file without a header."""

    @abstractmethod
    def _question(self) -> Question | None:
        """Return the question; None for a row without its text. Raises ValueError."""

    @classmethod
    def question_of(cls, fields: Fields) -> Question | None:
        """Return the question of a row; None where its text is withheld. Raises ValueError with what was expected."""
        unsent = next((key for key in REQUEST_FIELDS if fields.get(key)), None)
        if unsent is not None and not cls.takes_requests:
            raise ValueError(f"{cls.title} has no `{unsent}`: leave it out, or import `messages` with --format jsonl")
        try:
            return cls.model_validate(fields)._question()
        except ValidationError as error:
            raise ValueError(_sentence(error.errors(include_url=False)[0])) from None


_EXPECTED = {
    "missing": "this key is missing",
    "string_type": "expected text",
    "list_type": "expected a list",
    "dict_type": "expected an object",
    "too_short": "expected a list that is not empty",
}
"""What pydantic's kinds of errors mean in a file."""


def _sentence(detail: ErrorDetails) -> str:
    """Return an error of pydantic's as a sentence that names the key."""
    message = _EXPECTED.get(detail["type"], detail["msg"].removeprefix("Value error, "))
    got = "" if detail["type"] in ("missing", "too_short") else f"; got {quoted(detail['input'])}"
    return f"`{path_text(detail['loc'])}`: {message}{got}" if detail["loc"] else message
