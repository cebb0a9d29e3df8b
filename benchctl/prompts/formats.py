"""The formats that benchctl imports: a class each, whose fields are a row's keys and which makes a question of the row.

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
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from benchctl.errors import UsageError
from benchctl.prompts.answers import Answer
from benchctl.prompts.suite import REQUEST_FIELDS, Message
from benchctl.recipes.problems import Plain, did_you_mean, path_text, quoted
from benchctl.recipes.schema import MAX_NAME, NAME_PATTERN

Kind = Literal["chat", "raw"]
Fields = dict[str, Plain]
"""A row: a JSON object of a line, or a row of a table."""


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
    columns: ClassVar[tuple[str, ...]] = ()
    """The columns of a CSV file without a header."""

    @abstractmethod
    def _question(self) -> Question | None:
        """Return the question; None for a row without its text. Raises ValueError."""

    @classmethod
    def question_of(cls, fields: Fields) -> Question | None:
        """Return the question of a row; None where its text is withheld. Raises ValueError with what was expected."""
        unsent = next((key for key in REQUEST_FIELDS if fields.get(key)), None)
        if unsent is not None and cls is not OwnRow:
            raise ValueError(f"{cls.title} has no `{unsent}`: leave it out, or import `messages` with --format jsonl")
        try:
            return cls.model_validate(fields)._question()
        except ValidationError as error:
            detail = error.errors(include_url=False)[0]
            message = detail["msg"].removeprefix("Value error, ")
            got = "" if detail["type"] == "missing" else f"; got {quoted(detail['input'])}"
            raise ValueError(f"`{path_text(detail['loc'])}`: {message}{got}" if detail["loc"] else message) from None


class SpecBench(Row):
    """A row of `category`, `turns` and perhaps `reference`: its first turn is the question."""

    name = "spec-bench"
    title = "Spec-Bench"
    home = "https://github.com/hemingkx/Spec-Bench"  # of data sets of different licences
    example = '{"question_id": 1, "category": "writing", "turns": ["…"]}'

    category: Text
    turns: list[Text] = Field(min_length=1)
    reference: Reference = None

    def _question(self) -> Question | None:
        return Question(self.category, self.turns[0], self.reference, later_turns=len(self.turns) - 1)


class MtBench(SpecBench):
    """Likewise; the hub's copy of the file (`HuggingFaceH4/mt_bench_prompts`) calls the turns `prompt`."""

    name = "mt-bench"
    title = "MT-Bench"
    home = "https://github.com/lm-sys/FastChat"
    licence = "Apache-2.0"
    example = '{"question_id": 81, "category": "writing", "turns": ["…", "…"], "reference": ["…", "…"]}'

    turns: list[Text] = Field(min_length=1, validation_alias=AliasChoices("turns", "prompt"))


class HumanEval(Row):
    """The prompt is the beginning of a file that the model goes on with."""

    name = "humaneval"
    title = "HumanEval"
    home = "https://github.com/openai/human-eval"
    licence = "MIT"
    kind = "raw"
    example = '{"task_id": "HumanEval/0", "prompt": "def …", "canonical_solution": "…"}'

    task_id: Text
    prompt: Text
    canonical_solution: Reference = None

    def _question(self) -> Question:
        return Question("humaneval", self.prompt, self.canonical_solution)


NOTICE_WITHOUT_TEXT = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
"""What SPEED-Bench has in place of a question whose text it does not publish."""


class SpeedBench(SpecBench):
    """Likewise; some rows have a notice in place of their text."""

    name = "speed-bench"
    title = "SPEED-Bench"
    home = "https://huggingface.co/datasets/nvidia/SPEED-Bench"
    licence = "nvidia-evaluation-dataset-license"
    example = "a row of `question_id`, `category` and `turns`"

    def _question(self) -> Question | None:
        return None if NOTICE_WITHOUT_TEXT in self.turns[0] else super()._question()


LETTERS = "ABCDEFGHIJ"
_STEPS = "Think step by step, and end with: The answer is"
ENDINGS = {
    "gsm8k": f"{_STEPS} N, where N is a number.",
    "mmlu": "Give the letter of the right option: The answer is (X).",
    "mmlu-pro": f"{_STEPS} (X), where X is the letter of the right option.",
    "aime": "Think step by step, and put the answer, an integer from 0 to 999, into \\boxed{}.",
}
"""What follows a question, by format."""


