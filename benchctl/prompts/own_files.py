"""One's own prompts as they are: text, JSON lines, ShareGPT and OpenAI-style files, none of them made into a suite.

| file | what is a prompt |
| --- | --- |
| `.txt` | a line; or, where lines of `---` separate them, everything between two of those |
| `.jsonl`, `.jsonl.gz` | a row |
| `.json` that is a list | an item |

A row may have `prompt` or `messages` (OpenAI's chat format), `body` with either (a line of an OpenAI batch file), or
`conversations` with turns of `from` and `value` (ShareGPT). Of a conversation everything up to the first answer is
sent; the answer is kept as the reference. Rows may name a `task`; else the file's name is the task.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from benchctl.errors import UsageError
from benchctl.prompts.importers.formats import NO_TASK, Fields, Question, TaskNames, UnexpectedRowError, read_json_line
from benchctl.prompts.importers.rows import read_rows
from benchctl.prompts.suite import Message, Prompt
from benchctl.recipes.problems import Plain, quoted
from benchctl.text import one_line

ENDINGS = (".txt", ".jsonl", ".jsonl.gz", ".json")
SEPARATOR = "---"
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}


def is_own_file(path: Path, data: Plain) -> bool:
    """Whether a file is one's own prompts rather than a suite; `data`: what a `.json` file holds, else None."""
    name = path.name.lower()
    return name.endswith((".txt", ".jsonl", ".jsonl.gz")) or (name.endswith(".json") and isinstance(data, list))


def read_own_file(path: Path) -> dict[str, list[Prompt]]:
    """Return the prompts by task, in the file's order. Raises UsageError that names the line and what was expected."""
    found: dict[str, list[Prompt]] = {}
    names = TaskNames()
    where_file = one_line(path.name)
    for where, question in _questions(path):
        task = names(question.task if question.task != NO_TASK else path.name.split(".")[0] or "prompts")
        content = question.content
        whole = (Message(role="user", content=content),) if isinstance(content, str) else content
        messages = _to_first_answer(whole)
        answered = whole[len(messages)].content if len(whole) > len(messages) else None
        try:
            "".join(message.content for message in messages).encode()
        except UnicodeEncodeError:
            raise UsageError("the text has half of a surrogate pair, which is not a character", where=where) from None
        found.setdefault(task, []).append(Prompt(messages=messages, reference=answered or question.reference))
    if not found:
        raise UsageError("this file has no prompts", where=where_file, fix="Write one prompt a line.")
    return found


def _questions(path: Path) -> Iterator[tuple[str, Question]]:
    name = path.name
    rows = _text_rows(path) if path.name.lower().endswith(".txt") else _json_rows(path)
    for where, row in rows:
        if isinstance(row, str):
            yield where, Question(NO_TASK, row)
            continue
        try:
            yield where, _question(row)
        except UnexpectedRowError as error:
            fix = 'Rows have `prompt`, `messages`, `conversations` or `body`, such as {"prompt": "…"}.'
            raise UsageError(str(error), where=one_line(where or name), fix=fix) from None


def _text_rows(path: Path) -> Iterator[tuple[str, str]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError("this is not UTF-8 text", where=one_line(path.name)) from None
    except OSError as error:
        raise UsageError(f"the file cannot be read: {error.strerror}", where=one_line(path.name)) from None
    lines = text.split("\n")
    if not any(line.strip() == SEPARATOR for line in lines):
        yield from ((f"{path.name}:{number}", line.strip()) for number, line in enumerate(lines, 1) if line.strip())
        return
    start, part = 1, list[str]()
    for number, line in enumerate([*lines, SEPARATOR], 1):
        if line.strip() != SEPARATOR:
            part.append(line)
            continue
        if whole := "\n".join(part).strip():
            yield f"{path.name}:{start}", whole
        start, part = number + 1, []


def _json_rows(path: Path) -> Iterator[tuple[str, Fields]]:
    if not path.name.lower().endswith(".json"):
        yield from read_rows(path, path.name)
        return
    for number, item in enumerate(json.loads(path.read_text(encoding="utf-8-sig"))):
        where = f"{path.name}[{number}]"
        if not isinstance(item, dict):
            raise UsageError(f"expected an object; got {quoted(item)}", where=one_line(where))
        yield where, item


def _question(fields: Fields) -> Question:
    inner = fields.get("body")
    if isinstance(inner, dict):
        fields = {key: value for key, value in inner.items() if key in ("prompt", "messages")}
    if "conversations" in fields:
        fields = {"messages": _from_sharegpt(fields["conversations"]), **_named_task(fields)}
    elif "messages" in fields:
        fields = {"messages": _content_as_text(fields["messages"]), **_named_task(fields)}
    return read_json_line(fields)


def _named_task(fields: Fields) -> Fields:
    return {key: fields[key] for key in ("task", "reference") if key in fields}


def _from_sharegpt(turns: Plain) -> Plain:
    if not isinstance(turns, list) or not turns:
        raise UnexpectedRowError(f"expected `conversations`, a list of turns; got {quoted(turns)}")
    messages = []
    for number, turn in enumerate(turns):
        role = _ROLES.get(str(turn.get("from"))) if isinstance(turn, dict) else None
        if role is None or not isinstance(turn.get("value"), str):
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
        if isinstance(parts, list) and all(isinstance(one, dict) and one.get("type") == "text" for one in parts):
            messages.append({**turn, "content": "\n".join(str(one.get("text", "")) for one in parts)})
        else:
            messages.append(turn)
    return messages


def _to_first_answer(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Leave out the first answer after a user's turn, and all that follows: it is the model's to give."""
    user_spoke = False
    for place, message in enumerate(messages):
        if message.role == "assistant" and user_spoke:
            return messages[:place]
        user_spoke = user_spoke or message.role == "user"
    return messages
