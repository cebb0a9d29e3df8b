"""The depth by load that measured levels give."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchctl.analysis.conditions.results import Level
from benchctl.analysis.conditions.schedule import find_schedule, mixed_load
from benchctl.data.store import open_run
from benchctl.lossless.judge.run import analyse_run
from tests.analysis.conditions.simulated import Server, Sweep, write_sweep

GAINS = {"spec_d4": {1: 1.6, 2: 1.3, 4: 0.95, 8: 0.7}, "spec_d2": {1: 1.3, 2: 1.25, 4: 1.1, 8: 0.9}}
ARMS = {"baseline": None, **{arm: {"type": "draft-simple", "max": int(arm[-1])} for arm in GAINS}}


def levels(folder: Path, blocks: int = 3) -> list[Level]:
    server = Server(gain=lambda arm, concurrency, temperature: GAINS[arm][concurrency])
    write_sweep(folder / "run", Sweep(concurrency=(1, 2, 4, 8), arms=ARMS, prompts=24, blocks=blocks), server)
    sweep = analyse_run(open_run(folder / "run")).sweep
    assert sweep is not None
    return sweep.levels


def test_the_deepest_draft_that_pays_is_taken_and_none_where_none_does(tmp_path: Path) -> None:
    rows = levels(tmp_path)
    steps = find_schedule(rows, {"spec_d4": 4, "spec_d2": 2})
    # At 5 the line of spec_d2 from 1.1 at 4 to 0.9 at 8 is still above 1, at 6 it is not.
    assert [(step.first, step.last, step.depth, step.arm) for step in steps] == [
        (1, 2, 4, "spec_d4"),
        (3, 5, 2, "spec_d2"),
        (6, 8, 0, None),
    ]
    assert steps[0].gain == pytest.approx(next(row.throughput_speedup for row in rows if row.arm == "spec_d4-c1"))
    assert steps[2].gain is None
    deep = mixed_load(rows, "spec_d4", "baseline")
    alone, with_arm = (
        sum(1 / (row.throughput or 0) for row in rows if row.of == arm) for arm in ("baseline", "spec_d4")
    )
    assert deep is not None and deep.ratio == pytest.approx(alone / with_arm)
    assert deep.interval is not None and deep.interval.low < deep.ratio < deep.interval.high
    assert mixed_load(rows, "spec_d4", "ngram") is None


@pytest.mark.parametrize("update", [{"throughput_speedup": None, "throughput_interval": None}, None])
def test_a_depth_is_not_taken_beyond_the_loads_at_which_it_was_measured(
    tmp_path: Path, update: dict[str, None] | None
) -> None:
    """Neither where it lacks a level, nor where its highest one has no value."""
    rows = [
        row if row.of == "baseline" or row.concurrency < 4 else row.model_copy(update=update)
        for row in levels(tmp_path)
        if update is not None or row.of == "baseline" or row.concurrency < 4
    ]
    assert [(step.first, step.last, step.depth) for step in find_schedule(rows, {"spec_d4": 4})] == [
        (1, 2, 4),
        (3, 8, 0),
    ]


def test_what_is_not_shown_to_help_is_off(tmp_path: Path) -> None:
    """Two blocks give no interval."""
    assert [(step.first, step.last, step.depth) for step in find_schedule(levels(tmp_path, 2), {"spec_d4": 4})] == [
        (1, 8, 0)
    ]
