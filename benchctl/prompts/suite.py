"""A prompt suite: a JSON file of tasks, each a list of prompts.

    {"schema": 1, "name": "prompts", "kind": "chat", "licence": "Apache-2.0", "source": "…",
     "tasks": {"code": [{"messages": [{"role": "user", "content": "…"}], "reference": "…"}]}}

`kind` is `chat` (prompts have `messages`; the model's own chat template renders them) or `raw` (prompts have `prompt`,
which the model sees as it is).
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from benchctl.prompts.answers import Answer, check_expression
from benchctl.prompts.rules import Rules
from benchctl.recipes.problems import quoted, value_at
from benchctl.recipes.schema import CONSTRAINTS, LogitBias, Penalty

IMAGES = "image_url"
"""What an engine that is sent images has among its `Capabilities.request_fields`."""
REQUEST_FIELDS = ("tools", "tool_choice", "response_format", "chat_template_kwargs")
"""Keys of a prompt beside its messages that an engine is sent, by the names of OpenAI's chat API and its servers."""
SAMPLING_FIELDS = ("seed", *CONSTRAINTS)
"""Keys of a prompt that take the place of those of the recipe's `sampling`."""
ANSWER_FIELDS = ("stop", "regex", "choice", "logprobs")
"""Further keys of a prompt: where its answer ends, what it must be, what is listed beside it."""
SENT_FIELDS = (*REQUEST_FIELDS, *SAMPLING_FIELDS, *ANSWER_FIELDS)
_FORCES = ("response_format", "grammar", "regex", "choice")
"""Keys that say what an answer must be."""


