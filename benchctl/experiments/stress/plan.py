"""The requests of a stress test, and what a scenario makes them with.

Requests with the same `unit` are the same request. They are sent in different states of the server, and in none of them
may the answer differ from the first. Of a conversation the history is what the server itself answered before, so a
request names answers by the ids of their requests.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from pydantic import Field

from benchctl.data.versions import Part
from benchctl.engines.in_use import Pressure
from benchctl.prompts.suite import Message, Prompt

Usual = Literal["canary", "cache", "crowd", "sessions", "constraint"]
ScenarioName = Usual | Literal["cancel", "long", "completions"] | Pressure
USUAL: tuple[Usual, ...] = get_args(Usual)
"""Those of a test that names none."""
PRESSURE: tuple[ScenarioName, ...] = ("completions", *get_args(Pressure))
SCENARIOS: tuple[ScenarioName, ...] = (*USUAL, "cancel", "long", *PRESSURE)
PASSAGE = 1200
"""Characters of a passage that is longer than two blocks of a cache."""
CUT = 6
"""Tokens of an answer that is cut: a lookup copies more than that, and what it copies past the cut is rejected."""
COPIED = 300
"""Characters of the prompt of such an answer: llama.cpp's lookups draft nothing before 61 tokens."""
CLIENTS = 4
"""Requests in flight in a crowd; llama-server has so many slots by default."""
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 2, "maxItems": 4},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


class Turn(Part):
    """A message: its text, or the answer to an earlier request of the plan."""

    role: Literal["system", "user", "assistant", "tool"] = "user"
    text: str = ""
    answer_of: str | None = None
    further: dict[str, Any] = Field(default_factory=dict)
    """What else the message has, such as its calls of tools."""


class Stop(Part):
    """A stop string: so many characters of an earlier answer, from a share of its length on."""

    answer_of: str
    start: float
    length: int


class Request(Part):
    """A request of the plan."""

    id: str
    unit: str | None = None
    """`None` for a request that only loads the server: its error counts, and whether it is valid."""
    turns: tuple[Turn, ...]
    tokens: int
    """The longest answer."""
    drop: int = 0
    """Tokens that are left off the end of the prompt."""
    half_answer_of: str | None = None
    """An earlier answer, the first half of whose tokens is added to the prompt."""
    cached: bool = True
    """Whether the engine may use its prompt cache; its own default is to use it."""
    slot: int | None = None
    """The slot that answers, where the engine takes that."""
    by_schema: bool = False
    """Whether the answer must follow `SCHEMA`."""
    stop: Stop | None = None
    cancel_after: int | None = None
    """The connection is closed after so many tokens of the answer; 0: while the prompt is read."""
    listed: bool = False
    """Whether the answer must list the log probabilities of its tokens."""
    completions: int = 1
    """How many answers are asked for; the last one counts."""
    to_the_limit: bool = False
    """Whether the answer goes on past its end, up to `tokens`."""
    saves: bool = False
    """Whether the state of `slot` is then saved to a file."""
    restores: str | None = None
    """The request whose saved state is restored to `slot` before."""


class Wave(Part):
    """Requests that are sent in their order, at most `clients` in flight at a time."""

    requests: tuple[Request, ...]
    clients: int = 1


class ProcessPlan(Part):
    """What a fresh process of the engine is sent."""

    scenario: ScenarioName
    name: str
    waves: tuple[Wave, ...]
    cells: int | None = None
    """The tokens that the engine's cache holds; `None`: as many as it has without pressure."""

    @property
    def requests(self) -> Iterator[Request]:
        """All requests, in their order."""
        return (request for wave in self.waves for request in wave.requests)


class Plan(Part):
    """All requests of a stress test."""

    seed: int
    size: float
    """Share of the full plan."""
    processes: tuple[ProcessPlan, ...]

    def of(self, scenario: str) -> list[Request]:
        """Return the requests of a scenario in their order."""
        return [request for process in self.processes if process.scenario == scenario for request in process.requests]


