"""The noise floor: a quantile of what was measured, honest about how little that was."""

from __future__ import annotations

import random

import pytest

from benchctl.analysis.replay.noise import FEWEST, find_noise, stretch
from benchctl.data.replays import Position
from tests.analysis.replay.replayed import fork_at, reading, replays, sample


def test_nothing_replayed_is_no_noise_known() -> None:
    noise = find_noise(None, 5)
    assert (noise.floor, noise.prefixes, noise.largest) == (None, 0, None)


def test_a_target_that_never_moves_excuses_nothing() -> None:
    noise = find_noise(replays(sample([0.0] * FEWEST)), 5)
    assert (noise.floor, noise.changed, noise.null_forks) == (0.0, 0, 0)
    assert f"none of {FEWEST} prefixes" in noise.method


def test_too_few_prefixes_say_nothing_even_when_none_moved() -> None:
    noise = find_noise(replays(sample([0.0] * (FEWEST - 1))), 5)
    assert noise.floor is None
    assert str(FEWEST) in noise.method


def test_a_handful_of_changes_gives_a_floor_well_above_them() -> None:
    noise = find_noise(replays(sample([0.1] * 5)), 5)
    assert noise.floor == pytest.approx(0.1 * stretch(5))
    assert noise.floor is not None and noise.floor > 0.35


def test_from_99_changes_on_the_floor_is_the_order_statistic() -> None:
    changes = [0.001 * number for number in range(1, 200)]
    random.Random(1).shuffle(changes)
    noise = find_noise(replays(sample(changes)), 5)
    assert noise.floor == pytest.approx(0.198)  # rank ceil(0.99 * 200) of 199
    assert noise.largest == pytest.approx(0.199)
    assert noise.median == pytest.approx(0.1)


def test_the_sign_of_a_change_does_not_matter() -> None:
    down = find_noise(replays(sample([-0.3] * 120)), 5)
    assert down.floor == pytest.approx(0.3)


def test_changes_of_zero_are_counted_and_make_no_floor_smaller() -> None:
    noise = find_noise(replays(sample([0.0] * 900 + [0.25] * 100)), 5)
    assert (noise.prefixes, noise.changed) == (1000, 100)
    assert noise.floor == pytest.approx(0.25)


def test_other_widths_and_forks_are_left_out() -> None:
    positions = sample([0.1] * 30) + sample([5.0] * 30, width=9, start=100)
    positions += sample([7.0], start=200) + [
        one.model_copy(update={"fork": True, "rival": 77}) for one in sample([7.0], start=200)
    ]
    noise = find_noise(replays(positions), 5)
    assert noise.prefixes == 30
    assert noise.largest == pytest.approx(0.1)
    assert noise.null_places == 31  # the null control does not look at where arms forked


def test_the_null_control_counts_where_the_target_leaves_itself() -> None:
    positions = sample([0.1] * 28) + sample([-2.0, -2.0], margin=1.0, start=100)
    assert find_noise(replays(positions), 5).null_forks == 2


@pytest.mark.parametrize("size", [1, 3, 30, 98])
def test_few_changes_are_stretched_to_hold_99_of_100_further_ones(size: int) -> None:
    factor, rng = stretch(size), random.Random(size)
    trials = 20_000
    exceeded = sum(
        rng.expovariate(1.0) > factor * max(rng.expovariate(1.0) for _ in range(size))
        for _ in range(trials // size + 4000)
    )
    share = exceeded / (trials // size + 4000)
    assert 0.004 < share < 0.017


def test_the_stretch_is_one_at_99() -> None:
    assert stretch(99) == pytest.approx(1.0, abs=1e-6)
    assert stretch(3) == pytest.approx(6.4, abs=0.1)


def at_once(changes: list[float]) -> list[Position]:
    """A sample that was read token by token and at once, beside a fork whose width could not be read."""
    positions = [
        position.model_copy(
            update={"readings": [reading("decode", 1, 3.0, 1, 2), reading("prefill", 40, 3.0 + change, 1, 2)]}
        )
        for position, change in zip(sample(changes), changes, strict=True)
    ]
    fork = fork_at(6, 7, [("decode", 1, 3.0), ("prefill", 40, 3.0)])
    return [*positions, fork.model_copy(update={"absent": {"verify": "it cannot be asked for"}})]


def test_where_no_width_can_be_read_the_noise_is_that_of_reading_at_once() -> None:
    found = find_noise(replays(at_once([0.001 * number for number in range(1, 101)])), 5)
    assert found.by_prefill
    assert found.floor == pytest.approx(0.1)
    assert "reading everything at once" in found.method
    assert (found.null_places, found.null_forks) == (100, 0)


def test_reading_at_once_is_no_noise_of_a_width_that_can_be_read() -> None:
    positions = at_once([0.5] * 40)
    positions[-1] = positions[-1].model_copy(update={"absent": {}})
    found = find_noise(replays(positions), 5)
    assert not found.by_prefill
    assert found.floor is None
