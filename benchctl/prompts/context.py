"""Prompts of a given length: natural text before the question is added or cut, the question itself never.

The question is the last paragraph of the last user message (of a raw prompt, of all of it). Padding is the beginning of
a text that nothing repeats, set before that message; what is cut are the oldest turns first, then the words before the
question.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable
from functools import cache
from pathlib import Path

from benchctl.errors import UsageError
from benchctl.paths import shipped_folder
from benchctl.prompts.suite import Message, Prompt
from benchctl.text import one_line

SHIPPED = "context.txt"
MAX_BYTES = 64 << 20
Count = Callable[[Prompt], int]
"""Tokens of a prompt as the model gets it, its template included."""
_WORD = re.compile(r"\S+\s*")


class ContextError(Exception):
    """Why a prompt cannot have the requested length: a sentence for people."""


@cache
def load_context(name: str | None, *, recipe_folder: Path) -> str:
    """Return the text that pads prompts; `None`: the text that benchctl ships. Raises UsageError."""
    path = shipped_folder("prompts") / SHIPPED if name is None else recipe_folder / Path(name).expanduser()
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageError("this text is larger than 64 MiB.", where="prompts.context")
        text = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"the text {one_line(str(path))} cannot be read: {reason}.", where="prompts.context") from None
    if not text:
        raise UsageError(f"the text {one_line(str(path))} is empty.", where="prompts.context")
    return text


def with_length(prompt: Prompt, length: int, text: str, count: Count) -> Prompt:
    """Return `prompt` with at most `length` tokens, as near as a word of `text` allows. Raises ContextError."""
    if count(prompt) <= length:
        return _padded(prompt, length, text, count)
    while len(shorter := _without_oldest_turn(prompt).messages or ()) < len(prompt.messages or ()):
        prompt = prompt.model_copy(update={"messages": shorter})
        if count(prompt) <= length:
            return _padded(prompt, length, text, count)
    before, question = _split(_last_text(prompt))
    words = _WORD.findall(before)
    words_used = _most(len(words), lambda size: count(_with_last(prompt, _tail(words, size) + question)) <= length)
    if words_used < 0:
        raise ContextError(f"its question alone has more than {length} tokens")
    return _with_last(prompt, _tail(words, words_used) + question)


def _padded(prompt: Prompt, length: int, text: str, count: Count) -> Prompt:
    """Return the prompt with as much of the text before its last user message as fits."""
    words, question = _WORD.findall(text), _last_text(prompt)

    def made(size: int) -> Prompt:
        padding = "".join(words[:size]).rstrip()
        return _with_last(prompt, f"{padding}\n\n{question}") if padding else prompt

    size = max(0, _most(min(len(words), 2 * length), lambda size: count(made(size)) <= length))
    if size == len(words) and count(made(size)) < length - length // 50:
        raise ContextError(
            f"the text that pads it (prompts.context) is too short for {length} tokens; name a longer text"
        )
    return made(size)


def _most(highest: int, fits: Callable[[int], bool]) -> int:
    """Return the largest size up to `highest` that fits; -1 where not even 0 does."""
    return bisect_left(range(highest + 1), True, key=lambda size: not fits(size)) - 1


def _tail(words: list[str], size: int) -> str:
    return "".join(words[len(words) - size :])


def _split(text: str) -> tuple[str, str]:
    """Return what stands before the last paragraph, and that paragraph."""
    end = len(text.rstrip())
    index = text.rfind("\n\n", 0, end)
    return (text[: index + 2], text[index + 2 :]) if index >= 0 else ("", text)


def _last_user(prompt: Prompt) -> int:
    messages = prompt.messages or ()
    users = [number for number, message in enumerate(messages) if message.role == "user"]
    return users[-1] if users else len(messages) - 1


def _last_text(prompt: Prompt) -> str:
    return prompt.prompt or "" if prompt.messages is None else prompt.messages[_last_user(prompt)].text


def _with_last(prompt: Prompt, text: str) -> Prompt:
    if prompt.messages is None:
        return prompt.model_copy(update={"prompt": text})
    index = _last_user(prompt)
    if prompt.images:
        raise UsageError("A prompt with images is neither padded nor cut.", where="context_length")
    changed = Message(role=prompt.messages[index].role, content=text)
    return prompt.model_copy(update={"messages": (*prompt.messages[:index], changed, *prompt.messages[index + 1 :])})


def _without_oldest_turn(prompt: Prompt) -> Prompt:
    """Return the prompt without its first turn before the question: a user's message and its answer."""
    messages, last = prompt.messages or (), _last_user(prompt)
    turns = [number for number in range(last) if messages[number].role != "system"]
    if not turns:
        return prompt
    end = next((number for number in turns[1:] if messages[number].role == "user"), last)
    return prompt.model_copy(update={"messages": (*messages[: turns[0]], *messages[end:])})
