"""The formats that benchctl imports: how a row of each becomes a question. A further format is an entry in `FORMATS`.

- Spec-Bench, `question.jsonl`: 480 questions of six existing data sets, by category.
- MT-Bench, `question.jsonl`: 80 questions of two turns, in eight categories.
- HumanEval, `HumanEval.jsonl.gz`: 164 Python functions to be completed from their head and docstring.
- SPEED-Bench, parquet files: questions by category, about half of them without their text in the published
  files. Such a row has a notice in its place; it is left out and counted, since the notice would otherwise be measured
  as if it were the question.
- GSM8K, MMLU, MMLU-Pro and AIME, in the shapes in which they are published: questions with an answer to judge by. They
  are asked without examples, with a sentence that says how to end (`ENDINGS`).
- rows of your own: `prompt`, `messages` (OpenAI's chat format), `conversations` with turns of `from` and `value`
  (ShareGPT), or `body` with any of these (a line of an OpenAI batch file); `task`, `reference` and `answer` (as in a
  suite) where you like. Of a conversation everything up to the last turn of the user, or of a tool, is sent.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import ValidationError

from benchctl.errors import UsageError
from benchctl.prompts.answers import Answer
from benchctl.prompts.suite import REQUEST_FIELDS, Message
from benchctl.recipes.problems import Plain, did_you_mean, quoted
from benchctl.recipes.schema import MAX_NAME, NAME_PATTERN

Kind = Literal["chat", "raw"]
Fields = dict[str, Plain]
"""A row: a JSON object of a line, or a row of a table."""


class UnexpectedRowError(ValueError):
    """A row that is not of its format; the message names what was expected. The reader of the file adds where."""

    def __init__(self, what: str, fix: str | None = None) -> None:
        super().__init__(what)
        self.fix = fix


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
    """What is sent beside the messages, by `REQUEST_FIELDS`."""
    unsent: tuple[str, ...] = ()
    """Further keys of the row."""


@dataclass(frozen=True)
class Format:
    """A kind of question file."""

    name: str
    title: str
    home: str | None
    """Where the questions come from, for the suite's `source`."""
    licence: str | None
    """The questions' own licence where they have any and it is known; else the user must name it."""
    kind: Kind | None
    """Chat or raw unless the user chooses; None: as the first row is."""
    example: str
    """A row, for error messages."""
    read: Callable[[Fields], Question | None]
    """Returns None for a row without its text; raises UnexpectedRowError."""
    columns: tuple[str, ...] = ()
    """Of a CSV file that has no header."""


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
    """Return the reference answer to the first turn: files hold a text, a list of texts by turn, or nothing."""
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


LETTERS = "ABCDEFGHIJ"
_STEPS = "Think step by step, and end with: The answer is"
ENDINGS = {
    "gsm8k": f"{_STEPS} N, where N is a number.",
    "mmlu": "Give the letter of the right option: The answer is (X).",
    "mmlu-pro": f"{_STEPS} (X), where X is the letter of the right option.",
    "aime": "Think step by step, and put the answer, an integer from 0 to 999, into \\boxed{}.",
}
"""What follows a question, by format."""


def answer_of(value: object) -> Answer:
    """Read an answer as a suite has it; raises UnexpectedRowError."""
    try:
        return Answer.model_validate(value)
    except ValidationError as error:
        what = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UnexpectedRowError(
            f"expected `answer` with a `kind` and a `value`: {what}; got {quoted(value)}"
        ) from None


def _gsm8k(fields: Fields) -> Question:
    """The answer is a worked solution that ends with `#### 18`."""
    solution = text_of(fields, "answer")
    value = solution.rpartition("####")[2].strip()
    answer = answer_of({"kind": "numeric", "value": value})
    return Question("gsm8k", f"{text_of(fields, 'question')}\n\n{ENDINGS['gsm8k']}", solution, answer)


def _mmlu(fields: Fields) -> Question:
    """The hub's files have `choices` and the answer's index; the original CSV files a column an option, and a letter.

    These name no subject.
    """
    options = fields.get("choices") or [fields.get(letter) for letter in LETTERS[:4]]
    return _choice(fields, str(fields.get("subject") or "mmlu"), options, fields.get("answer"), "mmlu")


