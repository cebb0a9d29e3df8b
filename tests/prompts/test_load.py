"""Prompt suites: how one is found, what is wrong with it, and what is chosen from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchctl.errors import UsageError
from benchctl.paths import shipped_folder
from benchctl.prompts.load import load_suite, prompt_sha256
from benchctl.prompts.suite import Message, Prompt

GOOD: dict[str, Any] = {
    "schema": 1,
    "name": "mine",
    "kind": "chat",
    "licence": "CC0-1.0",
    "source": "by hand",
    "tasks": {
        "code": [{"messages": [{"role": "user", "content": f"question {number}"}]} for number in range(3)],
        "chat": [{"messages": [{"role": "user", "content": "hello"}], "reference": "hi"}],
    },
}

Write = Callable[[object], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write `suite.json` into the recipe's folder; the working directory is another."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")

    def write_suite(value: object) -> Path:
        path = tmp_path / "suite.json"
        path.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
        return path

    return write_suite


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        load_suite("suite.json", recipe_folder=path.parent)
    return str(caught.value).replace(str(path), "suite.json")


def test_a_suite_is_what_its_file_says(write: Write) -> None:
    path = write(GOOD)
    suite = load_suite("suite.json", recipe_folder=path.parent)
    assert (suite.name, suite.kind, suite.licence, suite.source) == ("mine", "chat", "CC0-1.0", "by hand")
    assert suite.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert list(suite.tasks) == ["code", "chat"]
    assert suite.tasks["chat"][0].messages == (Message(role="user", content="hello"),)


def test_selecting_keeps_order_and_identity(write: Write) -> None:
    suite = load_suite("suite.json", recipe_folder=write(GOOD).parent)

    def keys(tasks: list[str] | None, limit: int | None) -> list[tuple[str, int]]:
        return [(item.task, item.prompt_idx) for item in suite.select(tasks, limit)]

    assert keys(None, None) == [("code", 0), ("code", 1), ("code", 2), ("chat", 0)]
    assert keys(None, 2) == [("code", 0), ("code", 1), ("chat", 0)]
    assert keys(["chat", "code"], 1) == [("chat", 0), ("code", 0)]


def test_an_unknown_task_suggests_the_nearest(write: Write) -> None:
    suite = load_suite("suite.json", recipe_folder=write(GOOD).parent)
    with pytest.raises(UsageError) as caught:
        suite.select(["cdoe"], None)
    assert str(caught.value) == "prompts.tasks: the suite 'mine' has no task 'cdoe'\nDid you mean 'code'?"
    with pytest.raises(UsageError, match=r"It has: code, chat\."):
        suite.select(["zzz"], None)


@pytest.mark.parametrize("name", ["tiny.json", "tiny"])
def test_a_shipped_suite_is_found_by_name(write: Write, tmp_path: Path, name: str) -> None:
    assert load_suite(name, recipe_folder=tmp_path).name == "tiny"


def test_a_file_beside_the_recipe_wins_over_the_working_directory_and_the_shipped_one(
    write: Write, tmp_path: Path
) -> None:
    (tmp_path / "cwd" / "tiny.json").write_text(json.dumps({**GOOD, "name": "here"}))
    assert load_suite("tiny.json", recipe_folder=tmp_path).name == "here"
    (tmp_path / "tiny.json").write_text(json.dumps({**GOOD, "name": "beside"}))
    assert load_suite("tiny.json", recipe_folder=tmp_path).name == "beside"
    assert load_suite(str(tmp_path / "cwd" / "tiny.json"), recipe_folder=tmp_path).name == "here"


def test_a_missing_suite_suggests_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_suite("tinny.json", recipe_folder=tmp_path)
    assert str(caught.value) == (
        "prompts.suite: there is no prompts file 'tinny.json' beside the recipe, here, or among the shipped ones\n"
        "Did you mean 'tiny.json'?"
    )


def changed(**parts: object) -> dict[str, object]:
    return {**GOOD, **parts}


def with_prompt(prompt: object) -> dict[str, object]:
    return changed(tasks={"code": [GOOD["tasks"]["code"][0], prompt]})


def with_turn(content: object, **further: object) -> dict[str, object]:
    return with_prompt({"messages": [{"role": "user", "content": content, **further}]})


@pytest.mark.parametrize("content", [b"{\n  oops", b'{"a": "\xff"}', b"[" * 100_000])
def test_what_is_no_json_is_said(write: Write, content: bytes) -> None:
    with pytest.raises(UsageError, match="no JSON in UTF-8") as caught:
        load_suite("suite.json", recipe_folder=write(content).parent)
    assert str(caught.value.where).endswith("suite.json")


WRONG: dict[str, tuple[object, str]] = {
    "a list without prompts": ([], "suite.json: this file has no prompts"),
    "a number": (5, "suite.json: expected a mapping, got 5."),
    "newer": (changed(schema=2), "suite.json: schema: expected at most 1, got 2."),
    "no tasks": (
        {key: value for key, value in GOOD.items() if key != "tasks"},
        "suite.json: tasks: this key is missing; expected a mapping of task to its list of prompts.",
    ),
    "unknown key": (changed(license="MIT"), "suite.json: license: unknown key. Did you mean 'licence'?"),
    "unknown kind": (
        changed(kind="caht"),
        "suite.json: kind: expected one of chat, raw; got 'caht'. Did you mean 'chat'?",
    ),
    "empty task": (
        changed(tasks={"code": []}),
        "suite.json: tasks.code: expected at least one prompt, got an empty list.",
    ),
    "task name": (
        changed(tasks={"../code": GOOD["tasks"]["code"]}),
        "suite.json: tasks.../code: expected a name of letters, digits, '_', '.', '+' and '-' that starts with a "
        "letter or digit, got '../code'.",
    ),
    "a sound": (
        with_turn([{"type": "input_audio", "input_audio": {"data": "x"}}]),
        "suite.json: tasks.code[1].messages[0]: a part of `content` is of type 'input_audio': benchctl sends text and "
        "`image_url` alone.",
    ),
    "an image that is no mapping": (
        with_turn([{"type": "image_url", "image_url": "cat.png"}]),
        "suite.json: tasks.code[1].messages[0]: a part of `content` is of type 'image_url': benchctl sends text and "
        "`image_url` alone.",
    ),
    "another content than the one that is shown": (
        with_turn("hello", parts=[{"type": "text", "text": "bye"}]),
        "suite.json: tasks.code[1].messages[0]: write `parts` as `content`: what is shown and what is sent are the "
        "same.",
    ),
    "a tool without a schema": (
        with_prompt(
            {"messages": [{"role": "user", "content": "a"}], "tools": [{"function": {"name": "f", "parameters": "x"}}]}
        ),
        "suite.json: tasks.code[1]: the `parameters` of a tool are no JSON Schema: expected an object.",
    ),
    "unknown key in a prompt": (
        with_prompt({"message": []}),
        "suite.json: tasks.code[1].message: unknown key. Did you mean 'messages'?",
    ),
    "unknown role": (
        with_prompt({"messages": [{"role": "usr", "content": "x"}]}),
        "suite.json: tasks.code[1].messages[0].role: expected one of system, user, assistant, tool; got 'usr'. "
        "Did you mean 'user'?",
    ),
    "a number for text": (
        with_prompt({"messages": [{"role": "user", "content": 5}]}),
        'suite.json: tasks.code[1].messages[0].content: expected text, got 5. Put it in quotes: "5".',
    ),
    "a raw prompt in a chat suite": (
        with_prompt({"prompt": "x"}),
        "suite.json: tasks.code[1]: a prompt of a suite of kind 'chat' has `messages` and no `prompt`.",
    ),
    "both": (
        with_prompt({"prompt": "x", "messages": [{"role": "user", "content": "x"}]}),
        "suite.json: tasks.code[1]: a prompt of a suite of kind 'chat' has `messages` and no `prompt`.",
    ),
    "a choice among no tools": (
        with_prompt({"messages": [{"role": "user", "content": "x"}], "tool_choice": "auto"}),
        "suite.json: tasks.code[1]: `tool_choice` needs `tools` to choose from.",
    ),
    "tools in a raw suite": (
        changed(kind="raw", tasks={"code": [{"prompt": "x", "tools": [{"type": "function"}]}]}),
        "suite.json: tasks.code[0]: `tools` needs `messages`: it belongs to a chat.",
    ),
    "parameters that are no schema": (
        with_prompt(
            {
                "messages": [{"role": "user", "content": "x"}],
                "tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}],
            }
        ),
        "suite.json: tasks.code[1]: the `parameters` of a tool are no JSON Schema: expected an object.",
    ),
    "tools that are none": (
        with_prompt({"messages": [{"role": "user", "content": "x"}], "tools": [5]}),
        "suite.json: tasks.code[1].tools[0]: expected a mapping, got 5.",
    ),
    "a chat in a raw suite": (
        changed(kind="raw", tasks={"code": [{"messages": [{"role": "user", "content": "x"}]}]}),
        "suite.json: tasks.code[0]: a prompt of a suite of kind 'raw' has `prompt` and no `messages`.",
    ),
}


@pytest.mark.parametrize(("value", "message"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_named_with_task_and_prompt(write: Write, value: object, message: str) -> None:
    assert refusal(write(value)) == message


def test_a_long_list_of_errors_is_cut(write: Write) -> None:
    lines = refusal(write(changed(tasks={"code": [{"x": 1}] * 30}))).splitlines()
    assert len(lines) == 11
    assert lines[-1] == "… and 20 more."


@pytest.mark.parametrize("path", sorted(shipped_folder("prompts").glob("*.json")), ids=lambda path: path.stem)
def test_every_shipped_suite_loads_under_its_own_name(path: Path, tmp_path: Path) -> None:
    suite = load_suite(path.name, recipe_folder=tmp_path)
    assert suite.name == path.stem
    assert suite.select(None, None)


def test_a_prompt_s_hash_is_of_what_is_asked_alone() -> None:
    prompt = Prompt(messages=(Message(role="user", content="日本"),))
    canonical = '{"messages":[{"content":"\\u65e5\\u672c","role":"user"}]}'
    assert prompt_sha256(prompt) == hashlib.sha256(canonical.encode()).hexdigest()
    assert prompt_sha256(prompt) == prompt_sha256(prompt.model_copy(update={"reference": "x"}))
    assert prompt_sha256(prompt) != prompt_sha256(Prompt(prompt="日本"))
