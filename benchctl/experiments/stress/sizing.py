"""The plan of a stress test in the size that fits its time, after the noise and the cost of answers were measured."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import fmean

from benchctl.engines.base import Rendered
from benchctl.engines.in_use import ServerInUse
from benchctl.errors import EngineError
from benchctl.experiments.stress.noise import measure_noise
from benchctl.experiments.stress.plan import Material, Plan, ProcessPlan, Request, ScenarioName, prompt_of
from benchctl.experiments.stress.preparing import StressSettings, material_of
from benchctl.experiments.stress.scenarios import make_plan
from benchctl.experiments.stress.stored import StressTest
from benchctl.measurement.cell import running
from benchctl.measurement.prepare import Prepared
from benchctl.prompts.suite import Prompt
from benchctl.recipes.schema import Sampling

SIZES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.15, 0.08)
"""Shares of the full plan; the largest that fits the time is taken."""
NOISE_PROMPTS, NOISE_TOKENS = 12, 32
NOISE_SHARE = 0.1
"""Of the budget, for the noise."""
TIMED = 2
"""Answers that are timed before, of the control and of an arm."""
ARM_COST, QUICK_START = 1.5, 0.01
"""Time of an arm's answers over the control's where it is not measured: a start takes more than this share of the
budget."""
READ_CHARS, READ_TOKENS = 1500, 9.6
"""Where it is not measured, reading so many characters is taken to last as long as so many tokens of a short answer."""
SAMPLE = 8000
"""Characters of the passage that tell how many a token has."""
SLACK = 0.85
"""The share of the time that a plan may need by this reckoning."""
Start = Callable[[str, str], ServerInUse]
"""Starts the engine of an arm; the second name is that of its log."""


@dataclass(frozen=True)
class Cost:
    """What a plan takes, in seconds."""

    startup_s: float
    token_s: float
    """For a token of the control's short answers, reading included."""
    read_s: float | None = None
    """For reading `READ_CHARS` characters; `None`: not measured."""
    arms: int = 1
    slower: float = ARM_COST
    """Time of an arm's answers over the control's."""

    def process_s(self, process: ProcessPlan) -> float:
        """Return what a process of the plan takes the control and all arms, starts included."""
        answers_s = sum(map(self._answer_s, process.requests))
        return self.startup_s * (1 + self.arms) + answers_s * (1 + self.slower * self.arms)

    def _answer_s(self, request: Request) -> float:
        """Return what a request takes the control: reading its prompt, and decoding."""
        chars = sum(len(turn.text) for turn in request.turns)
        least_s = READ_TOKENS * self.token_s
        read_s = least_s if self.read_s is None else self.read_s
        return max(least_s, read_s * chars / READ_CHARS) + 0.7 * request.tokens * self.token_s


def largest_plan(scenarios: Sequence[ScenarioName], seed: int, material: Material, cost: Cost, left_s: float) -> Plan:
    """Return the largest plan that fits into `left_s` seconds, else the smallest there is."""
    for size in SIZES:
        plan = make_plan(scenarios, seed, size, material)
        if sum(map(cost.process_s, plan.processes)) <= SLACK * left_s:
            break
    return plan


def measured_plan(
    prepared: Prepared,
    settings: StressSettings,
    scenarios: Sequence[ScenarioName],
    test: StressTest,
    start: Start,
    left_s: Callable[[], float],
) -> tuple[Plan, Cost]:
    """Measure the noise on the control, and what answers cost; return the largest plan for the time that is left.

    Notes the noise, the slots and the context in `test`. Raises EngineError.
    """
    recipe, material = prepared.recipe, material_of(prepared)
    raw = prepared.suite.kind == "raw"
    sampling = recipe.sampling.model_copy(update={"max_tokens": NOISE_TOKENS})
    began = time.perf_counter()
    with running(start(recipe.baseline, "noise")) as server:
        startup_s = time.perf_counter() - began
        turns = [material.prompts[index % len(material.prompts)] for index in range(NOISE_PROMPTS)]
        prompts = [server.render(prompt_of(each, {}, raw=raw)) for each in turns]
        answer_s = _answer_s(server, prompts, sampling)
        count = min(NOISE_PROMPTS, max(2, int(NOISE_SHARE * settings.budget_s / (5 * answer_s))))
        read_s = None
        test.slots = server.slots
        if (context := server.slot_context) is not None:
            test.contexts["long"] = context
            passage = material.passage[:SAMPLE]
            ids = server.render(Prompt(prompt=passage)).token_ids
            material = replace(material, context=context, token_chars=0.95 * (len(passage) / len(ids) if ids else 1.0))
            read_s = _read_s(server, passage[: min(READ_CHARS, int(0.5 * context * material.token_chars))], sampling)
        test.noise, test.noise_tokens = asyncio.run(measure_noise(server, prompts[:count], sampling))
    arms = [arm.name for arm in recipe.arms if arm.name != recipe.baseline]
    slower = ARM_COST
    if startup_s <= QUICK_START * settings.budget_s:
        with running(start(arms[0], "noise")) as server, suppress(EngineError):
            slower = _answer_s(server, prompts, sampling) / answer_s
    cost = Cost(startup_s, answer_s / NOISE_TOKENS, read_s, len(arms), slower)
    return largest_plan(scenarios, settings.seed, material, cost, left_s()), cost


def _answer_s(server: ServerInUse, prompts: Sequence[Rendered], sampling: Sampling) -> float:
    """Return the mean seconds of a few answers, each prompt read anew."""
    seconds = []
    for prompt in prompts[:TIMED]:
        began = time.perf_counter()
        asyncio.run(server.complete(server.in_use(prompt, cached=False), sampling))
        seconds.append(time.perf_counter() - began)
    return fmean(seconds)


def _read_s(server: ServerInUse, text: str, sampling: Sampling) -> float:
    """Return the seconds that reading `READ_CHARS` characters takes, by a text of at most as many."""
    prompt = server.in_use(server.render(Prompt(prompt=text)), cached=False)
    began = time.perf_counter()
    asyncio.run(server.complete(prompt, sampling.model_copy(update={"max_tokens": 1})))
    return (time.perf_counter() - began) * READ_CHARS / len(text)
