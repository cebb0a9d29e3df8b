"""The requests of a stress test that puts an engine under pressure, or uses what few users use.

All but several answers to a request need arguments of the engine's own: see `EngineUnderPressure`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from benchctl.experiments.stress.plan import CLIENTS, Planner, ProcessPlan, Request, ScenarioName, Turn, Wave

SMALLEST = 256
"""Tokens of a context that answers outgrow; engines round a cache up to a multiple."""
IN_FLIGHT = 2
"""Requests at a time in a small cache; what other slots still hold has to go for them."""


class PressureScenarios(Planner):
    """Several answers to a request, slot files, context shift, a small cache."""

    def completions(self) -> Iterator[ProcessPlan]:
        """Yield prompts with one answer, with two, and with one again."""
        requests = []
        for i in range(self._scaled(4, 2)):
            plain, several, again = (
                self._request("completions", self._prompt(i), self._tokens, f"prompt {i}", completions=count)
                for count in (1, 2, 1)
            )
            requests += [plain, several, again]
        yield self._process("completions", requests)

    def slot_files(self) -> Iterator[ProcessPlan]:
        """Yield conversations that go on from a file, after another request in their slot, and without any cache."""
        requests = []
        for i in range(self._scaled(4, 2)):
            first = self._request("slot files", self._prompt(i), self._tokens, slot=0, saves=True)
            other = [Turn(text=self._load(i).text[:60])] if i % 2 else [self._part(i, 400)]
            between = self._request("slot files", other, 24, slot=0)
            turns = (*self._prompt(i), Turn(role="assistant", answer_of=first.id), Turn(text="Go on."))
            fresh = self._request("slot files", turns, self._tokens, f"continued {i}", cached=False, slot=1)
            restored = self._request("slot files", turns, self._tokens, f"continued {i}", slot=0, restores=first.id)
            requests += [first, fresh, between, restored]
        yield self._process("slot files", requests)

    def context_shift(self) -> Iterator[ProcessPlan]:
        """Yield answers longer than the context, and short ones before and after them.

        Where a context is shifted depends on how many tokens a step has: the long answers are not compared.
        """
        requests = []
        for i in range(self._scaled(3, 2)):
            prompt = [Turn(text=self._load(i).text[:60])]
            short, again = (self._request("context shift", prompt, 16, f"prompt {i}") for _ in range(2))
            outgrowing = self._request("context shift", prompt, SMALLEST + 64, to_the_limit=True)
            requests += [short, outgrowing, again]
        yield self._process("context shift", requests, cells=SMALLEST)

    def small_cache(self) -> Iterator[ProcessPlan]:
        """Yield prompts again and again, some at a time, in a cache that holds no more than those."""
        length, rounds = 600, 3
        prompts = range(self._scaled(6, 4))
        requests = [
            self._request("small cache", [self._part(i, length)], self._tokens, f"prompt {i}")
            for _ in range(rounds)
            for i in prompts
        ]
        needed = IN_FLIGHT * (length / self._material.token_chars + 64 + self._tokens)
        cells = SMALLEST * math.ceil(needed / SMALLEST)
        alone = Wave(requests=tuple(requests[: len(prompts)]))
        crowd = Wave(requests=tuple(requests[len(prompts) :]), clients=IN_FLIGHT)
        yield ProcessPlan(scenario="small cache", name="small cache", waves=(alone, crowd), cells=cells)

    def preemption(self) -> Iterator[ProcessPlan]:
        """Yield prompts alone and several at a time in a cache that has room for two prompts, but not their answers.

        An answer goes on past its end, so that none is too short for that.
        """
        length, tokens = 600, 3 * self._tokens
        prompts = range(self._scaled(6, 4))
        requests = [
            self._request("preemption", [self._part(i, length)], tokens, f"prompt {i}", to_the_limit=True)
            for _ in range(3)
            for i in prompts
        ]
        alone = Wave(requests=tuple(requests[: len(prompts)]))
        waves = (alone, Wave(requests=tuple(requests[len(prompts) :]), clients=CLIENTS))
        prompt = length / self._material.token_chars + 32  # what the chat template adds
        cells = math.ceil(max(IN_FLIGHT * prompt, prompt + tokens))  # vLLM refuses less than the longest request
        yield ProcessPlan(scenario="preemption", name="preemption", waves=waves, cells=cells)

    def _process(self, name: ScenarioName, requests: list[Request], cells: int | None = None) -> ProcessPlan:
        return ProcessPlan(scenario=name, name=name, waves=(Wave(requests=tuple(requests)),), cells=cells)
