"""A prompt suite: a JSON file of tasks, each a list of prompts.

    {"schema": 1, "name": "prompts", "kind": "chat", "licence": "Apache-2.0", "source": "…",
     "tasks": {"code": [{"messages": [{"role": "user", "content": "…"}], "reference": "…"}]}}

`kind` is `chat` (prompts have `messages`; the model's own chat template renders them) or `raw` (prompts have `prompt`,
which the model sees as it is).
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from benchctl.prompts.answers import Answer
from benchctl.recipes.problems import value_at

IMAGES = "image_url"
"""What an engine that is sent images has among its `Capabilities.request_fields`."""
REQUEST_FIELDS = ("tools", "tool_choice", "response_format", "chat_template_kwargs")
"""Keys of a prompt beside its messages that an engine is sent, by the names of OpenAI's chat API and its servers."""


class Message(BaseModel):
    """A turn of a conversation."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    """Absent only where the model called tools and said nothing; it is then sent as `null`, which templates ask for."""
    tool_calls: tuple[dict[str, Any], ...] | None = Field(default=None, min_length=1)
    """The tools that an assistant's turn called, as OpenAI's chat API has them."""
    tool_call_id: str | None = None
    """Of a tool's turn: the call that it answers."""
    name: str | None = None
    reasoning_content: str | None = None
    parts: tuple[dict[str, Any], ...] | None = None
    """Of a turn with images its parts as OpenAI's chat API has them, which are sent in place of `content`: their texts.
    """

    @property
    def text(self) -> str:
        """What people read of the turn: its content, and its calls of tools as JSON."""
        calls = json.dumps(self.tool_calls, ensure_ascii=False) if self.tool_calls else ""
        return "\n".join(filter(None, (self.content, calls)))

    @model_validator(mode="before")
    @classmethod
    def _of_parts(cls, turn: Any) -> Any:  # noqa: ANN401 - whatever a file has
        """Read a suite's turn whose content is a list of parts."""
        if isinstance(turn, dict) and isinstance(turn.get("tool_calls"), list):
            turn = {**turn, "tool_calls": tuple(turn["tool_calls"])}  # what is handed on counts as Python's, not JSON's
        parts = value_at(turn, ("content",))
        if not isinstance(parts, (list, tuple)) or not all(isinstance(part, dict) for part in parts):
            return turn
        text = "\n".join(str(part["text"]) for part in parts if "text" in part)
        return {**turn, "content": text, "parts": tuple(parts)}

    @property
    def images(self) -> tuple[str, ...]:
        """The addresses of its images."""
        found = (value_at(part, (IMAGES, "url")) for part in self.parts or ())
        return tuple(str(address) for address in found if address is not None)

    @model_validator(mode="after")
    def _says_something(self) -> Message:
        if self.content is None and not self.tool_calls:
            raise ValueError("expected `content` to be text; only a turn with `tool_calls` can do without")
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"`tool_calls` belong to a turn of the assistant; this is one of the {self.role}")
        return self

    @model_serializer(mode="wrap")
    def _as_sent(self, as_dict: SerializerFunctionWrapHandler) -> dict[str, Any]:
        sent = {key: value for key, value in as_dict(self).items() if value is not None or key == "content"}
        parts = sent.pop("parts", None)
        return sent if parts is None or "content" not in sent else sent | {"content": list(parts)}


class Prompt(BaseModel):
    """A prompt: either `messages` (chat) or `prompt` (raw)."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    messages: tuple[Message, ...] | None = Field(default=None, min_length=1)
    prompt: str | None = Field(default=None, min_length=1)
    tools: tuple[dict[str, Any], ...] | None = Field(default=None, min_length=1)
    """Functions that the model may call, as OpenAI's chat API describes them."""
    tool_choice: Literal["auto", "none", "required"] | dict[str, Any] | None = None
    """Whether it may or must call any; a mapping names which it must."""
    response_format: dict[str, Any] | None = None
    """`{"type": "json_object"}`, or `{"type": "json_schema", "json_schema": {"schema": …}}`."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables of the chat template, such as `enable_thinking`."""
    reference: str | None = None
    """An expected answer, for reading; benchctl never scores with it."""
    answer: Answer | None = None
    """The right answer: what the model's is judged by. It is not sent."""

    @property
    def calls(self) -> tuple[dict[str, Any], ...]:
        """The calls of tools in its earlier turns."""
        return tuple(call for message in self.messages or () for call in message.tool_calls or ())

    @property
    def images(self) -> tuple[str, ...]:
        """The addresses of the images in its turns."""
        return tuple(address for message in self.messages or () for address in message.images)

    @property
    def request(self) -> dict[str, Any]:
        """What an engine is sent beside the messages, by `REQUEST_FIELDS`."""
        return self.model_dump(mode="json", include=set(REQUEST_FIELDS), exclude_none=True)

    @property
    def problem(self) -> str | None:
        """What in those cannot be sent to any engine, as a sentence; `None` where nothing."""
        try:
            json.dumps([self.calls, *(getattr(self, name) for name in REQUEST_FIELDS)], allow_nan=False)
            request = self.request
        except (TypeError, ValueError, RecursionError):
            return "its request cannot be sent as JSON: it is nested too deeply, or has a value such as NaN."
        if request and self.messages is None:
            return f"`{next(iter(request))}` needs `messages`: it belongs to a chat."
        if self.tool_choice is not None and self.tools is None:
            return "`tool_choice` needs `tools` to choose from."
        form = self.response_format
        by_schema = value_at(form, ("type",)) == "json_schema"
        if by_schema and isinstance(value_at(form, ("json_schema", "schema")), dict):
            return None
        if form in (None, {"type": "json_object"}):
            return None
        return (
            'expected `response_format` to be {"type": "json_object"} or '
            '{"type": "json_schema", "json_schema": {"name": …, "schema": {…}}}.'
        )

    def constraint(self, sent_fields: frozenset[str]) -> str | None:
        """Return the key that may keep the model from its likeliest tokens, or that no scorer reads; else `None`.

        `sent_fields`: of `REQUEST_FIELDS`, what the engine takes. With `tool_choice` it sees to calls of tools itself.
        """
        if self.images:
            return IMAGES
        if self.response_format is not None:
            return "response_format"
        calls = self.tools is not None and self.tool_choice != "none" and "tool_choice" in sent_fields
        return "tools" if calls else None


class PromptItem(BaseModel):
    """A prompt with its identity in the run: `task` and `prompt_idx` are the record's keys."""

    model_config = ConfigDict(frozen=True)

    task: str
    prompt_idx: int
    prompt: Prompt
    where: str = ""
    """Its file and line, or its place in a suite, for messages."""
    constrained: str | None = None
    """The key of its request that constrains the answers, so that they need not be the target's likeliest tokens."""
