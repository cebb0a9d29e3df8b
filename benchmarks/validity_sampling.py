"""Section e: the check of sampled answers, on samplers that are right and on some that are wrong."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchctl.analysis.statistics import holm
from benchctl.engines.base import Server
from benchctl.engines.registry import make_engine
from benchctl.experiments.sampling.draw import draw_answers, in_turn
from benchctl.experiments.sampling.permutation import (
    END,
    PromptSamples,
    names_of_tests,
    p_values,
    visible_sharpening,
    visible_shifts,
)
from benchctl.measurement.plan import spread_over_tasks, spread_seed
from benchctl.models.sources import ModelSearch
from benchctl.prompts.load import load_suite
from benchctl.prompts.suite import PromptItem
from benchctl.recipes.schema import Arm, Sampling
from benchmarks.bundled_runs import bundled_recipe, drafting, plain

if TYPE_CHECKING:
    from benchctl.experiments.sampling.permutation import Tokens

_TOKENS = 32
_PROMPTS = 4
_RIGHT = Sampling(temperature=0.8, top_k=0, max_tokens=_TOKENS)
_WRONG = {
    "temperature_0.9": _RIGHT.model_copy(update={"temperature": 0.9}),
    "temperature_0.7": _RIGHT.model_copy(update={"temperature": 0.7}),
    "top_k_2": _RIGHT.model_copy(update={"top_k": 2}),
    "top_p_0.9": _RIGHT.model_copy(update={"top_p": 0.9}),
}
_USUAL = 5
"""Small checks of a right sampler that make one of the usual size."""
_WRONG_CHECKS = 5
_LEVELS = (0.01, 0.05, 0.2)
_RESAMPLES = 10_000


def checked_samplers(scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Draw many small checks of a right engine for the false alarms, and a few of the usual size of wrong ones."""
    seeds = map(spread_seed, itertools.count(1))
    small, usual = options.seeds, _USUAL * options.seeds
    few = max(1, min(_WRONG_CHECKS, options.checks // _USUAL))
    baseline = _drawn(scratch, plain("baseline"), _RIGHT, seeds, options.checks * small)
    right = _drawn(scratch, drafting("right"), _RIGHT, seeds, options.checks * small)
    names = names_of_tests(_TOKENS)
    first = [rows[:usual] for rows in baseline]
    faults = {
        name: _checks(baseline, _drawn(scratch, drafting("wrong"), sampling, seeds, few * usual), usual, few)
        for name, sampling in _WRONG.items()
    }
    return {
        "prompts": _PROMPTS,
        "tokens": _TOKENS,
        "tests_a_check": len(names),
        "right_sampler": {
            "answers_to_a_prompt": small,
            **_rates(_checks(baseline, right, small, options.checks), names),
        },
        "right_sampler_usual_size": {
            "answers_to_a_prompt": usual,
            **_rates(_checks(baseline, right, usual, options.checks // _USUAL), names),
        },
        "power_stated_at_level_0.01": {
            "answers_to_a_prompt": usual,
            "shifts": visible_shifts(first, usual, 0.01 / len(names)),
            "temperature": visible_sharpening(first, usual, 0.01 / len(names)),
        },
        "wrong_samplers": {
            name: {"answers_to_a_prompt": usual, **_rates(checks, names)} for name, checks in faults.items()
        },
    }


def _drawn(scratch: Path, arm: Arm, sampling: Sampling, seeds: Iterator[int], count: int) -> list[Tokens]:
    """Return the answers of an arm, a prompt an array of `count` answers, from one engine process."""
    import numpy as np

    recipe = bundled_recipe([arm], baseline=arm.name)
    engine = make_engine(recipe.engine)
    pair = ModelSearch(scratch).pair(recipe.models)
    items = spread_over_tasks(load_suite("tiny.json", recipe_folder=scratch).select(None, None), _PROMPTS)
    rows: dict[tuple[str, int], list[list[int]]] = {(item.task, item.prompt_idx): [] for item in items}
    server: Server = engine.start(engine.launch(arm, pair), scratch / "engine.log")
    try:
        for prompt, ids in _known(server, items, sampling, seeds, count):
            rows[prompt].append([*ids, *[END] * (_TOKENS - len(ids))])
    finally:
        server.stop()
    return [np.array(tokens, dtype=np.int64) for tokens in rows.values()]


def _known(
    server: Server, items: tuple[PromptItem, ...], sampling: Sampling, seeds: Iterator[int], count: int
) -> Iterator[tuple[tuple[str, int], list[int]]]:
    """Yield the answers whose ids are known; those that end within a character may not be."""
    for answer, _ in draw_answers(server, "arm", in_turn(items, seeds, count), sampling):
        if answer.error is not None:
            raise RuntimeError(answer.error)
        if answer.token_ids is not None:
            yield (answer.task, answer.prompt_idx), answer.token_ids


def _checks(baseline: list[Tokens], arm: list[Tokens], size: int, count: int) -> list[list[float]]:
    """Return the p-values of `count` checks, each of answers that no other uses."""
    return [
        p_values(
            [
                PromptSamples(theirs[number * size : (number + 1) * size], ours[number * size : (number + 1) * size])
                for theirs, ours in zip(baseline, arm, strict=True)
            ],
            _RESAMPLES,
            seed=number,
        )
        for number in range(count)
    ]


def _rates(checks: list[list[float]], names: list[str]) -> dict[str, Any]:
    """Return how often a check found a difference at each level, and how often each test alone did."""
    smallest_p = [min(holm(p)) for p in checks]
    return {
        "checks": len(checks),
        "found_share_by_level": {
            str(level): sum(p <= level for p in smallest_p) / len(smallest_p) for level in _LEVELS
        },
        "share_of_p_below_0.05_by_test": {
            name: sum(p[index] <= 0.05 for p in checks) / len(checks) for index, name in enumerate(names)
        },
    }
