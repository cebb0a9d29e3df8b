"""With a second cell of the baseline every number of an arm is held against the same time: that of both cells.

Recomputed from the lines of the kept runs and of runs made by hand; nothing of the analysis serves as its own witness.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from benchctl.analysis.conditions.load import find_levels
from benchctl.analysis.conditions.split import ConditionRun
from benchctl.analysis.frame import ALL_TASKS, make_frame
from benchctl.analysis.results import Analysis
from benchctl.analysis.speedup import find_latency_speedup, find_whole_speedup
from benchctl.data.store import RunData, open_run
from benchctl.lossless.judge.run import analyse_run
from benchctl.recipes.groups import GroupKey
from tests.analysis.conftest import build_manifest, build_record
from tests.kept_runs import RUNS

SPEC = {"type": "draft-simple", "max": 3}


def twice_measured() -> list[Path]:
    return [
        run
        for run in RUNS
        if any(a.get("again") for a in json.loads((run / "manifest.json").read_text("utf-8"))["arms"])
    ]


def by_hand(second_fails: bool = False) -> RunData:
    """Two cells of the baseline at 10 and 12.5 tok/s, an arm of full rounds, and one with steps that had no draft."""
    manifest = build_manifest({"baseline": None, "full": SPEC, "part": SPEC, "baseline-again": None}, 3, 3)
    manifest.arms[3].again = True
    rounds: dict[str, dict[str, Any]] = {
        "full": {"draft_n": 12, "draft_n_accepted": 6, "rounds": 4},
        "part": {"draft_n": 9, "draft_n_accepted": 4, "rounds": 3},
    }
    rates = {"baseline": 10.0, "full": 14.0, "part": 9.0, "baseline-again": 12.5}
    records = [
        build_record(arm, prompt, block=block, rate=rate * (1 + 0.02 * block - 0.05 * prompt), **rounds.get(arm, {}))
        for arm, rate in rates.items()
        for block in range(3)
        for prompt in range(3)
        if not (second_fails and arm == "baseline-again" and prompt == 1)
    ]
    return RunData(folder=Path("by-hand"), manifest=manifest, records=records, damaged=[])


def runs() -> Iterator[Any]:
    yield pytest.param(by_hand, id="by hand")
    yield pytest.param(lambda: by_hand(second_fails=True), id="by hand, second cell incomplete")
    for folder in twice_measured():
        yield pytest.param(lambda folder=folder: open_run(folder), id=f"{folder.parent.name}")


@pytest.fixture(scope="module", params=runs())
def found(request: pytest.FixtureRequest) -> tuple[RunData, Analysis]:
    run = request.param()
    return run, analyse_run(run)


def sums(run: RunData, arm: str, *, alone: bool = False) -> list[list[float]]:
    """Tokens and seconds after the first, all tokens and whole seconds, of every pair: the arm's, then the baseline's.

    `alone`: against the first cell alone.
    """
    assert run.manifest is not None
    second_name = next(arm.name for arm in run.manifest.arms if arm.again)
    by_arm: dict[str, dict[tuple[Any, ...], Any]] = defaultdict(dict)
    for record in run.records:
        rate = record.tok_per_sec if record.client_tok_per_sec is None else record.client_tok_per_sec
        if record.phase == "measure" and record.error is None and record.n_predicted and rate:
            after = record.n_predicted - 1
            times = (after, after / rate, record.n_predicted, record.e2e_s)
            by_arm[record.label][record.block, record.task, record.prompt_idx] = times
    rows = []
    for key, ours in by_arm[arm].items():
        if key in by_arm[run.manifest.baseline]:
            n, s, whole_n, whole_s = by_arm[run.manifest.baseline][key]
            if key in by_arm[second_name] and not alone:
                second_sums = by_arm[second_name][key]
                s, whole_s = (
                    (s + second_sums[1] / second_sums[0] * n) / 2,
                    (whole_s + second_sums[3] / second_sums[2] * whole_n) / 2,
                )
            rows.append([*ours, n, s, whole_n, whole_s])
    return rows


def ratio(rows: list[list[float]], first: int) -> float:
    tokens, seconds, base_tokens, base_seconds = (sum(row[first + shift] for row in rows) for shift in (0, 1, 4, 5))
    return tokens / seconds / (base_tokens / base_seconds)


def compared(analysis: Analysis) -> Iterator[tuple[str, Any]]:
    for row in analysis.speedups:
        if row.task == ALL_TASKS:
            yield row.arm, row


def test_every_speed_up_is_over_both_cells(found: tuple[RunData, Analysis]) -> None:
    run, analysis = found
    frame = make_frame(run.records, run.manifest)
    checked = 0
    for arm, row in compared(analysis):
        rows = sums(run, arm)
        assert row.pooled == pytest.approx(ratio(rows, 0))
        assert row.end_to_end == pytest.approx(ratio(rows, 2))
        assert row.median == pytest.approx(median(r[0] / r[1] / (r[4] / r[5]) for r in rows))
        common = [min(r[0], r[4]) for r in rows]
        ours, theirs = (sum(c * r[k + 1] / r[k] for c, r in zip(common, rows, strict=True)) for k in (0, 4))
        assert row.length_matched == pytest.approx(theirs / ours)
        number = frame.arms.index(arm)
        assert find_whole_speedup(frame, number).pooled == pytest.approx(row.end_to_end)
        assert find_latency_speedup(frame, number)[0] == pytest.approx(row.end_to_end)
        checked += 1
    assert checked >= 2


def test_what_a_round_costs_gives_the_speed_up_back(found: tuple[RunData, Analysis]) -> None:
    """Tokens a round over its cost in steps, plain steps costing one each, is the speed-up, by definition."""
    _, analysis = found
    splits = {row.arm: row for row in analysis.rounds.splits if row.task == ALL_TASKS}
    speeds = dict(compared(analysis))
    checked = 0
    for cost in analysis.costs:
        split = splits.get(cost.arm)
        pooled = speeds[cost.arm].pooled
        if split is None or pooled is None:
            continue
        assert split.tokens * split.step_s / split.seconds == pytest.approx(pooled), cost.arm
        assert cost.measured == pooled
        checked += 1
        if cost.overhead is None or split.drafted_round_tokens is None:
            continue
        plain = max(0.0, split.tokens - split.drafted_round_tokens)  # the length limit cuts a last round's tokens off
        assert split.tokens / (1 + cost.overhead + plain) == pytest.approx(pooled), cost.arm
        if plain == 0 and cost.alpha is not None and cost.predicted is not None:
            cut = split.tokens / split.drafted_round_tokens
            assert cost.predicted * cut == pytest.approx(pooled), "E / (1 + overhead), where every step is a round"
    assert checked


def test_levels_are_over_both_cells(found: tuple[RunData, Analysis]) -> None:
    run, analysis = found
    frame = make_frame(run.records, run.manifest)
    levels = {row.arm: row for row in find_levels(frame, ConditionRun(run, None), GroupKey())}
    for arm, _ in compared(analysis):
        expected = pytest.approx(ratio(sums(run, arm), 2))
        assert levels[arm].latency_speedup == expected
        assert levels[arm].throughput_speedup in (expected, None)  # None: a prompt failed in one of the two
    assert any(row.throughput_speedup for row in levels.values())


def test_the_second_cell_is_held_against_the_first_alone(found: tuple[RunData, Analysis]) -> None:
    run, analysis = found
    assert run.manifest is not None
    second_name = next(arm.name for arm in run.manifest.arms if arm.again)
    (noise,) = (row for row in analysis.second_cells if row.task == ALL_TASKS)
    assert noise.arm == second_name
    rows = sums(run, second_name, alone=True)
    assert noise.pooled == pytest.approx(ratio(rows, 0))
    assert noise.end_to_end == pytest.approx(ratio(rows, 2))
    for rows_of_arms in (analysis.speedups, analysis.verdicts, analysis.costs):
        assert second_name not in {row.arm for row in rows_of_arms}
