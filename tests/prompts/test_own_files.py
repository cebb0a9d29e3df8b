"""One's own prompts are read as they are: every form that people have them in, and one message for what is none."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchctl.errors import UsageError
from benchctl.prompts.load import Suite, load_suite


def loaded(folder: Path, name: str, content: str | bytes) -> Suite:
    raw = content.encode() if isinstance(content, str) else content
    (folder / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return load_suite(name, recipe_folder=folder)


def asked(suite: Suite, task: str) -> list[list[tuple[str, str]]]:
    return [[(one.role, one.content) for one in prompt.messages or ()] for prompt in suite.tasks[task]]


def test_a_text_file_has_a_prompt_a_line(tmp_path: Path) -> None:
    suite = loaded(tmp_path, "questions.txt", "\ufeffWhy is the sky blue?\n\n  And the sea?  \n")
    assert asked(suite, "questions") == [[("user", "Why is the sky blue?")], [("user", "And the sea?")]]
    assert (suite.name, suite.kind, suite.own) == ("questions", "chat", True)
    assert len(suite.sha256) == 64


def test_lines_of_dashes_separate_prompts_of_several_lines(tmp_path: Path) -> None:
    suite = loaded(tmp_path, "long.txt", "first\nline two\n---\n\n---\nsecond\n")
    assert asked(suite, "long") == [[("user", "first\nline two")], [("user", "second")]]


ROWS: dict[str, tuple[dict[str, Any], list[tuple[str, str]], str | None]] = {
    "prompt": ({"prompt": "hello"}, [("user", "hello")], None),
    "messages": (
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]},
        [("system", "Be brief."), ("user", "hello")],
        None,
    ),
    "parts of content": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
        [("user", "a\nb")],
        None,
    ),
    "a fine-tuning row": (
        {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "Good day."}]},
        [("user", "hello")],
        "Good day.",
    ),
    "an OpenAI batch": (
        {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions",
         "body": {"model": "m", "messages": [{"role": "user", "content": "hello"}]}},
        [("user", "hello")],
        None,
    ),
    "ShareGPT": (
        {"id": "x", "conversations": [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "Good day."},
                                      {"from": "human", "value": "and now?"}]},
        [("user", "hello")],
        "Good day.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ["mine.jsonl", "mine.jsonl.gz", "mine.json"])
@pytest.mark.parametrize("form", ROWS)
def test_rows_of_every_form(tmp_path: Path, name: str, form: str) -> None:
    row, wanted, reference = ROWS[form]
    content = json.dumps([row, row] if name == "mine.json" else row) + "\n"
    suite = loaded(tmp_path, name, content)
    assert asked(suite, "mine")[0] == wanted
    assert suite.tasks["mine"][0].reference == reference


def test_rows_may_name_their_task(tmp_path: Path) -> None:
    suite = loaded(tmp_path, "mine.jsonl", '{"prompt": "a", "task": "code review"}\n{"prompt": "b"}\n')
    assert list(suite.tasks) == ["code_review", "mine"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", "\n \n", "this file has no prompts"),
        ("a.txt", b"\xff\xfe", "not UTF-8"),
        ("a.jsonl", "{", "a.jsonl:1: expected one JSON object a line"),
        ("a.jsonl", '{"text": "x"}', "expected either `prompt` or `messages`; got neither"),
        ("a.jsonl", '{"prompt": ""}', "expected `prompt`, a text that is not empty"),
        ("a.jsonl", '{"conversations": []}', "expected `conversations`, a list of turns"),
        ("a.jsonl", '{"conversations": [{"from": "robot", "value": "x"}]}', "expected `conversations[0]` to have"),
        ("a.json", '[{"prompt": "x"}, 5]', "a.json[1]: expected an object; got 5"),
        ("a.jsonl", '{"prompt": "\\ud800"}', "half of a surrogate pair"),
        ("a.jsonl.gz", "", "this file has no prompts"),
    ],
)
def test_what_is_no_prompt_is_one_message(tmp_path: Path, name: str, content: str | bytes, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        loaded(tmp_path, name, content)
    assert said in str(refused.value)


def test_what_is_no_gzip_file_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(b"plain")
    with pytest.raises(UsageError, match="this gzip file is truncated or damaged"):
        load_suite("a.jsonl.gz", recipe_folder=tmp_path)
