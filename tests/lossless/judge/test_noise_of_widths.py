"""The noise floor of single divergences: what noise hardly passes in a whole run, and how little was measured."""

from __future__ import annotations

import random

import pytest

from benchctl.data.scores import Position
from benchctl.lossless.judge.divergence import FEWEST, find_noise
from tests.lossless.replayed import divergence_at, reading, sample, scores


def test_nothing_replayed_is_no_noise_known() -> None:
    noise = find_noise(None, 5)
    assert (noise.floor, noise.prefixes, noise.largest) == (None, 0, None)


def test_a_target_that_never_moves_excuses_nothing() -> None:
    noise = find_noise(scores(sample([0.0] * FEWEST)), 5)
    assert (noise.floor, noise.changed, noise.null_divergences) == (0.0, 0, 0)
    assert f"none of {FEWEST} prefixes" in noise.method


def test_too_few_prefixes_show_nothing_even_when_none_moved() -> None:
    noise = find_noise(scores(sample([0.0] * (FEWEST - 1))), 5)
    assert noise.floor is None
    assert str(FEWEST) in noise.method


def test_a_handful_of_changes_gives_a_floor_well_above_them() -> None:
    few = find_noise(scores(sample([-0.1, -0.08, -0.05, -0.02, -0.01])), 5)
    many = find_noise(scores(sample([-0.1, -0.08, -0.05, -0.02, -0.01] * 40)), 5)
    assert few.floor is not None and many.floor is not None
    assert few.floor > 0.35
    assert many.floor < few.floor / 2


def test_more_tokens_are_more_places_at_which_noise_may_reach_far() -> None:
    rng = random.Random(1)
    changes = [rng.gauss(0, 0.1) for _ in range(1000)]
    margins = [rng.uniform(0, 1) for _ in changes]
    positions = [
        position
        for number, (change, margin) in enumerate(zip(changes, margins, strict=True))
        for position in sample([change], margin=margin, start=number)
    ]
    few, many = (find_noise(scores(positions), 5, tokens=tokens).floor for tokens in (1_000, 100_000))
    assert few is not None and many is not None
    assert 0.3 < few < many < 1.0  # 3 to 10 standard deviations
    method = find_noise(scores(positions), 5, tokens=1_000).method
    assert "1 of 200 runs of 1,000 tokens" in method


def test_changes_where_the_target_is_sure_do_not_widen_the_floor() -> None:
    positions = [
        *sample([-0.1, 0.1, 0.05, -0.05] * 50, margin=0.5),
        *sample([-0.54] * 20, margin=3.0, start=300),
    ]
    noise = find_noise(scores(positions), 5, tokens=300)
    assert noise.largest == pytest.approx(0.54)
    assert noise.largest_at_small == pytest.approx(0.1)
    assert noise.floor is not None and noise.floor <= 0.5


def test_other_widths_and_divergences_are_left_out() -> None:
    positions = sample([0.1] * 30) + sample([5.0] * 30, width=9, start=100)
    positions += sample([0.2], start=200) + [
        position.model_copy(update={"fork": True, "rival": 77}) for position in sample([7.0], start=200)
    ]
    noise = find_noise(scores(positions), 5)
    assert (noise.prefixes, noise.null_places) == (31, 31)  # a prefix of the sample counts, diverging or not
    assert noise.largest == pytest.approx(0.2)


def test_the_null_control_counts_where_the_target_leaves_itself() -> None:
    positions = sample([0.1] * 28) + sample([-2.0, -2.0], margin=1.0, start=100)
    assert find_noise(scores(positions), 5).null_divergences == 2


def at_once(changes: list[float]) -> list[Position]:
    """A sample that was read token by token and at once, beside a divergence whose width could not be read."""
    positions = [
        position.model_copy(
            update={"readings": [reading("decode", 1, 3.0, 1, 2), reading("prefill", 40, 3.0 + change, 1, 2)]}
        )
        for position, change in zip(sample(changes), changes, strict=True)
    ]
    divergence = divergence_at(6, 7, [("decode", 1, 3.0), ("prefill", 40, 3.0)])
    return [*positions, divergence.model_copy(update={"absent": {"verify": "it cannot be asked for"}})]


def test_where_no_width_can_be_read_the_noise_is_that_of_reading_at_once() -> None:
    noise = find_noise(scores(at_once([0.001 * number for number in range(1, 101)])), 5)
    assert noise.by_prefill
    assert noise.floor is not None and 0 < noise.floor <= 3.0
    assert "everything at once" in noise.method
    assert (noise.null_places, noise.null_divergences) == (100, 0)


def test_reading_at_once_is_no_noise_of_a_width_that_can_be_read() -> None:
    positions = at_once([0.5] * 40)
    positions[-1] = positions[-1].model_copy(update={"absent": {}})
    noise = find_noise(scores(positions), 5)
    assert not noise.by_prefill
    assert noise.floor is None
