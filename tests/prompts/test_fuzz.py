"""Prompt files that are not what they should be: suites, files of one's own, and what importers read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchctl.prompts.answers import Answer
from benchctl.prompts.formats import FORMATS
from benchctl.prompts.load import load_suite
from benchctl.prompts.questions import read_questions
from tests.fuzz import fuzzed, mistaken, outcome, spoilt, told

pytestmark = pytest.mark.usefixtures(told.__name__)
SUITES = Path(__file__).parents[2] / "prompts"
DATA = Path(__file__).parent / "data"
OWN = {
    "prompts.txt": b"First prompt\n---\nSecond\nof two lines\n",
    "prompts.jsonl": b'{"prompt": "a", "task": "x"}\n{"messages": [{"role": "user", "content": "b"}]}\n"c"\n',
    "requests.jsonl": b'{"prompt": "a", "tools": [{"function": {"name": "f"}}], "tool_choice": "auto", "stop": null}\n'
    b'{"body": {"messages": [{"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}], "n": 1, '
    b'"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}, "chat_template_kwargs": {"a": 1}}}\n',
    "prompts.json": b'[{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}, "c"]',
}

ROWS = [
    {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"b": 1}}}]},
            {"role": "tool", "content": "c", "tool_call_id": "d", "name": "f"},
        ],
        "tools": [{"function": {"name": "f"}}],
        "system": "e",
    },
    {"conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value": {"name": "f"}}]},
    {"instruction": "a", "input": "b", "output": "c", "history": [["d", "e"]], "tools": '[{"name": "f"}]'},
]


@pytest.mark.parametrize("way", ["bytes", "values"])
def test_a_suite_is_read_or_refused(way: str, tmp_path: Path) -> None:
    file, sound = tmp_path / "suite.json", (SUITES / "tiny.json").read_bytes()

    @fuzzed
    @given(spoilt(sound) if way == "bytes" else mistaken(json.loads(sound)))
    def one(content: bytes) -> None:
        file.write_bytes(content)
        outcome("suite", lambda: load_suite(str(file), recipe_folder=tmp_path))

    one()


@pytest.mark.parametrize("name", OWN)
def test_a_file_of_ones_own_is_read_or_refused(name: str, tmp_path: Path) -> None:
    file = tmp_path / name

    @fuzzed
    @given(spoilt(OWN[name]))
    def one(content: bytes) -> None:
        file.write_bytes(content)
        outcome("own prompts", lambda: load_suite(str(file), recipe_folder=tmp_path))

    one()


@pytest.mark.parametrize("row", ROWS)
def test_a_conversation_is_read_or_refused(row: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"

    @fuzzed
    @given(mistaken(row), st.booleans())
    def one(content: bytes, skip_bad: bool) -> None:
        file.write_bytes(content.replace(b"\n", b"") + b'\n{"prompt": "a"}\n')
        outcome("own prompts", lambda: load_suite(str(file), recipe_folder=tmp_path, skip_bad=skip_bad))

    one()


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_imported_is_read_or_refused(name: str, tmp_path: Path) -> None:
    file, lines = (
        tmp_path / "questions.jsonl",
        [line for data in sorted(DATA.glob("*.jsonl")) for line in first_lines(data)],
    )

    @fuzzed
    @given(st.sampled_from(lines), st.data())
    def one(line: bytes, data: st.DataObject) -> None:
        changed = data.draw(st.one_of(spoilt(line), mistaken(json.loads(line))))
        file.write_bytes(changed.replace(b"\n", b"") + b"\n" + line + b"\n")
        outcome("questions", lambda: read_questions(file, "questions.jsonl", FORMATS[name]))

    one()


def test_a_csv_file_is_read_or_refused(tmp_path: Path) -> None:
    file, sound = tmp_path / "questions.csv", (DATA / "mmlu.csv").read_bytes()

    @fuzzed
    @given(spoilt(sound), st.sampled_from(["mmlu", "aime", "jsonl"]))
    def one(content: bytes, name: str) -> None:
        file.write_bytes(content)
        outcome("questions", lambda: read_questions(file, "questions.csv", FORMATS[name]))

    one()


def test_an_answer_is_judged_whatever_the_text() -> None:
    answers = [Answer(kind="numeric", value="1"), Answer(kind="choice", value="B"), Answer(kind="exact", value="x")]
    marks = st.sampled_from([r"\boxed{", "####", "The answer is ", "Answer:", "1,234.5e9", "−", "}", "{,}", "</think>"])

    @fuzzed
    @given(st.lists(st.one_of(marks, st.text(max_size=9))), st.sampled_from(answers), st.booleans())
    def one(parts: list[str], answer: Answer, cut: bool) -> None:
        answer.is_given_by("".join(parts), cut=cut)

    one()


def first_lines(file: Path) -> list[bytes]:
    return file.read_bytes().splitlines()[:2]
