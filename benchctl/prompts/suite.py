"""A prompt suite: a JSON file of tasks, each a list of prompts.

    {"schema": 1, "name": "prompts", "kind": "chat", "licence": "Apache-2.0", "source": "…",
     "tasks": {"code": [{"messages": [{"role": "user", "content": "…"}], "reference": "…"}]}}

`kind` is `chat` (prompts have `messages`; the model's own chat template renders them) or `raw` (prompts have `prompt`,
which the model sees as it is).
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Message(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    role: Literal["system", "user", "assistant", "tool"]
    content: str


class Prompt(BaseModel):
    """One prompt: either `messages` (chat) or `prompt` (raw)."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    messages: tuple[Message, ...] | None = Field(default=None, min_length=1)
    prompt: str | None = Field(default=None, min_length=1)
    reference: str | None = None
    """An expected answer, for reading; benchctl never scores with it."""


class PromptItem(BaseModel):
    """A prompt with its identity in the run: `task` and `prompt_idx` are the record's keys."""

    model_config = ConfigDict(frozen=True)

    task: str
    prompt_idx: int
    prompt: Prompt
