"""The requests of a stress test, by scenario: a pure function of a seed, a size and the prompts.

Requests with the same `unit` are the same request. They are sent in different states of the server, and in none of them
may the answer differ from the first. Of a conversation the history is what the server itself answered before, so a
request names answers by the ids of their requests.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import Field

from benchctl.data.versions import Part
from benchctl.prompts.suite import Message, Prompt

ScenarioName = Literal["canary", "cache", "crowd", "sessions", "constraint", "cancel"]
SCENARIOS: tuple[ScenarioName, ...] = get_args(ScenarioName)
USUAL = SCENARIOS[:5]
"""Those of a test that names none."""
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
    """`None` for a request that only loads the server; its answer is compared with the control's alone."""
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


class Wave(Part):
    """Requests that are sent in their order, at most `clients` in flight at a time."""

    requests: tuple[Request, ...]
    clients: int = 1


class ProcessPlan(Part):
    """What a fresh process of the engine is sent."""

    scenario: ScenarioName
    name: str
    waves: tuple[Wave, ...]

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


def make_plan(scenarios: Sequence[ScenarioName], seed: int, size: float, material: Material) -> Plan:
    """Return the plan. `size`: 1 for the full plan, less for a slow pair."""
    planner = _Planner(seed, size, material)
    makers = {"canary": planner.canary, "cache": planner.cache, "crowd": planner.crowd}
    makers |= {"sessions": planner.sessions, "constraint": planner.constraint, "cancel": planner.cancel}
    return Plan(seed=seed, size=size, processes=tuple(one for name in scenarios for one in makers[name]()))