def _mmlu_pro(fields: Fields) -> Question:
    return _choice(fields, text_of(fields, "category"), fields.get("options"), fields.get("answer"), "mmlu-pro")


def _choice(fields: Fields, task: str, options: Plain, answer: Plain, form: str) -> Question:
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        raise UnexpectedRowError(f"expected the options as a list of texts; got {quoted(options)}")
    letters = LETTERS[: len(options)]
    indices = dict(zip("0123456789", letters, strict=False))
    right = indices.get(str(answer), str(answer)) if isinstance(answer, str | int) else ""
    if right not in letters or not right or not 2 <= len(options) <= len(LETTERS):
        raise UnexpectedRowError(f"expected 2 to {len(LETTERS)} options and `answer`, a letter or index of theirs; "
                                 f"got {len(options)} and {quoted(answer)}")  # fmt: skip
    listed = "\n".join(f"{letter}. {option}" for letter, option in zip(letters, options, strict=True))
    content = f"{text_of(fields, 'question')}\n\n{listed}\n\n{ENDINGS[form]}"
    return Question(task, content, answer=answer_of({"kind": "choice", "value": right}))


def _aime(fields: Fields) -> Question:
    """Keys are written `problem` or `Question`, `answer` or `Answer`, by file."""
    row = {key.lower(): value for key, value in fields.items()}
    given = row.get("answer")
    value = str(given).strip() if isinstance(given, str | int) else ""
    if not re.fullmatch(r"[0-9]{1,3}", value):
        raise UnexpectedRowError(f"expected `answer`, an integer from 0 to 999; got {quoted(given)}")
    question = text_of(row, "problem" if "problem" in row else "question")
    return Question("aime", f"{question}\n\n{ENDINGS['aime']}", answer=answer_of({"kind": "numeric", "value": value}))


_READ = {"prompt", "messages", "conversations", "body", "task", "reference", *REQUEST_FIELDS}
_NAMES = {"id", "custom_id", "method", "url", "stream", "stream_options"}
"""What names a row, or how a batch file has it sent."""
_REFUSED: dict[str, Plain] = {
    **dict.fromkeys(("stop", "stop_token_ids", "bad_words", "logit_bias", "grammar", "json_schema", "regex", "ebnf")),
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs")),
    **dict.fromkeys(("functions", "function_call", "parallel_tool_calls", "reasoning_effort", "thinking")),
    **dict.fromkeys(("chat_template", "documents", "suffix")),
    "add_generation_prompt": True,
    "continue_final_message": False,
    **dict.fromkeys(("n", "best_of", "repetition_penalty", "repeat_penalty"), 1),
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "min_p", "min_tokens"), 0),
}
"""Keys of a request that change what is asked or may be answered and that no recipe has, with the value that does
not."""
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}


def read_row(fields: Fields) -> Question:
    """Read a row of the user's own; raises UnexpectedRowError."""
    inner = fields.get("body")
    row = {**fields, **inner} if isinstance(inner, dict) else fields
    for key, neutral in _REFUSED.items():
        value = row.get(key)
        if value not in (None, [], {}, neutral):
            what = f"`{key}` changes the answer, and benchctl does not send it; got {quoted(value)}"
            fix = "Leave it out of the row; what all prompts share is set in the recipe (sampling, engine.args)."
            raise UnexpectedRowError(what, fix)
    task = text_of(row, "task") if row.get("task") is not None else NO_TASK
    forms = [key for key in ("prompt", "messages", "conversations") if key in row]
    if len(forms) != 1:
        raise UnexpectedRowError(
            f"expected either `prompt` or `messages`; got {'neither' if not forms else ' and '.join(forms)}"
        )
    request = {key: row[key] for key in REQUEST_FIELDS if row.get(key) not in (None, [], {}, {"type": "text"})}
    judged = isinstance(row.get("answer"), dict)  # else it is a key of the user's own
    known = _READ | _NAMES | ({"answer"} if judged else set())
    unsent = tuple(key for key, value in row.items() if key not in known and value is not None)
    reference = first_reference(row.get("reference"))
    answer = answer_of(row["answer"]) if judged else None
    if forms == ["prompt"]:
        return Question(task, text_of(row, "prompt"), reference, answer, request=request, unsent=unsent)
    turns = _from_sharegpt(row["conversations"]) if "conversations" in row else _content_as_text(row["messages"])
    messages = _messages(turns)
    asking = [number for number, message in enumerate(messages) if message.role in ("user", "tool")]
    earlier = sum(message.role == "user" for message in messages) - 1
    if earlier < 0:
        raise UnexpectedRowError("expected `messages` with a user's turn that is to be answered; got none")
    asked, rest = messages[: asking[-1] + 1], messages[asking[-1] + 1 :]
    answers = [message.content for message in rest if message.role == "assistant"]
    return Question(
        task,
        asked,
        reference or (answers[0] if answers else None),
        answer,
        earlier_turns=earlier,
        goes_on=bool(rest),
        request=request,
        unsent=unsent,
    )


