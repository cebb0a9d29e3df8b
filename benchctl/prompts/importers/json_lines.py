"""Plain JSON lines: `{"prompt": …}` or `{"messages": […]}`, with `task` and `reference` where one likes."""

from __future__ import annotations

from pydantic import ValidationError

from benchctl.prompts.importers.format import Fields, Format, Question, UnexpectedRowError, first_reference, text_of
from benchctl.prompts.suite import Message
from benchctl.recipes.problems import Plain, quoted

NO_TASK = "prompts"
"""The task of a row that names none."""


def _read(fields: Fields) -> Question:
    task = text_of(fields, "task") if fields.get("task") is not None else NO_TASK
    reference = first_reference(fields.get("reference"))
    if ("prompt" in fields) == ("messages" in fields):
        got = "both" if "prompt" in fields else "neither"
        raise UnexpectedRowError(f"expected either `prompt` or `messages`; got {got}")
    if "prompt" in fields:
        return Question(task, text_of(fields, "prompt"), reference)
    messages = _messages(fields["messages"])
    if messages[-1].role == "assistant":  # an answered conversation: the answer is not part of what is asked
        reference = reference or messages[-1].content
        messages = messages[:-1]
    if not any(message.role == "user" for message in messages):
        raise UnexpectedRowError("expected `messages` with a user's turn that is to be answered; got none")
    return Question(task, messages, reference)


def _messages(value: Plain) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        got = "an empty list" if value == [] else quoted(value)
        raise UnexpectedRowError(f"expected `messages`, a list of turns; got {got}")
    try:
        return tuple(Message.model_validate(turn) for turn in value)
    except ValidationError:
        raise UnexpectedRowError(
            "expected every turn of `messages` to have a `role` (system, user, assistant or tool), "
            "a text as `content`, and nothing else"
        ) from None


FORMAT = Format(
    name="jsonl",
    title="JSON lines",
    home=None,
    licence=None,
    kind=None,
    example='{"prompt": "…"} or {"messages": [{"role": "user", "content": "…"}]}',
    read=_read,
)
