"""Prompts of a given length: the question stays, the text before it is padded with what nothing repeats, or cut."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from benchctl.errors import UsageError
from benchctl.prompts.context import ContextError, load_context, with_length
from benchctl.prompts.suite import Message, Prompt

TEXT = " ".join(f"word{number}" for number in range(400))


def count(prompt: Prompt) -> int:
    """Words, and three for the template of every message."""
    messages = prompt.messages or ()
    return len((prompt.prompt or "").split()) + sum(3 + len(message.text.split()) for message in messages)


def chat(*contents: str) -> Prompt:
    roles: tuple[Literal["user", "assistant"], ...] = ("user", "assistant")
    return Prompt(messages=tuple(Message(role=roles[n % 2], content=text) for n, text in enumerate(contents)))


@pytest.mark.parametrize("length", [20, 100, 399])
def test_a_short_prompt_is_padded_to_the_word_and_ends_as_it_did(length: int) -> None:
    for prompt in (chat("What is it?"), Prompt(prompt="What is it?")):
        prompt_sent = with_length(prompt, length, TEXT, count)
        assert count(prompt_sent) == length
        text = prompt_sent.messages[-1].text if prompt_sent.messages else prompt_sent.prompt or ""
        padding, _, question = text.rpartition("\n\n")
        assert question == "What is it?"
        assert TEXT.startswith(padding)


def test_a_long_prompt_loses_its_beginning_and_never_its_question() -> None:
    prompt_sent = with_length(chat(f"{TEXT}\n\nWhat is it?"), 50, "unused", count)
    assert count(prompt_sent) == 50
    assert prompt_sent.messages is not None
    assert prompt_sent.messages[-1].text.endswith("word399\n\nWhat is it?")


def test_the_oldest_turns_go_first_and_the_room_is_filled() -> None:
    prompt = chat(TEXT, TEXT, "One more.", "Yes.", "What is it?")
    prompt_sent = with_length(prompt, 40, TEXT, count)
    assert prompt_sent.messages is not None
    assert [message.content for message in prompt_sent.messages[:2]] == ["One more.", "Yes."]
    assert prompt_sent.messages[-1].text.endswith("What is it?")
    assert count(prompt_sent) == 40


def test_what_cannot_be_done_is_said() -> None:
    with pytest.raises(ContextError, match="more than 10 tokens"):
        with_length(chat("why " * 20), 10, TEXT, count)
    with pytest.raises(ContextError, match="too short for 4000 tokens"):
        with_length(chat("Why?"), 4000, TEXT, count)


def test_the_shipped_text_is_long_enough_and_repeats_no_paragraph() -> None:
    text = load_context(None, recipe_folder=Path())
    paragraphs = text.split("\n\n")
    assert len(text.split()) > 20_000
    assert len(set(paragraphs)) == len(paragraphs)


def test_a_text_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        load_context("missing.txt", recipe_folder=tmp_path)
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(UsageError, match="is empty"):
        load_context("empty.txt", recipe_folder=tmp_path)