class Gsm8k(Row):
    """The answer is a worked solution that ends with `#### 18`."""

    name = "gsm8k"
    title = "GSM8K"
    home = "https://github.com/openai/grade-school-math"
    licence = "MIT"
    example = '{"question": "…", "answer": "… #### 18"}'

    question: Text
    answer: Text

    def _question(self) -> Question:
        right = Answer(kind="numeric", value=self.answer.rpartition("####")[2].strip())
        return Question("gsm8k", f"{self.question}\n\n{ENDINGS['gsm8k']}", self.answer, right)


class MmluPro(Row):
    """Up to ten options, and the letter or the index of the right one."""

    name = "mmlu-pro"
    title = "MMLU-Pro"
    home = "https://huggingface.co/datasets/TIGER-Lab/MMLU-Pro"
    licence = "MIT"
    example = '{"question": "…", "options": ["…", "…"], "answer": "I", "category": "…"}'

    question: Text
    category: Text
    options: list[str] = Field(min_length=2, max_length=len(LETTERS))
    answer: int | str

    def _question(self) -> Question:
        letters = LETTERS[: len(self.options)]
        right = dict(zip("0123456789", letters, strict=False)).get(str(self.answer), str(self.answer))
        if right not in [*letters]:
            raise ValueError(f"`answer`: expected the letter or index of an option; got {quoted(self.answer)}")
        listed = "\n".join(f"{letter}. {option}" for letter, option in zip(letters, self.options, strict=True))
        content = f"{self.question}\n\n{listed}\n\n{ENDINGS[self.name]}"
        return Question(self.category, content, answer=Answer(kind="choice", value=right))


class Mmlu(MmluPro):
    """The hub's files have `choices` and an index; the original CSV files a column an option, and no subject."""

    name = "mmlu"
    title = "MMLU"
    home = "https://github.com/hendrycks/test"
    example = "rows of `question`, `choices` and `answer`, or CSV without a header: question, A, B, C, D, answer"
    columns = ("question", *LETTERS[:4], "answer")

    category: Text = Field(default="mmlu", alias="subject")
    options: list[str] = Field(min_length=2, max_length=len(LETTERS), alias="choices")

    @model_validator(mode="before")
    @classmethod
    def _of_columns(cls, row: Fields) -> Fields:
        return row if row.get("choices") else row | {"choices": [row.get(letter) for letter in LETTERS[:4]]}


def _as_text(value: Plain) -> Plain:
    return str(value).strip() if isinstance(value, str | int) else value


class Aime(Row):
    """The problems are the Mathematical Association of America's; how the keys are written differs by file."""

    name = "aime"
    title = "AIME"
    example = '{"problem": "…", "answer": "204"}'

    problem: Text = Field(validation_alias=AliasChoices("problem", "question"))
    answer: Annotated[str, BeforeValidator(_as_text), StringConstraints(pattern="^[0-9]{1,3}$")]

    @model_validator(mode="before")
    @classmethod
    def _by_small_letters(cls, row: Fields) -> Fields:
        return {key.lower(): value for key, value in row.items()}

    def _question(self) -> Question:
        right = Answer(kind="numeric", value=self.answer)
        return Question("aime", f"{self.problem}\n\n{ENDINGS['aime']}", answer=right)


NO_TASK = "prompts"
"""The task of a row that names none."""
_KNOWN = {"id", "custom_id", "method", "url", "stream", "stream_options", "body", *REQUEST_FIELDS}
"""What names a row, how a batch file has it sent, or is sent."""
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


def _parts_joined(turn: Plain) -> Plain:
    """Join the text parts of OpenAI's list form of `content`; anything else stays as it is, and is refused later."""
    parts = turn.get("content") if isinstance(turn, dict) else None
    if isinstance(parts, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in parts):
        return {**turn, "content": "\n".join(str(part.get("text", "")) for part in parts)}
    return turn


def _as_message(turn: Plain) -> Plain:
    """Return ShareGPT's turn as OpenAI has it."""
    if not isinstance(turn, dict):
        return turn
    return {"role": _ROLES.get(str(turn.get("from"))), "content": turn.get("value")}