@dataclass(frozen=True)
class Material:
    """The texts that requests are made of."""

    prompts: tuple[tuple[Turn, ...], ...]
    """Prompts whose answers are compared."""
    load: tuple[str, ...]
    """Other prompts."""
    passage: str
    """A long text."""
    context: int | None = None
    """Tokens of the longest prompt and its answer; `None`: not known."""
    token_chars: float = 1.0
    """Characters of the passage that a token has, at least."""


def turns_of(prompt: Prompt) -> tuple[Turn, ...]:
    """Return a prompt's messages; a raw prompt is a single one."""
    if prompt.messages is None:
        return (Turn(text=prompt.prompt or ""),)
    return tuple(
        Turn(role=turn.role, text=turn.content or "", further=turn.model_dump(exclude={"role", "content"}))
        for turn in prompt.messages
    )


def prompt_of(turns: Sequence[Turn], answers: dict[str, str], *, raw: bool) -> Prompt:
    """Return the prompt of a request. `answers`: the texts of earlier answers by request. Raises KeyError."""
    texts = [turn.text if turn.answer_of is None else answers[turn.answer_of] for turn in turns]
    if raw:
        return Prompt(prompt="\n".join(texts) or " ")
    messages = [
        {"role": turn.role, "content": text or (None if turn.further.get("tool_calls") else ""), **turn.further}
        for turn, text in zip(turns, texts, strict=True)
    ]
    return Prompt(messages=tuple(Message.model_validate(message, strict=False) for message in messages))


class Planner:
    """What the scenarios make their requests with."""

    def __init__(self, seed: int, size: float, material: Material) -> None:
        rng = random.Random(f"{seed}")  # noqa: S311 - a plan, no secret
        prompts, load = (
            rng.sample(material.prompts, len(material.prompts)),
            rng.sample(material.load, len(material.load)),
        )
        self._material = replace(material, prompts=tuple(prompts), load=tuple(load))
        self._seed, self._size = seed, size
        self._count = 0

    def _scaled(self, full: int, fewest: int) -> int:
        return max(fewest, round(full * self._size))

    def _request(
        self,
        scenario: str,
        turns: Iterable[Turn],
        tokens: int,
        unit: str | None = None,
        **more: Any,  # noqa: ANN401
    ) -> Request:
        self._count += 1
        unit = None if unit is None else f"{scenario}: {unit}"
        return Request(id=f"{scenario}-{self._count}", unit=unit, turns=tuple(turns), tokens=tokens, **more)

    def _prompt(self, index: int) -> tuple[Turn, ...]:
        return self._material.prompts[index % len(self._material.prompts)]

    def _opening(self, index: int, rest: int) -> tuple[Turn, ...]:
        """Return a prompt, every other one with a passage: vLLM on a CPU caches blocks of 128 tokens.

        `rest`: tokens of the context that it must leave.
        """
        context = self._material.context
        room = PASSAGE if context is None else min(PASSAGE, int(self._material.token_chars * (context - rest)))
        return self._prompt(index) if index % 2 or room < PASSAGE / 4 else (self._part(index, room),)

    def _asked_again(self, cut: Request) -> tuple[Turn, ...]:
        """Return a conversation that asks once more what got an answer of `CUT` tokens.

        n-grams draft where an answer repeats what was said, which short answers seldom do: they repeat the cut answer.
        """
        return (*cut.turns, Turn(role="assistant", answer_of=cut.id), Turn(text=cut.turns[-1].text))

    def _branch(self, prompt: tuple[Turn, ...], index: int) -> tuple[Turn, ...]:
        """Return a prompt that begins as another one does."""
        *head, last = prompt
        return (*head, Turn(text=f"{last.text[: len(last.text) // 2]} {self._load(index).text[:40]}"))

    def _load(self, index: int) -> Turn:
        return Turn(text=self._material.load[index % len(self._material.load)])

    def _part(self, index: int, length: int) -> Turn:
        text = self._material.passage
        start = (index * 997) % max(1, len(text) - length)
        return Turn(text=text[start : start + length] + "\nSummarise this.")

    @property
    def _smallest(self) -> bool:
        """Whether the pair is so slow that a scenario gets no more than what shows its cause."""
        return self._size < 0.1

    @property
    def _tokens(self) -> int:
        return 32 if self._size > 0.5 else 24 if self._size > 0.15 else 16
