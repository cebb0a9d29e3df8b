"""Rows as people have them: what of each is sent, or the sentence that says why it is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchctl.errors import UsageError
from benchctl.prompts.formats import FORMATS
from benchctl.prompts.load import Suite, load_suite, prompt_sha256, write_suite
from benchctl.prompts.questions import read_questions
from benchctl.prompts.suite import Prompt


def loaded(folder: Path, rows: Any, name: str = "a.jsonl", **options: Any) -> Suite:
    text = json.dumps(rows) if name.endswith(".json") else "".join(f"{json.dumps(row)}\n" for row in rows)
    (folder / name).write_text(text, "utf-8")
    return load_suite(name, recipe_folder=folder, **options)


def first(folder: Path, row: dict[str, Any]) -> Prompt:
    return next(iter(loaded(folder, [row]).tasks.values()))[0]


def sent(prompt: Prompt) -> list[dict[str, Any]]:
    return [message.model_dump(mode="json") for message in prompt.messages or ()]


def turn(role: str, content: str | None) -> dict[str, Any]:
    return {"role": role, "content": content}


def shown(address: str) -> dict[str, Any]:
    """A turn with an image."""
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": address}}]
    return {"role": "user", "content": parts}


CALL = {"id": "c1", "type": "function", "function": {"name": "w", "arguments": '{"city": "X"}'}}
TOOL = {"type": "function", "function": {"name": "w", "parameters": {"type": "object", "properties": {}}}}
CALLING = [
    turn("user", "weather?"),
    {**turn("assistant", None), "tool_calls": [CALL]},
    {**turn("tool", "sunny"), "tool_call_id": "c1"},
]


def test_a_conversation_with_calls_of_tools_is_sent_as_it_stands(tmp_path: Path) -> None:
    """`content: null` too: some templates write a call only beside that."""
    row = {"messages": [*CALLING, turn("assistant", "It is sunny.")], "tools": [TOOL]}
    prompt = first(tmp_path, row)
    assert sent(prompt) == CALLING
    assert (prompt.reference, prompt.request) == ("It is sunny.", {"tools": [TOOL]})
    questions = read_questions(tmp_path / "a.jsonl", "a.jsonl", FORMATS["jsonl"], no_task="a")
    suite = write_suite(questions, tmp_path / "suite.json", name="s", licence="MIT")
    assert suite.tasks["a"] == (prompt,)


def test_sharegpt_in_all_its_roles(tmp_path: Path) -> None:
    speakers = [
        ("system", "Be brief."), ("human", "weather?"), ("function_call", '{"name": "w", "arguments": {"city": "X"}}'),
        ("observation", "sunny"), ("chatgpt", "Sunny."), ("user", "And now?"), ("gpt", "Rain."),
    ]  # fmt: skip
    row = {
        "conversations": [{"from": role, "value": text, "markdown": None} for role, text in speakers],
        "tools": json.dumps([TOOL["function"]]),
    }
    prompt = first(tmp_path, row)
    assert sent(prompt) == [
        turn("system", "Be brief."),
        turn("user", "weather?"),
        {**turn("assistant", None), "tool_calls": [{key: CALL[key] for key in ("type", "function")}]},
        turn("tool", "sunny"),
        turn("assistant", "Sunny."),
        turn("user", "And now?"),
    ]
    assert (prompt.request, prompt.reference) == ({"tools": [TOOL]}, "Rain.")


FORMS: dict[str, tuple[dict[str, Any], list[dict[str, Any]], str | None]] = {
    "SpecForge": (
        {"id": "1", "conversations": [turn("user", "Hello"), turn("assistant", "x")]}, [turn("user", "Hello")], "x",
    ),
    "chat logs": (
        {"conversation": [turn("user", "Hello"), turn("assistant", "x")], "model": "m"}, [turn("user", "Hello")], "x",
    ),
    "a prompt of messages": ({"prompt": [turn("user", "Hello")]}, [turn("user", "Hello")], None),
    "system beside ShareGPT": (
        {"system": "Be terse.", "conversations": [{"from": "human", "value": "Hello"}]},
        [turn("system", "Be terse."), turn("user", "Hello")],
        None,
    ),
    "system beside a prompt": (
        {"system_prompt": "Be terse.", "prompt": "Hello"}, [turn("system", "Be terse."), turn("user", "Hello")], None,
    ),
    "Alpaca": (
        {"instruction": "Translate", "input": "Guten Tag", "output": "Good day"},
        [turn("user", "Translate\n\nGuten Tag")],
        "Good day",
    ),
    "Alpaca with a history": (
        {"instruction": "Say hi", "input": "", "output": "hi", "system": "s", "history": [["a", "b"]]},
        [turn("system", "s"), turn("user", "a"), turn("assistant", "b"), turn("user", "Say hi")],
        "hi",
    ),
    "Dolly": (
        {"instruction": "Sum up", "context": "long", "response": "short", "category": "x"},
        [turn("user", "Sum up\n\nlong")],
        "short",
    ),
    "messages with a copy of the prompt": (
        {"prompt": "Hello", "developer": "Hell", "messages": [turn("user", "Hello"), turn("assistant", "x")]},
        [turn("user", "Hello")],
        "x",
    ),
    "a batch line": (
        {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions",
         "body": {"model": "m", "messages": CALLING, "tools": [TOOL]}},
        CALLING,
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read(tmp_path: Path, form: str) -> None:
    row, wanted, reference = FORMS[form]
    prompt = first(tmp_path, row)
    assert (sent(prompt), prompt.reference) == (wanted, reference)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "developer": ({"messages": [turn("developer", "b"), turn("user", "a")]}, "`messages[0].role` is 'developer'"),
    "a sound": (
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "x"}}]}]},
        "`messages[0].content[0]` is of type 'input_audio': benchctl sends text and images (`image_url`) alone",
    ),
    "an image of the network": ({"messages": [shown("https://example.org/cat.png")]}, "benchctl fetches none"),
    "an image elsewhere": ({"messages": [shown("../cat.png")]}, "does not lie below the prompts' folder"),
    "an image of no name": ({"messages": [shown("a\0.png")]}, "cannot be read: its name cannot be read"),
    "an image that is none": ({"messages": [shown("a.jsonl")]}, "is no PNG, JPEG, GIF or WebP"),
    "an image that is missing": ({"messages": [shown("cat.png")]}, "cannot be read: No such file"),
    "images beside it": ({"prompt": "a", "images": ["x.png"]}, "`images` seems to belong to the prompt"),
    "a context beside it": ({"prompt": "a", "context": "b"}, "`context` seems to belong to the prompt"),
    "instructions of the developer beside it": ({"prompt": "a", "developer": "b"}, "call it `system`"),
    "a call of OpenAI's older kind": (
        {"messages": [turn("user", "a"), {**turn("assistant", None), "function_call": {"name": "w"}},
                      turn("function", "b")]},
        "`messages[1].function_call` would not be sent: write the call as `tool_calls`",
    ),
    "no speaker": ({"conversations": [{"value": "a"}]}, "`conversations[0]` has neither `role` nor `from`"),
    "no text": ({"messages": [turn("user", None)]}, "`messages[0].content`: expected text; got nothing"),
    "text in place of a turn": ({"messages": ["a"]}, "`messages[0]`: expected a turn"),
    "a call that is none": (
        {"conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value": "w("},
                           {"from": "observation", "value": "b"}]},
        "`conversations[1].value`: expected a call such as",
    ),
    "two system prompts": (
        {"system": "a", "messages": [turn("system", "b"), turn("user", "c")]}, "`system` stands beside a system turn",
    ),
    "reasoning under another name": (
        {"messages": [turn("user", "a"), {**turn("assistant", "b"), "reasoning": "c"}, turn("user", "d")]},
        "`messages[1].reasoning` would not be sent: write it as `reasoning_content`",
    ),
    "MT-Bench": (
        {"question_id": 81, "category": "writing", "turns": ["Compose", "Rewrite"], "reference": []},
        "This reads it: benchctl models prompts import a.jsonl --format mt-bench -o suite.json",
    ),
    "MT-Bench of the hub": ({"prompt": ["a", "b"], "category": "writing"}, "--format mt-bench -o suite.json"),
    "GSM8K": ({"question": "q", "answer": "so\n#### 7"}, "import a.jsonl --format gsm8k -o suite.json"),
    "token ids": ({"prompt": [1, 15043, 29892]}, "`prompt` is a list of token ids; write the text"),
    "token ids of a batch": ({"body": {"model": "m", "prompt": [[1, 15043]]}}, "`prompt` is a list of token ids"),
    "lists within lists": ({"prompt": json.loads("[" * 600 + "]" * 600)}, "`prompt` is a list of texts"),
    "a line of embeddings": ({"body": {"model": "m", "input": "a"}}, "its keys: model, input"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_named_with_row_and_key(tmp_path: Path, case: str) -> None:
    row, said = REFUSED[case]
    with pytest.raises(UsageError) as refused:
        loaded(tmp_path, [{"prompt": "good"}, row])
    assert refused.value.where == "a.jsonl:2"
    assert said in str(refused.value)
    assert "Input should" not in str(refused.value)


def test_an_image_is_sent_and_hashed_as_data(tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(b"\x89PNG1")
    data = "data:image/png;base64,iVBORzE="
    prompt, same = first(tmp_path, {"messages": [shown("cat.png")]}), first(tmp_path, {"messages": [shown(data)]})
    assert prompt.images[0] is same.images[0], "rows with the same image hold it once"
    assert sent(prompt) == [shown(data)]
    assert prompt_sha256(prompt) == prompt_sha256(same)
    (tmp_path / "cat.png").write_bytes(b"\x89PNG2")
    assert prompt_sha256(first(tmp_path, {"messages": [shown("cat.png")]})) != prompt_sha256(same)
    assert prompt.messages is not None
    assert prompt.messages[0].text == "What is it?"
    suite = {"schema": 1, "name": "s", "kind": "chat", "licence": "MIT", "source": "me"}
    (tmp_path / "s.json").write_text(json.dumps({**suite, "tasks": {"t": [{"messages": [shown(data)]}]}}))
    assert load_suite("s.json", recipe_folder=tmp_path).tasks["t"] == (same,)


def test_a_key_of_tools_is_idle_without_any(tmp_path: Path) -> None:
    assert first(tmp_path, {"messages": [turn("user", "a")], "parallel_tool_calls": False})
    with pytest.raises(UsageError, match="`parallel_tool_calls` changes the answer"):
        first(tmp_path, {"messages": [turn("user", "a")], "parallel_tool_calls": False, "tools": [TOOL]})


def test_keys_of_turns_that_say_nothing_to_a_model_are_named(tmp_path: Path) -> None:
    turns = [{**turn("user", "a"), "timestamp": 5, "refusal": None}]
    (note,) = loaded(tmp_path, [{"messages": turns}]).notes
    assert "(messages[].timestamp)" in note


def test_bad_rows_are_skipped_where_that_is_asked_and_counted_and_named(tmp_path: Path) -> None:
    good = {"conversations": [{"from": "human", "value": "a"}]}
    rows = [good, {"conversations": []}, good, 5]
    with pytest.raises(UsageError, match=r"a\.json\[1\]: `conversations` is an empty list"):
        loaded(tmp_path, rows, "a.json")
    assert len(loaded(tmp_path, [good, {"messages": [shown("no.png")]}], skip_bad=True).tasks["a"]) == 1
    suite = loaded(tmp_path, rows, "a.json", skip_bad=True)
    assert suite.notes == (
        "2 of 4 rows were skipped: a.json[1]: `conversations` is an empty list: there is nothing to ask; "
        "a.json[3]: expected a JSON object; got 5.",
    )
    assert [item.where for item in suite.select(None, None)] == ["a.json[0]", "a.json[2]"]
    (tmp_path / "b.jsonl").write_text('{"prompt": "a"}\n{oops\n{"prompt": "b"}\n')
    suite = load_suite("b.jsonl", recipe_folder=tmp_path, skip_bad=True)
    assert (len(suite.tasks["b"]), suite.notes[0][:39]) == (2, "1 of 3 rows were skipped: b.jsonl:2: ex")
    with pytest.raises(UsageError, match=r"no row is a prompt: a\.jsonl:1: `messages` is an empty"):
        loaded(tmp_path, [{"messages": []}], skip_bad=True)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.txt"])
def test_a_file_in_utf_16_with_its_mark_is_read(tmp_path: Path, encoding: str, name: str) -> None:
    text = {"a.jsonl": '{"prompt": "日本"}\r\n', "a.json": '[{"prompt": "日本"}]', "a.txt": "日本\r\n"}[name]
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    (tmp_path / name).write_bytes((mark + text).encode(encoding))
    assert sent(load_suite(name, recipe_folder=tmp_path).tasks["a"][0]) == [turn("user", "日本")]


def test_texts_in_a_list_and_lines_under_the_name_of_json_are_prompts(tmp_path: Path) -> None:
    assert [prompt.messages for prompt in loaded(tmp_path, ["a", "b"], "a.json").tasks["a"]] == [
        Prompt.model_validate({"messages": [turn("user", text)]}, strict=False).messages for text in ("a", "b")
    ]
    (tmp_path / "b.json").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    assert len(load_suite("b.json", recipe_folder=tmp_path).tasks["b"]) == 2
