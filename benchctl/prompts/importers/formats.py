"""The formats that benchctl imports: how a row of each becomes a question. A further one is an entry in `FORMATS`.

- Spec-Bench, `question.jsonl`: 480 questions of six existing data sets, by category.
- MT-Bench, `question.jsonl`: 80 questions of two turns, in eight categories.
- HumanEval, `HumanEval.jsonl.gz`: 164 Python functions to be completed from their head and docstring.
- SPEED-Bench, parquet files: questions by category, about half of them without their text in the published
  files. Such a row has a notice in its place; it is left out and counted, since the notice would otherwise be measured
  as if it were the question.
- plain JSON lines: `{"prompt": …}` or `{"messages": […]}`, with `task` and `reference` where one likes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pydantic import ValidationError

from benchctl.errors import UsageError
from benchctl.prompts.suite import Message
from benchctl.recipes.problems import Plain, did_you_mean, quoted
from benchctl.recipes.schema import MAX_NAME, NAME_PATTERN

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


NO_TASK = "prompts"
"""The task of a row that names none."""
NOTICE_WITHOUT_TEXT = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
"""What SPEED-Bench has in place of a question whose text it does not publish."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_.+-]+")
_NAME = re.compile(NAME_PATTERN)
_MARK = 8


def _mt_bench(fields: Fields) -> Question:
    """The hub's copy of the file (`HuggingFaceH4/mt_bench_prompts`) calls the turns `prompt`."""
    return first_turn({**fields, "turns": fields["prompt"]} if "turns" not in fields and "prompt" in fields else fields)


def _humaneval(fields: Fields) -> Question:
    text_of(fields, "task_id")
    return Question("humaneval", text_of(fields, "prompt"), first_reference(fields.get("canonical_solution")))


def _speed_bench(fields: Fields) -> Question | None:
    question = first_turn(fields)
    return None if NOTICE_WITHOUT_TEXT in str(question.content) else question


def read_json_line(fields: Fields) -> Question:
    """Read a row of plain JSON lines; raises UnexpectedRowError."""
    task = text_of(fields, "task") if fields.get("task") is not None else NO_TASK
    reference = first_reference(fields.get("reference"))
    if ("prompt" in fields) == ("messages" in fields):
        got = "both" if "prompt" in fields else "neither"
        raise UnexpectedRowError(f"expected either `prompt` or `messages`; got {got}")
    if "prompt" in fields:
        return Question(task, text_of(fields, "prompt"), reference)
    messages = _messages(fields["messages"])
    if messages[-1].role == "assistant":  # an answered conversation: the answer is not part of the prompt
        reference = reference or messages[-1].content
        messages = messages[:-1]
    if not any(message.role == "user" for message in messages):
        raise UnexpectedRowError("expected `messages` with a user's turn that is to be answered; got none")
    return Question(task, messages, reference)


def _messages(value: Plain) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        got = "an empty list" if value == [] else quoted(value)
        raise UnexpectedRowError(f"expected `messages`, a list of turns; got {got}")
    try:
        return tuple(Message.model_validate(turn) for turn in value)
    except ValidationError:
        raise UnexpectedRowError(
            "expected every turn of `messages` to have a `role` (system, user, assistant or tool), "
            "a text as `content`, and nothing else"
        ) from None


_FORMATS = (
    Format(
        name="spec-bench",
        title="Spec-Bench",
        home="https://github.com/hemingkx/Spec-Bench",
        licence=None,  # the questions come from data sets of different licences
        kind="chat",
        example='{"question_id": 1, "category": "writing", "turns": ["…"]}',
        read=first_turn,
    ),
    Format(
        name="mt-bench",
        title="MT-Bench",
        home="https://github.com/lm-sys/FastChat",
        licence="Apache-2.0",
        kind="chat",
        example='{"question_id": 81, "category": "writing", "turns": ["…", "…"], "reference": ["…", "…"]}',
        read=_mt_bench,
    ),
    Format(
        name="humaneval",
        title="HumanEval",
        home="https://github.com/openai/human-eval",
        licence="MIT",
        kind="raw",  # the prompt is the beginning of a file that the model goes on with
        example='{"task_id": "HumanEval/0", "prompt": "def …", "canonical_solution": "…"}',
        read=_humaneval,
    ),
    Format(
        name="speed-bench",
        title="SPEED-Bench",
        home="https://huggingface.co/datasets/nvidia/SPEED-Bench",
        licence="nvidia-evaluation-dataset-license",
        kind="chat",
        example="a row of `question_id`, `category` and `turns`",
        read=_speed_bench,
    ),
    Format(
        name="jsonl",
        title="JSON lines",
        home=None,
        licence=None,
        kind=None,
        example='{"prompt": "…"} or {"messages": [{"role": "user", "content": "…"}]}',
        read=read_json_line,
    ),
)
FORMATS: dict[str, Format] = {one.name: one for one in _FORMATS}


def find_format(name: str) -> Format:
    """Return the format called `name`; raises UsageError with the nearest one."""
    if name not in FORMATS:
        fix = did_you_mean(name, FORMATS).strip() or f"One of: {', '.join(FORMATS)}."
        raise UsageError(f"there is no format {quoted(name)}", where="--format", fix=fix)
    return FORMATS[name]


def safe_name(text: str) -> str:
    """Return `text` as a name: other characters become `_`; where nothing is left, a mark made of the text."""
    name = _UNSAFE.sub("_", text.strip()).strip("_.+-")[:MAX_NAME]
    return name if _NAME.match(name) else f"task-{_mark(text)}"


class TaskNames:
    """The name of every category, given once; two categories never share one."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def __call__(self, category: str) -> str:
        """Return the task name of `category`."""
        if category not in self._names:
            name = safe_name(category)
            if name in self._names.values():
                name = f"{name[: MAX_NAME - _MARK - 1]}-{_mark(category)}"
            self._names[category] = name
        return self._names[category]


def _mark(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_MARK]
