"""One's own prompts are read as they are: every form that people have them in, and one message for what is none."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from benchctl.errors import UsageError
from benchctl.prompts.formats import FORMATS
from benchctl.prompts.load import Suite, load_suite, prompt_sha256
from benchctl.prompts.questions import read_questions


def loaded(folder: Path, name: str, content: str | bytes) -> Suite:
    raw = content.encode() if isinstance(content, str) else content
    (folder / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return load_suite(name, recipe_folder=folder)


def asked(suite: Suite, task: str) -> list[list[tuple[str, str]]]:
    return [[(message.role, message.text) for message in prompt.messages or ()] for prompt in suite.tasks[task]]


def test_a_text_file_has_a_prompt_a_line(tmp_path: Path) -> None:
    suite = loaded(tmp_path, "questions.txt", "\ufeffWhy is the sky blue?\n\n  And the sea?  \n")
    assert asked(suite, "questions") == [[("user", "Why is the sky blue?")], [("user", "And the sea?")]]
    assert (suite.name, suite.kind) == ("questions", "chat")
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
        {"messages": [{"role": "user", "content": [{"text": "a"}, {"type": "input_text", "text": "b"}]}]},
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
        [("user", "hello"), ("assistant", "Good day."), ("user", "and now?")],
        None,
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


TURNS = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "Good day."},
    {"role": "user", "content": "and now?"},
    {"role": "assistant", "content": "Good night."},
    {"role": "assistant", "content": "Sleep well."},
]


@pytest.mark.parametrize("form", ["messages", "conversations"])
def test_a_conversation_keeps_its_turns_up_to_the_last_of_the_user_as_an_import_does(tmp_path: Path, form: str) -> None:
    speakers = {"user": "human", "assistant": "gpt"}
    turns = [{"from": speakers[turn["role"]], "value": turn["content"]} for turn in TURNS]
    rows = [{form: turns if form == "conversations" else TURNS}, {"prompt": "why"}]
    suite = loaded(tmp_path, "mt.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert asked(suite, "mt")[0] == [("user", "hello"), ("assistant", "Good day."), ("user", "and now?")]
    assert suite.tasks["mt"][0].reference == "Good night."
    assert [note.partition(" prompts ")[0] for note in suite.notes] == ["In 1 of 2", "In 1 of 2"]
    assert "the last turn" in suite.notes[0]
    assert "not sent" in suite.notes[1]
    imported = read_questions(tmp_path / "mt.jsonl", "mt.jsonl", FORMATS["jsonl"], kind="chat", no_task="mt")
    assert ({task: tuple(prompts) for task, prompts in imported.tasks.items()}, imported.notes) == (
        suite.tasks,
        suite.notes,
    )


def test_an_answer_to_a_tool_is_asked_for(tmp_path: Path) -> None:
    turns = [*TURNS[:2], {"role": "tool", "content": "12 °C"}, TURNS[3]]
    suite = loaded(tmp_path, "mine.jsonl", json.dumps({"messages": turns}))
    assert [role for role, _ in asked(suite, "mine")[0]] == ["user", "assistant", "tool"]


WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
REQUEST = {
    "tools": [WEATHER],
    "tool_choice": "none",
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": {"type": "object", "title": None}},
    },
    "chat_template_kwargs": {"enable_thinking": False},
}


def test_what_belongs_to_the_request_is_kept_and_is_part_of_the_prompts_identity(tmp_path: Path) -> None:
    inner = {"messages": TURNS[:1], **REQUEST, "stream": True, "tool_choice": "auto"}
    rows = [{"prompt": "hello", **REQUEST}, {"custom_id": "a", "body": inner}, {"prompt": "hello", "tools": None}]
    suite = loaded(tmp_path, "mine.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    first, second, plain = suite.tasks["mine"]
    assert first.request == REQUEST
    assert second.request == REQUEST | {"tool_choice": "auto"}
    assert plain.request == {}
    assert suite.notes == ()
    assert [item.where for item in suite.select(None, None)] == ["mine.jsonl:1", "mine.jsonl:2", "mine.jsonl:3"]
    assert len({prompt_sha256(prompt) for prompt in suite.tasks["mine"]}) == 3


def test_settings_of_a_row_are_read_by_the_names_that_servers_give_them(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"stop": "x", "seed": 3, "repetition_penalty": 1.2, "logit_bias": {"5": -1}},
        {"guided_json": {"type": "null"}, "logprobs": 5},
        {"structured_outputs": {"choice": ["a", "b"]}},
        {"ebnf": "root ::= [a]", "regex": "a", "logprobs": False},
    ]
    suite = loaded(tmp_path, "mine.jsonl", "".join(json.dumps({"prompt": "hello", **row}) + "\n" for row in rows))
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "null"}}}
    assert [prompt.sent for prompt in suite.tasks["mine"]] == [
        {"stop": ["x"], "seed": 3, "repeat_penalty": 1.2, "logit_bias": {"5": -1.0}},
        {"response_format": form, "logprobs": True},
        {"choice": ["a", "b"]},
        {"grammar": "root ::= [a]", "regex": "a"},
    ]
    assert suite.tasks["mine"][0].sampling == {"seed": 3, "repeat_penalty": 1.2, "logit_bias": {5: -1.0}}
    assert len({prompt_sha256(prompt) for prompt in suite.tasks["mine"]}) == 4
    assert suite.notes == ()


NESTED: dict[str, Any] = {}
for _ in range(300):
    NESTED = {"a": NESTED}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"stop_token_ids": [2]}, "`stop_token_ids` changes the answer, and benchctl does not send it"),
        ({"structured_outputs": {"json_object": True}}, "`structured_outputs.json_object` changes the answer"),
        ({"guided_regex": "a", "regex": "b"}, "`guided_regex` and `regex` say the same thing differently"),
        ({"regex": "(a"}, "`regex`: this is no regular expression"),
        ({"choice": ["a"], "response_format": {"type": "json_object"}}, "both say what the answer must be"),
        ({"logit_bias": {"one": 1}}, "expected `logit_bias` as in a request"),
        ({"tools": [WEATHER], "tool_choice": {"function": {"name": "x"}}}, "not among `tools`"),
        ({"n": 2}, "`n` changes the answer"),
        ({"parallel_tool_calls": False, "tools": [WEATHER]}, "`parallel_tool_calls` changes the answer"),
        ({"tools": "weather"}, "expected `tools` as in a request"),
        ({"tools": [WEATHER], "tool_choice": "perhaps"}, "expected `tool_choice` as in a request"),
        ({"tool_choice": "required"}, "`tool_choice` needs `tools`"),
        ({"tools": [{"a": NESTED}]}, "cannot be sent as JSON"),
        ({"chat_template_kwargs": {"a": float("nan")}}, "cannot be sent as JSON"),
        ({"response_format": {"type": "regex"}}, "expected `response_format` to be"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "expected `response_format` to be"),
        ({"chat_template_kwargs": [1]}, "expected `chat_template_kwargs` as in a request"),
    ],
)
def test_what_cannot_be_sent_is_refused_with_its_line(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        loaded(tmp_path, "mine.jsonl", '{"prompt": "a"}\n' + json.dumps({"prompt": "hello", **row}))
    assert (refused.value.where, said in refused.value.what) == ("mine.jsonl:2", True), refused.value.what
    assert refused.value.fix


def test_what_is_not_sent_is_said(tmp_path: Path) -> None:
    body = {"model": "m", "max_tokens": 5, "temperature": 1.0, "presence_penalty": 0, "messages": TURNS[:1]}
    rows = [{"custom_id": "1", "url": "/v1", "body": body}, {"prompt": "a", "id": 7, "difficulty": "high"}]
    suite = loaded(tmp_path, "mine.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    (note,) = suite.notes
    assert note.startswith(
        "In 2 of 2 prompts keys are not sent (model, max_tokens, temperature, presence_penalty, diff"
    )
    assert "sampling" in note


def test_rows_may_name_their_task(tmp_path: Path) -> None:
    suite = loaded(tmp_path, "mine.jsonl", '{"prompt": "a", "task": "code review"}\n{"prompt": "b"}\n')
    assert list(suite.tasks) == ["code_review", "mine"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", "\n \n", "this file has no prompts"),
        ("a.txt", b"\xff\xff", "no text in UTF-8"),
        ("a.txt", b"\xff\xfe\x00\xd8", "no text in UTF-8"),
        ("a.jsonl", "{", "a.jsonl:1: expected one JSON object a line"),
        ("a.jsonl", '{"text": "x"}', "its keys: text\nCall the key that holds the prompt `prompt`"),
        ("a.jsonl", '{"prompt": ""}', "`prompt`: expected a text that is not empty"),
        ("a.jsonl", '{"conversations": []}', "`conversations`"),
        (
            "a.jsonl",
            '{"conversations": [{"from": "robot", "value": "x"}]}',
            "`conversations[0].from` is 'robot': expected one of",
        ),
        ("a.json", '[{"prompt": "x"}, 5]', "a.json[1]: expected a JSON object; got 5"),
        ("a.jsonl", '{"prompt": "\\ud800"}', "half of a surrogate pair"),
        (
            "a.jsonl",
            '{"prompt": "a", "messages": []}',
            "expected a single prompt; got `prompt` and `messages`",
        ),
        ("a.jsonl.gz", "", "this file has no prompts"),
    ],
)
def test_what_is_no_prompt_is_one_message(tmp_path: Path, name: str, content: str | bytes, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        loaded(tmp_path, name, content)
    assert said in str(refused.value)


def test_what_is_no_gzip_file_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(b"plain")
    with pytest.raises(UsageError, match="it is no gzip file"):
        load_suite("a.jsonl.gz", recipe_folder=tmp_path)


def test_a_file_that_unpacks_to_more_than_it_may_is_refused(tmp_path: Path) -> None:
    """Of the right lines: 0.4 MB on disk that unpack to 400 MB."""
    line = b'{"prompt": "' + b"a" * 4_000_000 + b'"}\n'
    with gzip.open(tmp_path / "bomb.jsonl.gz", "wb") as stream:
        for _ in range(100):
            stream.write(line)
    assert (tmp_path / "bomb.jsonl.gz").stat().st_size < 1_000_000
    with pytest.raises(UsageError, match="longer than 16 MiB, or the file than 256 MiB"):
        load_suite("bomb.jsonl.gz", recipe_folder=tmp_path)
    (tmp_path / "sparse.csv").touch()
    os.truncate(tmp_path / "sparse.csv", 1 << 32)
    with pytest.raises(UsageError, match=r"(256|64) MiB"):
        load_suite("sparse.csv", recipe_folder=tmp_path)
