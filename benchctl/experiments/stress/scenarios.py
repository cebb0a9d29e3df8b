"""The requests of each scenario of a stress test: a pure function of a seed, a size and the prompts."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from benchctl.experiments.stress.plan import (
    CLIENTS,
    COPIED,
    CUT,
    PRESSURE,
    Material,
    Plan,
    Planner,
    ProcessPlan,
    Request,
    ScenarioName,
    Stop,
    Turn,
    Wave,
)
from benchctl.experiments.stress.pressure import PressureScenarios

MARGIN = 64
"""Tokens of the context that a long prompt leaves to the chat template, beside its answer."""


def make_plan(scenarios: Sequence[ScenarioName], seed: int, size: float, material: Material) -> Plan:
    """Return the plan. `size`: 1 for the full plan, less for a slow pair."""
    usual, pressed = Scenarios(seed, size, material), PressureScenarios(seed, size, material)
    makers = {name: getattr(pressed if name in PRESSURE else usual, name.replace(" ", "_")) for name in scenarios}
    return Plan(seed=seed, size=size, processes=tuple(process for name in scenarios for process in makers[name]()))


class Scenarios(Planner):
    """The scenarios that need no more than the engine's own defaults."""

    def canary(self) -> Iterator[ProcessPlan]:
        """Yield the same prompts before and after others, in one process; every third ends a conversation."""
        prompts = [self._prompt(i) for i in range(self._scaled(24, 2))]
        cut = {i: self._request("canary", [self._part(i, COPIED)], CUT, f"cut {i}") for i in range(1, len(prompts), 3)}
        prompts = [self._asked_again(cut[i]) if i in cut else prompt for i, prompt in enumerate(prompts)]

        def ask_all() -> Wave:
            asked = (self._request("canary", turns, self._tokens, f"prompt {i}") for i, turns in enumerate(prompts))
            return Wave(requests=tuple(asked))

        def load(first: int, count: int) -> Wave:
            others = (self._request("canary", [self._load(first + i)], 16) for i in range(count))
            return Wave(requests=tuple(others))

        others = load(0, len(prompts) if self._size < 0.3 else 2 * len(prompts))
        waves = (Wave(requests=tuple(cut.values())), ask_all(), others, ask_all())
        yield ProcessPlan(scenario="canary", name="canary", waves=waves)

    def cache(self) -> Iterator[ProcessPlan]:
        """Yield prompts that share a beginning with what the cache holds, and the same without a cache."""
        requests, clean = [], []
        for i in range(self._scaled(6, 1)):
            tokens = self._tokens
            prompt = self._opening(i, 3 * tokens + MARGIN)

            def ask(unit: str, turns: Iterable[Turn], tokens: int = tokens, i: int = i, **more: Any) -> Request:  # noqa: ANN401
                return self._request("cache", turns, tokens, f"{unit} {i}", **more)

            first = ask("prompt", prompt)
            cut = ask("cut", [self._part(i, COPIED)], CUT)
            answered = Turn(role="assistant", answer_of=first.id)
            longer = (*prompt, answered, self._load(i + 1)) if i % 2 else self._asked_again(cut)
            variants: list[tuple[str, tuple[Turn, ...], dict[str, Any]]] = [
                ("branch", self._branch(prompt, i), {}),
                ("prompt", prompt, {}),
                ("shorter", prompt, {"drop": 7}),
                ("longer", longer, {}),
                ("other", (self._load(i + 2),), {}),
                ("prompt", prompt, {}),
                ("within", prompt, {"half_answer_of": first.id}),
                ("prompt", prompt, {}),
            ]
            requests += [
                first,
                cut,
                ask("prompt", prompt),
                *(ask(unit, turns, **more) for unit, turns, more in variants),
            ]
            clean += [ask(unit, turns, cached=False, **more) for unit, turns, more in variants if unit != "prompt"]
        yield ProcessPlan(scenario="cache", name="cache", waves=(Wave(requests=tuple(requests)),))
        yield ProcessPlan(scenario="cache", name="cache clean", waves=(Wave(requests=tuple(clean)),))

    def crowd(self) -> Iterator[ProcessPlan]:
        """Yield fresh processes: slots first used in random order, prompts alone, then several at a time.

        Batches of unequal widths need answers of unequal lengths, and short prompts that arrive while a long answer
        runs. The prompts are shipped ones, of whose drafts more are rejected.
        """
        for number in range(self._scaled(4, 1)):
            rng = random.Random(f"{self._seed} crowd {number}")  # noqa: S311 - a plan, no secret
            slots = rng.sample(range(CLIENTS), CLIENTS)
            first_use = [self._request("crowd", [Turn(text="Hello.")], 4, slot=slot) for slot in slots]
            drawn = rng.sample(range(min(60, len(self._material.load))), self._scaled(6, 2 if self._smallest else 3))
            cut = self._request("crowd", [self._part(number, COPIED)], CUT)
            asked = [(self._asked_again(cut), 3 * self._tokens, f"conversation {number}")]
            for i in drawn[1:]:
                tokens = rng.choice((16, 3 * self._tokens))
                asked.append(((self._load(i),), tokens, f"prompt {i} of {tokens}"))

            def answer(place: int, asked: Sequence[tuple[tuple[Turn, ...], int, str]] = asked) -> Request:
                return self._request("crowd", *asked[place])

            def short(count: int, rng: random.Random = rng) -> list[Request]:
                picks = [rng.randrange(CLIENTS) for _ in range(count)]
                return [self._request("crowd", [Turn(text=self._load(i).text[:40])], 2, f"short {i}") for i in picks]

            places = range(len(asked))
            alone = Wave(requests=(*first_use, cut, *map(answer, places), *short(4)))
            crowds = []
            for _ in range(2 if self._size > 0.3 else 1):
                mixed: list[Request] = []
                for place in rng.sample(places, len(places)):
                    mixed += [answer(place), *short(3 if self._smallest else 6)]
                mixed.insert(rng.randrange(len(mixed)), self._request("crowd", [self._part(number, 900)], 8))
                crowds.append(Wave(requests=tuple(mixed), clients=CLIENTS))
            yield ProcessPlan(scenario="crowd", name=f"crowd {number + 1}", waves=(alone, *crowds))

    def sessions(self) -> Iterator[ProcessPlan]:
        """Yield conversations in turn, and every turn again without a cache in a process of its own."""
        rng = random.Random(f"{self._seed} sessions")  # noqa: S311 - a plan, no secret
        turns = range(self._scaled(5, 2))
        rest = len(turns) * (self._tokens + 2 * MARGIN)
        openings = [1, 3] if self._smallest else range(self._scaled(4, 2))  # those of odd numbers are short
        histories = {i: [*self._opening(i, rest)] for i in openings}
        waves, clean = [], []
        for turn in turns:
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
        yield ProcessPlan(scenario="sessions", name="sessions clean", waves=(Wave(requests=tuple(clean)),))

    def constraint(self) -> Iterator[ProcessPlan]:
        """Yield answers by a schema, up to a stop string and with log probabilities, among plain ones."""
        waves = []
        tokens = self._tokens * 3 // 2
        for i in range(self._scaled(6, 1)):

            def ask(tokens: int, unit: str | None = None, i: int = i, **more: Any) -> Request:  # noqa: ANN401
                return self._request("constraint", self._prompt(i), tokens, unit, **more)

            plain = ask(tokens, f"prompt {i}")
            cut = self._request("constraint", [self._part(i, COPIED)], CUT, f"cut {i}", by_schema=True)
            turns = self._prompt(i) if i % 2 else self._asked_again(cut)

            def by_schema(i: int = i, turns: Sequence[Turn] = turns) -> Request:
                return self._request("constraint", turns, 2 * tokens, f"schema {i}", by_schema=True)

            stops = [Stop(answer_of=plain.id, start=start, length=length) for start, length in ((0.3, 3), (0.6, 6))]
            constrained = [
                by_schema(),
                *(ask(tokens, stop=stop) for stop in stops),
                ask(tokens // 2, listed=True),
                ask(tokens, f"prompt {i}"),
                by_schema(),
            ]
            waves += [Wave(requests=(plain, cut)), Wave(requests=tuple(constrained))]
        yield ProcessPlan(scenario="constraint", name="constraint", waves=tuple(waves))

    def cancel(self) -> Iterator[ProcessPlan]:
        """Yield prompts before, while and after other requests are cancelled, early and late.

        Of these a third is long, and a third begins as the prompt does.
        """
        rng = random.Random(f"{self._seed} cancel")  # noqa: S311 - a plan, no secret
        prompts = range(self._scaled(8, 3))

        def ask(i: int) -> Request:
            return self._request("cancel", self._prompt(i), self._tokens, f"prompt {i}")

        waves = [Wave(requests=tuple(map(ask, prompts)))]
        for number in range(self._scaled(3, 2)):
            mixed = []
            for i in prompts:
                others = ((self._part(number + i, 1200),), (self._load(i + number),), self._branch(self._prompt(i), i))
                after = rng.choice((0, 1, 2, 5, 9, 17))
                mixed += [self._request("cancel", others[(i + number) % 3], 64, cancel_after=after), ask(i)]
            waves += [Wave(requests=tuple(mixed), clients=2), Wave(requests=tuple(map(ask, prompts)))]
        yield ProcessPlan(scenario="cancel", name="cancel", waves=tuple(waves))

    def long(self) -> Iterator[ProcessPlan]:
        """Yield prompts that nearly fill the context: read anew, from the cache, behind another one, and anew again.

        Reading takes nearly all of the time, so answers may be longer than elsewhere.
        """
        tokens, requests = 3 * self._tokens, []
        length = int(self._material.token_chars * ((self._material.context or 0) - tokens - MARGIN))
        for i in range(self._scaled(3, 1) if length > 0 else 0):

            def ask(prompt: Turn, *, cached: bool, i: int = i) -> Request:
                return self._request("long", [prompt], tokens, f"prompt {i}", cached=cached)

            prompt = self._part(i, length)
            other = self._request("long", [self._load(i)], 16)
            again = [ask(prompt, cached=True), other, ask(prompt, cached=True), ask(prompt, cached=False)]
            requests += [ask(prompt, cached=False), *again]
        yield ProcessPlan(scenario="long", name="long", waves=(Wave(requests=tuple(requests)),))