def _is_sent(part: dict[str, Any]) -> bool:
    """Whether a part of a turn is a text, or an image by its address."""
    if part.get("type") == "text":
        return isinstance(part.get("text"), str) and IMAGES not in part
    return part.get("type") == IMAGES and isinstance(value_at(part, (IMAGES, "url")), str) and "text" not in part


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
        if isinstance(turn, dict) and "parts" in turn:
            raise ValueError("write `parts` as `content`: what is shown and what is sent are the same")
        if isinstance(turn, dict) and isinstance(turn.get("tool_calls"), list):
            turn = {**turn, "tool_calls": tuple(turn["tool_calls"])}  # what is handed on counts as Python's, not JSON's
        parts = value_at(turn, ("content",))
        if not isinstance(parts, (list, tuple)) or not all(isinstance(part, dict) for part in parts):
            return turn
        for part in parts:
            if not _is_sent(part):
                kind = quoted(part.get("type"))
                raise ValueError(f"a part of `content` is of type {kind}: benchctl sends text and `{IMAGES}` alone")
        text = "\n".join(part["text"] for part in parts if "text" in part)
        return {**turn, "content": text, "parts": tuple(parts) if any(IMAGES in part for part in parts) else None}

    @property
    def images(self) -> tuple[str, ...]:
        """The addresses of its images."""
        addresses = (value_at(part, (IMAGES, "url")) for part in self.parts or ())
        return tuple(str(address) for address in addresses if address is not None)

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
    stop: tuple[Annotated[str, Field(min_length=1)], ...] | None = Field(default=None, min_length=1, max_length=16)
    """Texts at which the answer ends, before them."""
    regex: str | None = Field(default=None, min_length=1)
    """What the answer must match as a whole. Beside a `grammar` it says the same to benchctl and to other engines."""
    choice: tuple[Annotated[str, Field(min_length=1)], ...] | None = Field(default=None, min_length=1)
    """The answer is one of these."""
    logprobs: Literal[True] | None = None
    """Whether the log probability of every token is asked for."""
    seed: int | None = Field(default=None, ge=0, le=2**31 - 1)
    repeat_penalty: float | None = Field(default=None, gt=0, le=10)
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    grammar: str | None = Field(default=None, min_length=1)
    """What the answer must be, in GBNF."""
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
    def forces_call(self) -> bool:
        """Whether the answer must be a call of a tool."""
        return self.tool_choice not in (None, "auto", "none")

    @property
    def sampling(self) -> dict[str, Any]:
        """What it sets in place of the recipe's sampling."""
        return {key: value for key in SAMPLING_FIELDS if (value := getattr(self, key)) is not None}

    @property
    def call_schema(self) -> dict[str, Any] | None:
        """JSON Schema of a call that `tool_choice` forces: an object of `name` and `arguments`; `None` without it."""
        return _call_schema(self._callable) if self.forces_call and self._callable else None

    @property
    def _callable(self) -> dict[str, dict[str, Any]]:
        """The schemas of the arguments of the tools that may be called, by name."""
        named = value_at(self.tool_choice, ("function", "name"))
        functions = [value_at(tool, ("function",)) for tool in self.tools or ()]
        schemas = {
            str(function.get("name")): function.get("parameters") or {"type": "object"}
            for function in functions
            if isinstance(function, dict)
        }
        return {name: schema for name, schema in schemas.items() if named in (None, name)}

    @property
    def rules(self) -> Rules | None:
        """What its answer must keep; `None` where that is nothing."""
        form = self.response_format
        schema = None if form is None else value_at(form, ("json_schema", "schema")) or {"type": "object"}
        rules = Rules(
            answer_schema=schema,
            regex=self.regex,
            choice=self.choice,
            grammar=self.grammar is not None,
            stop=self.stop or (),
            tools={} if self.tool_choice == "none" else self._callable,
            forced=self.forces_call,
            logprobs=bool(self.logprobs),
        )
        return None if rules == Rules() else rules

    @property
    def sent(self) -> dict[str, Any]:
        """All that an engine is sent of it beside its text, by `SENT_FIELDS`."""
        return self.model_dump(mode="json", include=set(SENT_FIELDS), exclude_none=True)

    @property
    def problem(self) -> str | None:
        """What in those cannot be sent to any engine, as a sentence; `None` where nothing."""
        try:
            json.dumps([self.calls, *(getattr(self, name) for name in SENT_FIELDS)], allow_nan=False)
            request = self.request
        except (TypeError, ValueError, RecursionError):
            return "its request cannot be sent as JSON: it is nested too deeply, or has a value such as NaN."
        if request and self.messages is None:
            return f"`{next(iter(request))}` needs `messages`: it belongs to a chat."
        if self.tool_choice is not None and self.tools is None:
            return "`tool_choice` needs `tools` to choose from."
        schemas = self._callable.values()
        if not all(isinstance(part, dict) for part in schemas):
            return "the `parameters` of a tool are no JSON Schema: expected an object."
        if self.forces_call and not self._callable:
            return "`tool_choice` names a function that is not among `tools`."
        if self.regex is not None:
            try:
                check_expression(self.regex)
            except ValueError as error:
                return f"`regex`: {error}."
        forcing = [key for key in _FORCES if getattr(self, key) is not None]
        forcing += ["tool_choice"] if self.forces_call else []
        if len(forcing) > 1 and forcing != ["grammar", "regex"]:
            return f"`{forcing[0]}` and `{forcing[1]}` both say what the answer must be: leave one of them out."
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

        `sent_fields`: what the engine takes. With `tool_choice` it sees to calls of tools itself.
        """
        if self.images:
            return IMAGES
        key = next((key for key in (*_FORCES, *CONSTRAINTS) if getattr(self, key)), None)
        free = self.tools is not None and self.tool_choice != "none" and "tool_choice" in sent_fields
        return key or ("tools" if free or self.forces_call else None)


def _call_schema(tools: dict[str, dict[str, Any]]) -> dict[str, Any]:
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": {"$ref": f"#/$defs/tool{number}"}},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for number, name in enumerate(tools)
    ]
    schemas = {f"tool{number}": _moved(schema, f"#/$defs/tool{number}") for number, schema in enumerate(tools.values())}
    return (calls[0] if len(calls) == 1 else {"anyOf": calls}) | {"$defs": schemas}


def _moved(part: Any, root: str) -> Any:  # noqa: ANN401 - JSON
    """Return a part of a schema that now begins at `root`, so that its references do: tools may use equal names."""
    if isinstance(part, list):
        return [_moved(item, root) for item in part]
    if not isinstance(part, dict):
        return part
    return {
        key: root + value[1:] if key == "$ref" and str(value).startswith("#") else _moved(value, root)
        for key, value in part.items()
    }


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
