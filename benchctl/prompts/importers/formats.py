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

from pydantic import ValidationError

from benchctl.errors import UsageError
from benchctl.prompts.importers.format import (
    Fields,
    Format,
    Question,
    UnexpectedRowError,
    first_reference,
    first_turn,
    text_of,
)
from benchctl.prompts.suite import Message
from benchctl.recipes.problems import Plain, did_you_mean, quoted
from benchctl.recipes.schema import MAX_NAME, NAME_PATTERN

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
