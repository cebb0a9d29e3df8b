"""Prompts for which nothing was drafted are noise: they count as 1.00× only where they are shown to have run so."""

from __future__ import annotations

from typing import Any

import pytest

from benchctl.analysis.comparison.compare import compare_runs
from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.speed_results import SpeedUp
from benchctl.lossless.judge.run import analyse_run, judge
from benchctl.words.verdict import explanation

COPIES = {"type": "ngram-simple"}


def speedup(
    make_record: Any, make_run: Any, make_manifest: Any, *, idle: float, spread: float = 0.002, setting: Any = None
) -> SpeedUp:
    """An arm that ran 1.5× on the one prompt for which it drafted, and `idle` times as fast on the other three."""
    records = []
    for block in range(3):
        for index in range(4):
            pace = 1.5 if index == 0 else idle * (1 + spread * (block - 1))
            records.append(make_record("baseline", index, block=block, rate=10.0, draft_n=0))
            drafted = {"draft_n": 8, "draft_n_accepted": 5} if index == 0 else {"draft_n": 0, "draft_n_accepted": 0}
            records.append(make_record("spec", index, block=block, rate=10.0 * pace, **drafted))
    arms = {"baseline": None, "spec": setting or COPIES}
    analysis = analyse_run(make_run(records, make_manifest(arms, 4, 3)))
    return next(row for row in analysis.speedups if row.task == ALL_TASKS)


def test_prompts_without_a_draft_count_as_one_where_they_are_shown_to_be(
    make_record: Any, make_run: Any, make_manifest: Any
) -> None:
    result = speedup(make_record, make_run, make_manifest, idle=1.01)
    assert result.no_draft is not None and result.no_draft.counted
    assert result.no_draft.prompts == 3
    assert result.no_draft.pooled == pytest.approx(1.01, abs=1e-3)
    pooled = 4 / (1 / 1.5 + 3)  # the same pace as the baseline on three of four prompts of equal length
    assert result.pooled == pytest.approx(pooled)
    assert result.by_block == pytest.approx([pooled] * 3), "point and interval come from the same values"
    assert result.interval is not None and result.interval.low == pytest.approx(pooled)
    assert result.median == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("idle", "spread", "setting"),
    [
        (0.52, 0.002, None),  # an engine that pays for looking, as vLLM did
        (1.01, 0.05, None),  # too noisy to tell
        (1.01, 0.002, {"type": "draft-simple", "max": 4}),  # a draft model costs time also where it drafts nothing
    ],
)
def test_else_they_count_as_measured(
    make_record: Any, make_run: Any, make_manifest: Any, idle: float, spread: float, setting: Any
) -> None:
    result = speedup(make_record, make_run, make_manifest, idle=idle, spread=spread, setting=setting)
    assert result.no_draft is None or not result.no_draft.counted
    assert result.pooled == pytest.approx(4 / (1 / 1.5 + 3 / idle), rel=2e-3)


def test_a_run_counts_them(make_record: Any, make_run: Any, make_manifest: Any) -> None:
    records = [
        make_record(arm, index, block=block, rate=10.0, draft_n=8 * (arm == "spec" and index == 0), draft_n_accepted=0)
        for block in range(3)
        for index in range(4)
        for arm in ("baseline", "spec")
    ]
    analysis = analyse_run(make_run(records, make_manifest({"baseline": None, "spec": COPIES}, 4, 3)))
    idle = analysis.speedups[0].no_draft
    assert idle is not None and idle.prompts == 3
    assert idle.pooled == pytest.approx(1.0)
    assert (analysis.acceptance[0].prompts_drafted, analysis.acceptance[0].prompts) == (1, 4)


def test_comparing_two_runs_counts_them_the_same_way(make_record: Any, make_run: Any, make_manifest: Any) -> None:
    """The prompts without a draft ran 1.01× in one run and 0.99× in the other: neither is a change of the arm."""
    runs = []
    for idle in (1.01, 0.99):
        records = [
            make_record(arm, index, block=block, rate=10.0 * pace, draft_n=8 * drafts, draft_n_accepted=5 * drafts)
            for block in range(3)
            for index in range(4)
            for arm in ("baseline", "spec")
            for drafts in [arm == "spec" and index == 0]
            for pace in [1.0 if arm == "baseline" else 1.5 if drafts else idle * (1 + 0.002 * (block - 1))]
        ]
        runs.append(make_run(records, make_manifest({"baseline": None, "spec": COPIES}, 4, 3, run=f"r{idle}")))
    result = compare_runs(*runs, judge=judge)
    spec = next(row for row in result.arms if row.arm == "spec")
    assert spec.speedup.ratio == pytest.approx(1.0)
    assert spec.speedup.a == pytest.approx(4 / (1 / 1.5 + 3)), "what the run itself says"


@pytest.mark.parametrize(
    ("pace", "price"), [((0.5, 0.51, 0.5), True), ((0.7, 1.0, 1.4), False), ((2.0, 2.1, 2.0), False)]
)
def test_wide_is_not_called_noise(
    make_record: Any, make_run: Any, make_manifest: Any, pace: tuple[float, ...], price: bool
) -> None:
    """Prompts without a draft whose interval is wider than ±2 % are told as measured, and as a price where slower."""
    records = [
        make_record(
            arm,
            index,
            block=block,
            rate=10.0 * (pace[block] if drafted == 0 else 1.0),
            draft_n=drafted,
            draft_n_accepted=0,
        )
        for block in range(3)
        for index in range(4)
        for arm in ("baseline", "spec")
        for drafted in [8 if arm == "baseline" or index == 0 else 0]
    ]
    records = [record if record.label == "spec" else record.changed(draft_n=0) for record in records]
    analysis = analyse_run(make_run(records, make_manifest({"baseline": None, "spec": COPIES}, 4, 3)))
    idle = analysis.speedups[0].no_draft
    assert idle is not None and idle.interval is not None and not idle.counted
    assert (idle.interval.high < 1) == price
    assert ("price" in explanation(analysis, analysis.verdicts[0])) == price
