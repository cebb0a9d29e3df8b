"""A cell that something else on the machine slowed down decides nothing: its times are left out, and that is said."""

from __future__ import annotations

import numpy as np
import pytest

from benchctl.analysis.frame import ALL_TASKS, make_frame
from benchctl.analysis.precision import decided_arms
from benchctl.analysis.results import Analysis
from benchctl.analysis.speed_results import SpeedUp
from benchctl.data.store import RunData
from benchctl.lossless.judge.run import analyse_run
from benchmarks.synthetic_run import BASELINE, Answer, baseline_arm, speculating_arm, synthetic_run

GAIN = 1.1


def run_of(slow: dict[tuple[str, int], float], blocks: int = 5, *, concurrency: int = 1, arms: int = 1) -> RunData:
    """Return a run of arms that are 10 % faster, noise 1 %; `slow`: what the times of a cell are multiplied with."""
    rng = np.random.default_rng(46)
    names = [BASELINE, *(f"arm{number}" for number in range(1, arms + 1))]
    answers = [
        Answer(name, block, prompt, 101, seconds * slow.get((name, block), 1.0) / (1 if name == BASELINE else GAIN))
        for name in names
        for block in range(blocks)
        for prompt, seconds in enumerate(np.geomspace(1, 8, 6) * np.exp(0.01 * rng.standard_normal()))
    ]
    identities = [
        baseline_arm(concurrency=concurrency),
        *(speculating_arm(name, concurrency=concurrency) for name in names[1:]),
    ]
    return synthetic_run(identities, answers, blocks=blocks, prompts=6)


def overall(analysis: Analysis) -> SpeedUp:
    return next(row for row in analysis.speedups if row.task == ALL_TASKS)


def test_a_slow_cell_of_baseline_and_arm_does_not_hide_a_gain() -> None:
    analysis = analyse_run(run_of({(BASELINE, 1): 4 / 3, ("arm1", 3): 4 / 3}))
    row, (verdict,) = overall(analysis), analysis.verdicts
    assert verdict.speed == "faster"
    assert row.blocks == [1, 3, 5] and row.pooled == pytest.approx(GAIN, rel=0.03)
    assert row.interval is not None and row.interval.low > 1.05
    assert row.pairs == 3 * 6 and row.pairs_missing == 0, "they were answered"


def test_the_cells_that_are_left_out_are_named() -> None:
    analysis = analyse_run(run_of({(BASELINE, 1): 4 / 3, ("arm1", 3): 4 / 3}))
    left_out = [caution for caution in analysis.warnings if caution.id == "disturbed-cell"]
    assert [caution.where for caution in left_out] == ["block 2, baseline", "block 4, arm1"]
    assert left_out[1].facts[0].values["percent"] == pytest.approx(25, abs=0.5)


@pytest.mark.parametrize(
    ("slow", "blocks", "concurrency"),
    [
        ({(BASELINE, 1): 4 / 3}, 3, 1),  # of three cells nobody can tell which is disturbed
        ({(BASELINE, 1): 3 / 4}, 5, 1),  # nothing makes a cell faster than it can be
        ({(BASELINE, 1): 1.1}, 5, 1),
        ({("arm1", 0): 4 / 3, ("arm1", 1): 4 / 3, ("arm1", 2): 4 / 3}, 5, 1),  # most are slow: the arm is
        ({(BASELINE, 1): 4 / 3}, 5, 4),
    ],
)
def test_other_cells_stay(slow: dict[tuple[str, int], float], blocks: int, concurrency: int) -> None:
    run = run_of(slow, blocks, concurrency=concurrency)
    assert not make_frame(run.records, run.manifest).disturbed.any()


def test_a_look_does_not_know_later_cells() -> None:
    frame = make_frame((run := run_of({(BASELINE, 1): 4 / 3})).records, run.manifest)
    assert np.argwhere(frame.disturbed).tolist() == [[frame.baseline, 1]]
    assert not frame.until(3).disturbed.any()


def test_arms_are_compared_in_the_blocks_that_both_have() -> None:
    analysis = analyse_run(run_of({("arm1", 1): 4 / 3, ("arm2", 3): 4 / 3}, blocks=6, arms=2))
    rows = {row.arm: row for row in analysis.speedups if row.task == ALL_TASKS}
    assert [rows[name].blocks for name in ("arm1", "arm2")] == [[1, 3, 4, 5, 6], [1, 2, 3, 5, 6]]
    assert decided_arms(rows) == {"arm1": "faster", "arm2": "faster"}, "within 5 % of each other"