class OwnRow(Row):
    """A row of the user's own."""

    model_config = ConfigDict(extra="allow")

    name = "jsonl"
    title = "JSON lines"
    kind = None
    example = '{"prompt": "…"} or {"messages": [{"role": "user", "content": "…"}]}'

    task: Text | None = None
    prompt: Text | None = None
    messages: list[Annotated[Message, BeforeValidator(_parts_joined)]] | None = Field(default=None, min_length=1)
    conversations: list[Annotated[Message, BeforeValidator(_as_message)]] | None = Field(default=None, min_length=1)
    reference: Reference = None
    answer: Plain = None
    """An answer to judge by where it is a mapping, else a key of the user's own."""

    @model_validator(mode="before")
    @classmethod
    def _as_a_request(cls, fields: Fields) -> Fields:
        inner = fields.get("body")
        row = {**fields, **inner} if isinstance(inner, dict) else fields
        for key, neutral in _REFUSED.items():
            if row.get(key) not in (None, [], {}, neutral):
                raise ValueError(
                    f"`{key}` changes the answer, and benchctl does not send it: leave it out; what all prompts share "
                    "is set in the recipe (sampling, engine.args)"
                )
        forms = [key for key in ("prompt", "messages", "conversations") if key in row]
        if len(forms) != 1:
            raise ValueError(f"expected either `prompt` or `messages`; got {' and '.join(forms) or 'neither'}")
        return row

    def _question(self) -> Question:
        extra = {key: value for key, value in (self.model_extra or {}).items() if value is not None}
        judged = isinstance(self.answer, dict)
        unsent = [key for key in extra if key not in _KNOWN]
        request = {key: extra[key] for key in REQUEST_FIELDS if extra.get(key) not in (None, [], {}, {"type": "text"})}
        question = Question(
            self.task or NO_TASK,
            self.prompt or "",
            self.reference,
            Answer.model_validate(self.answer) if judged else None,
            request=request,
            unsent=(*unsent, *(["answer"] if self.answer is not None and not judged else ())),
        )
        messages = self.messages or self.conversations
        return question if messages is None else _up_to_the_last_question(question, messages)


def _up_to_the_last_question(question: Question, messages: Sequence[Message]) -> Question:
    """Return the question with the turns up to the last that is to be answered, and the next answer to it."""
    asking = [number for number, message in enumerate(messages) if message.role in ("user", "tool")]
    earlier = sum(message.role == "user" for message in messages) - 1
    if earlier < 0:
        raise ValueError("expected `messages` with a user's turn that is to be answered; got none")
    end = asking[-1] + 1
    following = next((message.content for message in messages[end:] if message.role == "assistant"), None)
    return replace(
        question,
        content=tuple(messages[:end]),
        reference=question.reference or following,
        earlier_turns=earlier,
        goes_on=end < len(messages),
    )


FORMATS: dict[str, type[Row]] = {
    row_format.name: row_format
    for row_format in (SpecBench, MtBench, HumanEval, SpeedBench, Gsm8k, Mmlu, MmluPro, Aime, OwnRow)
}
_UNSAFE = re.compile(r"[^A-Za-z0-9_.+-]+")
_NAME = re.compile(NAME_PATTERN)
_MARK = 8


def find_format(name: str) -> type[Row]:
    """Return the format called `name`; raises UsageError with the nearest format."""
    if name not in FORMATS:
        fix = did_you_mean(name, FORMATS).strip() or f"One of: {', '.join(FORMATS)}."
        raise UsageError(f"there is no format {quoted(name)}", where="--format", fix=fix)
    return FORMATS[name]


def safe_name(text: str) -> str:
    """Return `text` as a name: other characters become `_`; where nothing is left, a mark made of the text."""
    name = _UNSAFE.sub("_", text.strip()).strip("_.+-")[:MAX_NAME]
    return name if _NAME.match(name) else f"task-{_mark(text)}"


class TaskNames(dict[str, str]):
    """The name of every category; two categories never share a name."""

    def __missing__(self, category: str) -> str:
        name = safe_name(category)
        if name in self.values():
            name = f"{name[: MAX_NAME - _MARK - 1]}-{_mark(category)}"
        return self.setdefault(category, name)


def _mark(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_MARK]