def _from_sharegpt(turns: Plain) -> Plain:
    if not isinstance(turns, list) or not turns:
        raise UnexpectedRowError(f"expected `conversations`, a list of turns; got {quoted(turns)}")
    messages: list[Plain] = []
    for number, turn in enumerate(turns):
        role = _ROLES.get(str(turn.get("from"))) if isinstance(turn, dict) else None
        if not isinstance(turn, dict) or role is None or not isinstance(turn.get("value"), str):
            expected = f"`from` ({', '.join(_ROLES)}) and `value`, a text"
            raise UnexpectedRowError(f"expected `conversations[{number}]` to have {expected}; got {quoted(turn)}")
        messages.append({"role": role, "content": turn["value"]})
    return messages


def _content_as_text(turns: Plain) -> Plain:
    """Join the text parts of OpenAI's list form of `content`; anything else stays as it is, and is refused later."""
    if not isinstance(turns, list):
        return turns
    messages: list[Plain] = []
    for turn in turns:
        parts = turn.get("content") if isinstance(turn, dict) else None
        if isinstance(parts, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in parts):
            messages.append({**turn, "content": "\n".join(str(part.get("text", "")) for part in parts)})
        else:
            messages.append(turn)
    return messages


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
        name="gsm8k",
        title="GSM8K",
        home="https://github.com/openai/grade-school-math",
        licence="MIT",
        kind="chat",
        example='{"question": "…", "answer": "… #### 18"}',
        read=_gsm8k,
    ),
    Format(
        name="mmlu",
        title="MMLU",
        home="https://github.com/hendrycks/test",
        licence="MIT",
        kind="chat",
        example="rows of `question`, `choices` and `answer`, or CSV without a header: question, A, B, C, D, answer",
        read=_mmlu,
        columns=("question", *LETTERS[:4], "answer"),
    ),
    Format(
        name="mmlu-pro",
        title="MMLU-Pro",
        home="https://huggingface.co/datasets/TIGER-Lab/MMLU-Pro",
        licence="MIT",
        kind="chat",
        example='{"question": "…", "options": ["…", "…"], "answer": "I", "category": "…"}',
        read=_mmlu_pro,
    ),
    Format(
        name="aime",
        title="AIME",
        home=None,
        licence=None,  # the problems are the Mathematical Association of America's
        kind="chat",
        example='{"problem": "…", "answer": "204"}',
        read=_aime,
    ),
    Format(
        name="jsonl",
        title="JSON lines",
        home=None,
        licence=None,
        kind=None,
        example='{"prompt": "…"} or {"messages": [{"role": "user", "content": "…"}]}',
        read=read_row,
    ),
)
FORMATS: dict[str, Format] = {known.name: known for known in _FORMATS}


def find_format(name: str) -> Format:
    """Return the format called `name`; raises UsageError with the nearest format."""
    if name not in FORMATS:
        fix = did_you_mean(name, FORMATS).strip() or f"One of: {', '.join(FORMATS)}."
        raise UsageError(f"there is no format {quoted(name)}", where="--format", fix=fix)
    return FORMATS[name]


def safe_name(text: str) -> str:
    """Return `text` as a name: other characters become `_`; where nothing is left, a mark made of the text."""
    name = _UNSAFE.sub("_", text.strip()).strip("_.+-")[:MAX_NAME]
    return name if _NAME.match(name) else f"task-{_mark(text)}"


class TaskNames:
    """The name of every category, given once; two categories never share a name."""

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
