"""The formats that benchctl imports: a class each, whose fields are a row's keys and which makes a question of the row.

- Spec-Bench, `question.jsonl`: 480 questions of six existing data sets, by category.
- MT-Bench, `question.jsonl`: 80 questions of two turns, in eight categories.
- HumanEval, `HumanEval.jsonl.gz`: 164 Python functions to be completed from their head and docstring.
- SPEED-Bench, parquet files: questions by category, about half of them without their text in the published
  files. Such a row has a notice in its place; it is left out and counted, since the notice would otherwise be measured
  as if it were the question.
- GSM8K, MMLU, MMLU-Pro and AIME, in the shapes in which they are published: questions with an answer to judge by. They
  are asked without examples, with a sentence that says how to end (`ENDINGS`).
- rows of your own (`benchctl.prompts.own_rows`).
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated

from pydantic import AliasChoices, BeforeValidator, Field, StringConstraints, model_validator

from benchctl.errors import UsageError
from benchctl.prompts.answers import Answer
from benchctl.prompts.own_rows import OwnRow
from benchctl.prompts.row import Fields, Question, Reference, Row, Text
from benchctl.recipes.problems import Plain, did_you_mean, quoted
from benchctl.recipes.schema import MAX_NAME, NAME_PATTERN


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
