"""The hazard test: calm about noise, and not about a rule that accepts near misses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchctl.lossless.judge.audit import PROPOSED, find_power
from benchctl.lossless.judge.noise import Noise, Places, hazard_test
from benchctl.lossless.judge.selection import _rejections

pytestmark = pytest.mark.slow

DEVIATION = 0.135


def sample(rng: np.random.Generator, answers: int = 20, prefixes: int = 50) -> Noise:
    margins = rng.exponential(2.0, answers * prefixes)
    return Noise(margins, rng.normal(0, DEVIATION, len(margins)), np.repeat(np.arange(answers), prefixes))


def arm(rng: np.random.Generator, *, accepts: float = 0.0, prompts: int = 40, deviation: float = DEVIATION) -> Places:
    margins = rng.exponential(2.0, prompts * 100)
    diverged = rng.normal(0, deviation, len(margins)) > margins
    diverged |= (margins <= accepts) & (rng.random(len(margins)) < 1 / 3)
    return Places.everywhere(margins, diverged, np.repeat(np.arange(prompts), 100))


def test_a_sound_arm_passes_and_its_flips_are_those_expected() -> None:
    rng = np.random.default_rng(1)
    noise = sample(rng)
    results = [hazard_test(noise, arm(rng), rounds=1_000) for _ in range(40)]
    assert sum(result.p <= 0.05 for result in results) <= 6
    assert np.mean([result.flips for result in results]) == pytest.approx(
        np.mean([result.expected for result in results]), rel=0.2
    )


def test_runner_ups_accepted_too_often_are_detected() -> None:
    rng = np.random.default_rng(2)
    noise = sample(rng)
    assert hazard_test(noise, arm(rng, accepts=0.3)).p < 0.001
    assert hazard_test(noise, arm(rng, deviation=2 * DEVIATION)).p < 0.005


def test_a_target_without_noise_excuses_no_divergence() -> None:
    rng = np.random.default_rng(3)
    still = Noise(np.ones(1_000), np.zeros(1_000), np.zeros(1_000, np.int64))
    result = Places.everywhere(np.array([0.01, 2.0]), np.array([True, False]), np.zeros(2, np.int64))
    assert hazard_test(still, result).p == 0.0
    same = Places.everywhere(np.array([0.01, 2.0]), np.array([False, False]), np.zeros(2, np.int64))
    assert hazard_test(still, same).p == 1.0
    assert hazard_test(sample(rng), same).p == 1.0


def test_equal_data_give_equal_numbers() -> None:
    results = [hazard_test(sample(np.random.default_rng(4)), arm(np.random.default_rng(5))) for _ in range(2)]
    assert results[0] == results[1]


def test_power_grows_with_the_fault_and_with_the_prompts() -> None:
    rng = np.random.default_rng(6)
    noise, places = sample(rng), arm(rng, prompts=12)
    proposed = 1 / 3  # as the audit of the method assumed
    small, large = (find_power(noise, places, nats, 1, level=0.005, proposed=proposed) for nats in (0.05, 0.3))
    assert small.chance < 0.6 < large.chance
    assert small.prompts is None or small.prompts > 1
    assert large.prompts is not None and large.prompts <= 2


def test_the_stated_power_does_not_depend_on_the_seed() -> None:
    """At the level of one of four arms, the threshold is not the extreme of a few draws."""
    rng = np.random.default_rng(6)
    noise, places = sample(rng), arm(rng, prompts=12)
    results = [
        find_power(noise, places, 0.15, 1, level=0.005 / 4, proposed=1 / 3, seed=seed).chance for seed in range(6)
    ]
    assert max(results) - min(results) < 0.15


def test_a_draft_that_seldom_proposes_the_runner_up_hides_the_fault() -> None:
    chances = []
    for proposed in (1 / 3, PROPOSED):
        rng = np.random.default_rng(6)
        noise, places = sample(rng), arm(rng, prompts=12)
        chances.append(find_power(noise, places, 0.3, 1, level=0.005, proposed=proposed).chance)
    assert chances[1] < 0.2 < 0.6 < chances[0]


def test_where_there_is_no_noise_one_swapped_token_is_enough() -> None:
    still = Noise(np.ones(1_000), np.zeros(1_000), np.zeros(1_000, np.int64))
    places = Places.everywhere(np.full(10, 0.05), np.zeros(10, bool), np.zeros(10, np.int64))
    near, nearer = (find_power(still, places, nats, 1, level=0.005, proposed=PROPOSED) for nats in (0.1, 0.01))
    assert near.chance == pytest.approx(1 - (1 - PROPOSED) ** 10)
    assert nearer.prompts is None


@pytest.mark.parametrize(
    ("record", "rejections"),
    [
        # Of 10 rounds of 4 tokens three had all accepted: seven rejections, at least six by the 24 wasted tokens.
        ({"rounds": 10, "draft_n": 40, "draft_n_accepted": 16, "accepted_by_position": [6, 4, 3, 3]}, 7.0),
        # Two drafts were shorter, and may have been accepted whole.
        ({"rounds": 10, "draft_n": 38, "draft_n_accepted": 30, "accepted_by_position": [9, 8, 7, 6]}, 2.0),
        ({"rounds": 10, "draft_n": 40, "draft_n_accepted": 16}, 6.0),
        ({"draft_n": 40, "draft_n_accepted": 40}, 0.0),
        ({"draft_n": 0, "draft_n_accepted": 0}, 0.0),
    ],
)
def test_rejections_are_counted_at_least(make_record: Any, record: dict[str, Any], rejections: float) -> None:
    assert _rejections(make_record("spec", 0, **record), 4) == pytest.approx(rejections)
