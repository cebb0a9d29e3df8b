"""Steps between runs: found beyond noise, at their build, and none where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from benchctl.analysis.statistics import Variance
from benchctl.experiments.history.steps import Split, find_noise, find_steps, run_variances, seen_at_end

Floats = NDArray[np.float64]


def steps_of(logs: Floats, repeats: int = 2, blocks: float = 1e-6) -> list[Split]:
    builds = np.arange(len(logs)) // repeats
    noise = find_noise(logs, np.full(len(logs), blocks), builds)
    assert noise is not None
    return find_steps(logs, np.full(len(logs), blocks), noise)


def noisy(count: int, spread: float = 0.01, seed: int = 1) -> Floats:
    return np.random.default_rng(seed).normal(0, spread, count)


def test_of_two_builds_a_step_is_students_t_of_two_samples() -> None:
    logs = noisy(10) + 0.05 * (np.arange(10) >= 5)
    (split,) = steps_of(logs, repeats=5)
    expected = stats.ttest_ind(logs[5:], logs[:5])
    assert split.place == 5
    assert split.size == pytest.approx(logs[5:].mean() - logs[:5].mean())
    assert split.p == pytest.approx(9 * expected.pvalue)
    interval = expected.confidence_interval(1 - 0.05 / 9)
    assert split.half == pytest.approx((interval.high - interval.low) / 2)


def test_a_rise_and_a_fall_are_two_steps_and_name_where_they_may_have_begun() -> None:
    place = np.arange(60)
    logs = noisy(60) + 0.1 * ((place >= 20) & (place < 40))
    found = steps_of(logs)
    assert [(split.place, np.sign(split.size), split.after) for split in found] == [(20, 1, 20), (40, -1, 20)]
    assert all(split.first <= split.place <= split.last for split in found)
    vague = steps_of(noisy(60, 0.05) + 0.08 * (place >= 30))[0]
    assert vague.last > vague.first, "in noise it may have begun with several"


def test_without_a_step_none_is_told() -> None:
    alarms = [bool(steps_of(noisy(20, seed=seed))) for seed in range(200)]
    assert sum(alarms) <= 10


def test_a_run_that_its_own_blocks_show_to_be_poor_moves_nothing() -> None:
    logs, builds = noisy(20, 0.002), np.arange(20) // 2
    logs[9] += 0.2
    sound = np.full(20, 4e-6)
    poor = np.where(np.arange(20) == 9, 0.01, sound)
    noise = find_noise(logs, poor, builds)
    assert noise is not None and noise.between < 0.01
    assert find_steps(logs, poor, noise) == []


def test_a_step_within_a_build_is_found_at_its_run() -> None:
    logs = noisy(40, 0.002) + 0.1 * (np.arange(40) >= 15)  # builds begin at even runs
    assert [split.place for split in steps_of(logs)] == [15]


def test_no_build_measured_twice_shows_no_noise() -> None:
    assert find_noise(noisy(5), np.full(5, 1e-4), np.arange(5)) is None
    assert find_noise(np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.int64)) is None


def test_equal_runs_are_told_apart_from_nothing() -> None:
    assert steps_of(np.zeros(12), blocks=0.0) == []


def test_the_stated_step_is_found_eight_times_in_ten() -> None:
    builds, variances = np.arange(20) // 2, np.full(20, 1e-6)
    hits = 0
    for seed in range(200):
        logs = noisy(20, seed=seed)
        noise = find_noise(logs, variances, builds)
        assert noise is not None
        logs[-2:] += seen_at_end(variances, noise, 2)
        hits += bool(find_steps(logs, variances, noise))
    assert 140 <= hits <= 180


def test_variances_of_few_blocks_are_shrunken_to_their_mean() -> None:
    found = run_variances([Variance(0.0, 2), Variance(0.03, 2), None])
    assert found == pytest.approx([(6 * 0.015) / 8 / 3, (2 * 0.03 + 6 * 0.015) / 8 / 3])
