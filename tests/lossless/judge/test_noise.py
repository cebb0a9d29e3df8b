"""The distribution of losses: as measured, with a tail that promises no more than the sample holds."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest

from benchctl.lossless.judge import noise
from benchctl.lossless.judge.audit import find_power
from benchctl.lossless.judge.noise import FEWEST_SMALL, Noise, Places, fit_tail


def noise_of(losses: np.ndarray, margins: np.ndarray | float = 0.5, answers: int = 10) -> Noise:
    return Noise(np.broadcast_to(margins, losses.shape), losses, np.arange(len(losses)) % answers)


def test_chances_are_those_measured_up_to_the_tail_and_fall_smoothly_beyond_it() -> None:
    rng = np.random.default_rng(1)
    tail = fit_tail(rng.normal(0, 0.1, 2_000))
    chances = tail.chance_above(np.array([-1.0, 0.0, 0.1, 0.2, 0.3, 0.5, 1.0]))
    assert chances[:4] == pytest.approx([1.0, 0.5, 0.159, 0.023], abs=0.02)
    assert (np.diff(chances) < 0).all()
    assert 0 < chances[-1] < 1e-8


def test_a_small_sample_promises_less_than_a_large_one() -> None:
    rng = np.random.default_rng(2)
    small, large = (fit_tail(rng.exponential(0.1, size)) for size in (40, 4_000))
    far = np.array([1.5])
    assert small.chance_above(far)[0] > 20 * large.chance_above(far)[0]


def test_the_tail_holds_what_further_losses_do() -> None:
    """What is said to be exceeded with a chance of 0.2 % is, by a further exponential loss, averaged over samples."""
    rng = np.random.default_rng(3)
    grid = np.linspace(0, 40, 4_001)
    limits = [grid[np.argmax(fit_tail(rng.exponential(1.0, 100)).chance_above(grid) <= 0.002)] for _ in range(1_000)]
    assert 0.001 < np.mean(np.exp(-np.array(limits))) < 0.003


def test_nothing_that_ever_moved_flips_nothing() -> None:
    silent = noise_of(np.zeros(1_000))
    assert silent.silent
    assert silent.tail.chance_above(np.array([0.0, 0.1])).tolist() == [0.0, 0.0]
    assert silent.floor(np.full(10, 0.1), 0.005) == silent.floor_of(10**6, 0.005) == 0.0


def test_gains_alone_are_taken_for_losses() -> None:
    assert fit_tail(np.full(100, -0.2)).chance_above(np.array([0.1]))[0] > 0.1


def test_noise_is_that_at_small_margins() -> None:
    margins = np.concatenate([np.full(60, 0.5), np.full(60, 3.0)])
    noise = noise_of(np.concatenate([np.full(60, 0.1), np.full(60, 0.54)]), margins)
    assert len(noise.small.losses) == 60
    assert noise.small.losses.max() == pytest.approx(0.1)
    sure = noise_of(np.full(100, 0.1), np.linspace(2, 9, 100))
    assert len(sure.small.losses) == FEWEST_SMALL


def test_the_floor_is_exceeded_at_its_level() -> None:
    rng = np.random.default_rng(4)
    places = rng.uniform(0, 4, 2_000)
    passed = 0
    for _ in range(300):
        noise = noise_of(rng.normal(0, 0.1, 1_000), rng.uniform(0, 1, 1_000))
        flips = rng.normal(0, 0.1, len(places)) > places
        passed += bool((places[flips] > noise.floor(places, 0.05)).any())
    assert passed <= 0.09 * 300


def test_samples_of_answers_are_drawn_once_for_a_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A power is simulated up to sixteen times, for more and more prompts, with the same samples."""
    rng, fit = np.random.default_rng(1), Mock(side_effect=fit_tail)
    monkeypatch.setattr(noise, "fit_tail", fit)
    measured = Noise(np.full(400, 0.5), rng.normal(0, 0.1, 400), np.repeat(np.arange(8), 50))
    places = Places.everywhere(rng.exponential(2.0, 50), np.zeros(50, np.bool_), np.repeat(np.arange(5), 10))
    find_power(measured, places, 0.05, 5, level=0.005, proposed=0.05)
    assert fit.call_count <= noise.SAMPLES + 1