class _Planner:
    def __init__(self, seed: int, size: float, material: Material) -> None:
        rng = random.Random(f"{seed}")  # noqa: S311 - a plan, no secret
        prompts, load = (
            rng.sample(material.prompts, len(material.prompts)),
            rng.sample(material.load, len(material.load)),
        )
        self._material = Material(tuple(prompts), tuple(load), material.passage)
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

    def _load(self, index: int) -> Turn:
        return Turn(text=self._material.load[index % len(self._material.load)])

    def _part(self, index: int, length: int) -> Turn:
        text = self._material.passage
        start = (index * 997) % max(1, len(text) - length)
        return Turn(text=text[start : start + length] + "\nSummarise this.")

    @property
    def _tokens(self) -> int:
        return 32 if self._size > 0.5 else 24

    def canary(self) -> Iterator[ProcessPlan]:
        """Yield the same prompts before and after others, in one process."""
        prompts, tokens = range(self._scaled(24, 5)), self._tokens

        def ask_all() -> Wave:
            return Wave(
                requests=tuple(self._request("canary", self._prompt(i), tokens, f"prompt {i}") for i in prompts)
            )

        def load(first: int, count: int) -> Wave:
            others = (self._request("canary", [self._load(first + i)], 16) for i in range(count))
            return Wave(requests=tuple(others))

        waves = (ask_all(), load(0, 2 * len(prompts)), ask_all())
        yield ProcessPlan(scenario="canary", name="canary", waves=waves)

    def cache(self) -> Iterator[ProcessPlan]:
        """Yield prompts that share a beginning with what the cache holds, and the same without a cache."""
        requests, clean = [], []
        for i in range(self._scaled(6, 2)):
            prompt, tokens = self._prompt(i), self._tokens
            *head, last = prompt
            branch = (*head, Turn(text=f"{last.text[: len(last.text) // 2]} {self._load(i).text[:40]}"))

            def ask(unit: str, turns: Iterable[Turn], tokens: int = tokens, i: int = i, **more: Any) -> Request:  # noqa: ANN401
                return self._request("cache", turns, tokens, f"{unit} {i}", **more)

            first = ask("prompt", prompt)
            answered = Turn(role="assistant", answer_of=first.id)
            longer = (*prompt, answered, self._load(i + 1))
            variants: list[tuple[str, tuple[Turn, ...], dict[str, Any]]] = [
                ("branch", branch, {}),
                ("prompt", prompt, {}),
                ("shorter", prompt, {"drop": 7}),
                ("longer", longer, {}),
                ("other", (self._load(i + 2),), {}),
                ("prompt", prompt, {}),
                ("within", prompt, {"half_answer_of": first.id}),
                ("prompt", prompt, {}),
            ]
            requests += [first, ask("prompt", prompt), *(ask(unit, turns, **more) for unit, turns, more in variants)]
            clean += [ask(unit, turns, cached=False, **more) for unit, turns, more in variants if unit != "prompt"]
        yield ProcessPlan(scenario="cache", name="cache", waves=(Wave(requests=tuple(requests)),))
        yield ProcessPlan(scenario="cache", name="clean", waves=(Wave(requests=tuple(clean)),))

    def crowd(self) -> Iterator[ProcessPlan]:
        """Yield fresh processes: slots first used in random order, prompts alone, then several at a time.

        Batches of unequal widths need answers of unequal lengths, and short prompts that arrive while a long answer
        runs. The prompts are shipped ones, of whose drafts more are rejected.
        """
        for number in range(self._scaled(4, 2)):
            rng = random.Random(f"{self._seed} crowd {number}")  # noqa: S311 - a plan, no secret
            slots = rng.sample(range(CLIENTS), CLIENTS)
            first_use = [self._request("crowd", [Turn(text="Hello.")], 4, slot=slot) for slot in slots]
            drawn = rng.sample(range(min(60, len(self._material.load))), self._scaled(6, 3))
            lengths = [3 * self._tokens, *(rng.choice((16, 3 * self._tokens)) for _ in drawn[1:])]

            def answer(place: int, drawn: Sequence[int] = drawn, lengths: Sequence[int] = lengths) -> Request:
                unit = f"prompt {drawn[place]} of {lengths[place]}"
                return self._request("crowd", [self._load(drawn[place])], lengths[place], unit)

            def short(count: int, rng: random.Random = rng) -> list[Request]:
                picks = [rng.randrange(CLIENTS) for _ in range(count)]
                return [self._request("crowd", [Turn(text=self._load(i).text[:40])], 2, f"short {i}") for i in picks]

            places = range(len(drawn))
            alone = Wave(requests=(*first_use, *map(answer, places), *short(4)))
            crowds = []
            for _ in range(2 if self._size > 0.3 else 1):
                mixed: list[Request] = []
                for place in rng.sample(places, len(places)):
                    mixed += [answer(place), *short(6)]
                mixed.insert(rng.randrange(len(mixed)), self._request("crowd", [self._part(number, 900)], 8))
                crowds.append(Wave(requests=tuple(mixed), clients=CLIENTS))
            yield ProcessPlan(scenario="crowd", name=f"crowd {number + 1}", waves=(alone, *crowds))

    def sessions(self) -> Iterator[ProcessPlan]:
        """Yield conversations in turn, and every turn again without a cache in a process of its own."""
        rng = random.Random(f"{self._seed} sessions")  # noqa: S311 - a plan, no secret
        histories = {i: [*self._prompt(i)] for i in range(self._scaled(4, 2))}
        waves, clean = [], []
        for turn in range(self._scaled(5, 3)):
            requests = []
            for i in rng.sample(sorted(histories), len(histories)):
                unit = f"conversation {i}, turn {turn + 1}"
                request = self._request("sessions", histories[i], self._tokens, unit)
                requests.append(request)
                clean.append(self._request("sessions", histories[i], self._tokens, unit, cached=False))
                follow_up = self._load(7 * i + turn).text[:200]
                histories[i] += [Turn(role="assistant", answer_of=request.id), Turn(text=follow_up)]
            waves.append(Wave(requests=tuple(requests)))
        yield ProcessPlan(scenario="sessions", name="sessions", waves=tuple(waves))
        yield ProcessPlan(scenario="sessions", name="clean", waves=(Wave(requests=tuple(clean)),))

    def constraint(self) -> Iterator[ProcessPlan]:
        """Yield answers by a schema, up to a stop string and with log probabilities, among plain ones."""
        waves = []
        for i in range(self._scaled(6, 2)):

            def ask(tokens: int, unit: str | None = None, i: int = i, **more: Any) -> Request:  # noqa: ANN401
                return self._request("constraint", self._prompt(i), tokens, unit, **more)

            plain = ask(48, f"prompt {i}")
            stops = [Stop(answer_of=plain.id, start=start, length=length) for start, length in ((0.3, 3), (0.6, 6))]
            constrained = [
                ask(96, f"schema {i}", by_schema=True),
                *(ask(48, stop=stop) for stop in stops),
                ask(24, listed=True),
                ask(48, f"prompt {i}"),
                ask(96, f"schema {i}", by_schema=True),
            ]
            waves += [Wave(requests=(plain,)), Wave(requests=tuple(constrained))]
        yield ProcessPlan(scenario="constraint", name="constraint", waves=tuple(waves))

    def cancel(self) -> Iterator[ProcessPlan]:
        """Yield prompts before, while and after other requests are cancelled, early and late."""
        rng = random.Random(f"{self._seed} cancel")  # noqa: S311 - a plan, no secret
        prompts = range(self._scaled(8, 3))

        def ask(i: int) -> Request:
            return self._request("cancel", self._prompt(i), self._tokens, f"prompt {i}")

        waves = [Wave(requests=tuple(map(ask, prompts)))]
        for number in range(self._scaled(3, 2)):
            mixed = []
            for i in prompts:
                other = self._part(number + i, 1200) if i % 3 == 0 else self._load(i + number)
                mixed += [self._request("cancel", [other], 64, cancel_after=rng.choice((0, 1, 2, 5, 9, 17))), ask(i)]
            waves += [Wave(requests=tuple(mixed), clients=2), Wave(requests=tuple(map(ask, prompts)))]
        yield ProcessPlan(scenario="cancel", name="cancel", waves=tuple(waves))
