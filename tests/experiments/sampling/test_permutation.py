"""The tests of two samples of answers: exact where that can be enumerated, right under the null, and able to see."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from benchctl.analysis.statistics import holm
from benchctl.experiments.sampling.permutation import (
    END,
    FEW,
    SHARPNESS,
    PromptSamples,
    names_of_tests,
    p_values,
    prefix_name,
    score,
    visible_sharpening,
    visible_shifts,
)

pytestmark = pytest.mark.slow

Tokens = NDArray[np.int64]


def chain(prompt: int, vocabulary: int = 12) -> NDArray[np.float64]:
    """Logits of a Markov chain that stands for a model: row `vocabulary` is the prompt's."""
    return np.random.default_rng(prompt).normal(0, 2, (vocabulary + 1, vocabulary))


def sampled(logits: NDArray[np.float64], count: int, length: int, heat: float, rng: np.random.Generator) -> Tokens:
    """Draw answers at a temperature."""
    weights = np.exp(logits / heat)
    cumulated = np.cumsum(weights / weights.sum(axis=1, keepdims=True), axis=1)
    rows = np.empty((count, length), dtype=np.int64)
    last = np.full(count, logits.shape[1])
    for index in range(length):
        last = np.minimum((rng.random(count)[:, None] > cumulated[last]).sum(axis=1), logits.shape[1] - 1)
        rows[:, index] = last
    return rows


def check(count: int, heat: float, seed: int, prompts: int = 4, length: int = 8) -> list[PromptSamples]:
    """Draw a check's answers; the baseline's temperature is 0.8."""
    rng = np.random.default_rng(seed)
    models = [chain(prompt) for prompt in range(prompts)]
    return [
        PromptSamples(sampled(model, count, length, 0.8, rng), sampled(model, count, length, heat, rng))
        for model in models
    ]


def test_the_names_of_the_tests() -> None:
    assert names_of_tests(6) == [
        *("first 1 token", "first 2 tokens", "first 4 tokens", "first 6 tokens"),
        *("tokens by position", "sharpness"),
    ]


def test_p_is_the_share_of_relabellings_that_are_as_extreme() -> None:
    baseline, arm = np.array([[1, 1], [1, 1], [1, 2], [3, 1]]), np.array([[3, 1], [3, 1], [3, 2], [1, 1]])
    result = dict(zip(names_of_tests(2), p_values([PromptSamples(baseline, arm)], 20_000), strict=True))
    rows = np.concatenate([baseline, arm])

    def chi_square(ours: tuple[int, ...], columns: int) -> float:
        prefixes = [tuple(row) for row in rows[:, :columns].tolist()]
        inside = [prefixes[index] for index in ours]
        return sum(
            (inside.count(prefix) - prefixes.count(prefix) / 2) ** 2 / prefixes.count(prefix)
            for prefix in set(prefixes)
        )

    for columns in (1, 2):
        observed = chi_square((4, 5, 6, 7), columns)
        statistics = [chi_square(ours, columns) for ours in combinations(range(8), 4)]
        exact = sum(value >= observed - 1e-9 for value in statistics) / len(statistics)
        assert result[prefix_name(columns)] == pytest.approx(exact, abs=0.03)


def test_equal_samples_differ_in_nothing() -> None:
    same = check(30, 0.8, seed=1)[0].baseline
    assert p_values([PromptSamples(same, same)], 2_000) == [1.0] * len(names_of_tests(8))


def test_false_alarms_keep_to_the_level() -> None:
    smallest = [min(holm(p_values(check(40, 0.8, seed), 600, seed=seed))) for seed in range(60)]
    assert sum(p <= 0.05 for p in smallest) <= 8  # 3 are expected; more than 8 come once in 100 seeds
    assert sum(p <= 0.5 for p in smallest) <= 42  # and half of them at most here, of 60


@pytest.mark.parametrize("heat", [0.6, 1.1])
def test_a_wrong_temperature_is_found_and_by_sharpness(heat: float) -> None:
    p = p_values(check(300, heat, seed=5), 5_000)
    adjusted = dict(zip(names_of_tests(8), holm(p), strict=True))
    assert adjusted[SHARPNESS] <= 0.01


def test_a_token_that_is_replaced_deep_in_the_answer_is_found() -> None:
    samples = check(200, 0.8, seed=6)
    for prompt in samples:
        prompt.arm[:30, 5] = 99
    adjusted = dict(zip(names_of_tests(8), holm(p_values(samples, 5_000)), strict=True))
    assert adjusted["tokens by position"] <= 0.01
    assert adjusted[prefix_name(2)] > 0.01


def test_answers_that_end_early_are_found() -> None:
    samples = check(100, 0.8, seed=7)
    for prompt in samples:
        prompt.arm[:30, 3:] = END
    assert min(holm(p_values(samples, 5_000))) <= 0.01


def test_scores_are_centred_and_only_of_what_many_answers_share() -> None:
    rows = sampled(chain(0), 400, 6, 0.8, np.random.default_rng(0))
    assert score(rows).sum() == pytest.approx(0, abs=1e-6)
    assert not score(rows[: FEW - 1]).any()
    likely = np.array([[1]] * 30 + [[2]] * 10)
    assert score(likely)[0] == pytest.approx(np.log(0.75) - 0.75 * np.log(0.75) - 0.25 * np.log(0.25))


def test_the_stated_power_is_reached() -> None:
    level = 0.01 / len(names_of_tests(8))
    models = [chain(prompt) for prompt in range(4)]
    rng = np.random.default_rng(8)
    baseline = [sampled(model, 200, 8, 0.8, rng) for model in models]
    shift = visible_shifts(baseline, 200, level)[2]
    change = visible_sharpening(baseline, 200, level)
    assert shift is not None
    assert change is not None
    tests = names_of_tests(8)
    heat = 0.8 / (1 + change)
    by_sharpness = [p_values(check(200, heat, seed), 2_500)[tests.index(SHARPNESS)] <= level for seed in range(12)]
    assert sum(by_sharpness) >= 8
    moved = []
    for seed in range(12):
        samples = check(200, 0.8, 100 + seed)
        for samples_of_prompt in samples:
            hit = np.random.default_rng(seed).random(200) < 2 * shift  # to prefixes of its own: seen all the earlier
            samples_of_prompt.arm[hit, 1] = 99
        moved.append(p_values(samples, 2_500)[tests.index(prefix_name(2))] <= level)
    assert all(moved)


def test_more_answers_see_more_and_few_see_nothing() -> None:
    rng = np.random.default_rng(9)
    many, few, two = ([sampled(chain(0), count, 4, 0.8, rng)] for count in (800, 100, 2))
    visible = [visible_shifts(rows, len(rows[0]), 0.001)[2] for rows in (many, few, two)]
    assert visible[0] is not None
    assert visible[1] is not None
    assert visible[0] < visible[1]
    assert visible[2] is None
    assert visible_sharpening(two, 2, 0.001) is None
