"""A second cell of the baseline in every block: planned where many arms share it, and its times are the baseline's."""

from __future__ import annotations

from typing import Any

import pytest

from benchctl.lossless.judge.run import analyse_run
from benchctl.measurement.plan import arms_of_block, with_second_baseline
from benchctl.reports.figures import arms
from benchmarks.bundled_runs import bundled_recipe, drafting, plain


def test_many_arms_share_a_baseline_that_is_measured_twice() -> None:
    few = bundled_recipe([plain("baseline"), *(drafting(f"d{depth}", depth=depth) for depth in range(1, 6))])
    assert with_second_baseline(few) is few
    many = with_second_baseline(few.model_copy(update={"arms": [*few.arms, drafting("d6", depth=6)]}))
    assert [arm.name for arm in many.arms][-1] == "baseline-again"
    assert (many.arms[-1].speculation, many.arms[-1].again, many.baseline) == (None, True, "baseline")
    assert with_second_baseline(many) is many, "also when it is resumed"
    places = [[arm.name for arm in arms_of_block(many, block)].index("baseline-again") for block in range(8)]
    assert sorted(places) == list(range(8))
    swept = many.model_copy(update={"arms": [arm.model_copy(update={"concurrency": 2}) for arm in few.arms * 2]})
    assert with_second_baseline(swept) is swept


def test_both_cells_are_the_baselines_pace(make_record: Any, make_run: Any, make_manifest: Any) -> None:
    """The baseline's cell had a slow moment, its second one a fast one: an equal arm is neither faster nor slower."""
    rates = {"baseline": 80.0, "baseline-again": 133.0 + 1 / 3, "spec": 100.0}
    manifest = make_manifest(
        {"baseline": None, "spec": {"type": "draft-simple", "max": 4}, "baseline-again": None}, 2, 3
    )
    manifest.arms[2].again = True
    records = [
        make_record(arm, index, block=block, tok_per_sec=rate, client_tok_per_sec=rate)
        for block in range(3)
        for arm, rate in rates.items()
        for index in range(2)
    ]
    analysis = analyse_run(make_run(records, manifest))
    assert [verdict.arm for verdict in analysis.verdicts] == ["spec"], "the second cell is no arm of its own"
    assert {row.arm for row in analysis.consistency} >= {"baseline-again"}
    figure = arms.draw_speedup(analysis)
    assert figure is not None
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["spec"], "nor a row of the figure"
    overall = next(row for row in analysis.speedups if row.task == "all")
    assert overall.pooled == pytest.approx(1.0)
    manifest.arms[2].again = False
    without = {row.arm: row.pooled for row in analyse_run(make_run(records, manifest)).speedups if row.task == "all"}
    assert without["spec"] == pytest.approx(1.25)
