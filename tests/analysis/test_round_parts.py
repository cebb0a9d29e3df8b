"""Each round's time split into its parts: the engine's own times, passes timed apart, and what is left over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchctl.analysis.results import Analysis
from benchctl.analysis.round_results import RoundSplit, UnitCost
from benchctl.analysis.verify_widths import cliffs_and_falls
from benchctl.data.store import RunData
from benchctl.data.traces import CostTraces, DraftAlone, PassTime, TracedArm, WidthTime
from benchctl.lossless.judge.run import analyse_run
from benchctl.reports.tables.rounds import round_splits

DEPTH_4 = {"baseline": None, "spec_d4": {"type": "draft-simple", "max": 4}}
COUNTERS = {"draft_n": 16, "draft_n_accepted": 6, "rounds": 4, "accepted_by_position": [3, 2, 1, 0]}


def passes(*rows: tuple[str, int, int, float]) -> list[PassTime]:
    return [
        PassTime.model_validate({"kind": kind, "width": width, "count": count, "seconds": 9.0, "median_s": seconds})
        for kind, width, count, seconds in rows
    ]


def traces(*spec: tuple[str, int, int, float], draft_alone: DraftAlone | None = None) -> CostTraces:
    """A baseline whose passes took 0.2 s, twice what a step takes in the run; sums are wild, medians are not."""
    arms = [("baseline", passes(("plain", 1, 50, 0.2))), ("spec_d4", passes(*spec))]
    return CostTraces(
        run="r",
        benchctl_version="0",
        made_at="now",
        prompts=["code/0"],
        max_tokens=8,
        arms=[TracedArm(arm=arm, command=[], answers=1, tokens=9, seconds=1.0, passes=result) for arm, result in arms],
        draft_alone=draft_alone,
    )


@pytest.fixture
def analysed(make_record: Any, make_run: Any, make_manifest: Any) -> Any:
    """Ten decoded tokens: 1 s by the baseline, 4 s by the arm in four rounds; `fields` go into the arm's record."""

    def make(costs: CostTraces | None = None, **fields: Any) -> Analysis:
        records = [make_record(rate=10.0), make_record("spec_d4", rate=2.5, **(COUNTERS | fields))]
        run: RunData = make_run(records, make_manifest(DEPTH_4, 1, 1))
        return analyse_run(RunData(run.folder, run.manifest, run.records, [], costs=costs))

    return make


def split(analysis: Analysis) -> RoundSplit:
    return next(row for row in analysis.rounds.splits if row.task == "all")


def unit(analysis: Analysis, part: str, arm: str = "spec_d4") -> UnitCost:
    return next(row for row in analysis.rounds.units if (row.what, row.arm) == (part, arm))


def test_nothing_but_the_counters(analysed: Any) -> None:
    result = split(analysed())
    assert [result.rounds, result.seconds, result.tokens] == pytest.approx([4, 1.0, 2.5])
    assert result.parts == {"not split": pytest.approx(1.0)}
    assert result.inferred == ["not split"]


def test_the_engines_own_draft_time(analysed: Any) -> None:
    result = analysed(phase_s={"draft": 1.6})
    assert split(result).parts == {"draft": pytest.approx(0.4), "verify and left over": pytest.approx(0.6)}
    assert result.costs[0].hindsight == pytest.approx(1 / (4 - 1.6 * (1 - 6 / 16))), "six of sixteen were accepted"
    assert "draft" not in split(result).inferred
    step = unit(result, "draft step")
    assert [step.seconds, step.steps, step.count] == pytest.approx([0.1, 1.0, 16])
    assert step.source == "run"


def test_passes_timed_apart_count_in_steps_of_their_own_process(analysed: Any) -> None:
    apart = traces(("verify", 5, 8, 0.5), ("draft-read", 5, 8, 0.1), ("draft", 4, 8, 0.4))
    result = analysed(apart, phase_s={"draft": 1.6})
    assert split(result).parts == {
        "draft": pytest.approx(0.4),
        "verify": pytest.approx(0.25),  # 2.5 passes of the baseline, which take 0.1 s each in the run
        "draft reads": pytest.approx(0.05),
        "left over": pytest.approx(0.3),
    }
    assert split(result).inferred == ["verify", "draft reads", "left over"]
    assert sum(split(result).parts.values()) == pytest.approx(split(result).seconds)
    assert unit(result, "verify").steps == pytest.approx(2.5)
    widths = {row.width: row.steps for row in result.rounds.units if (row.arm, row.what) == ("baseline", "verify")}
    assert widths == {1: pytest.approx(1.0), 5: pytest.approx(2.5)}


def test_a_hybrid_saves_goes_back_and_reads_again(analysed: Any) -> None:
    apart = traces(
        ("verify", 5, 8, 0.5), ("checkpoint", 1, 8, 0.02), ("restore", 1, 4, 0.01), ("re-evaluate", 2, 4, 0.3)
    )
    result = analysed(apart, phase_s={"draft": 1.6}, n_predicted=13, token_ids=None, content="another answer")
    # Twelve decoded tokens: four rounds, six accepted, and two that re-evaluations brought. A step takes 0.1 s.
    state = (4 * 0.1 + 2 * (0.05 + 1.5)) * 0.1
    assert split(result).parts["state"] == pytest.approx(state / 4)
    assert "plain steps" not in split(result).parts
    assert [unit(result, part).steps for part in ("checkpoint", "restore", "re-evaluation")] == [
        pytest.approx(0.1), pytest.approx(0.05), pytest.approx(1.5)]  # fmt: skip


def test_an_engine_that_times_every_phase(analysed: Any) -> None:
    phases = {"draft": 1.0, "verify": 2.0, "state": 0.4, "plain": 0.2, "other": 0.1}
    result = analysed(phase_s=phases)
    assert split(result).parts == {
        "draft": pytest.approx(0.25),
        "verify": pytest.approx(0.5),
        "state": pytest.approx(0.1),
        "plain steps": pytest.approx(0.05),
        "left over": pytest.approx(0.1),
    }
    assert split(result).inferred == ["left over"]


def test_what_a_search_takes_is_a_part_of_its_own_with_its_share(analysed: Any) -> None:
    result = analysed(phase_s={"draft": 1.0, "verify": 2.0, "search": 0.2})
    assert split(result).parts["search"] == pytest.approx(0.05)
    search = next(column for column in round_splits(result).columns if column.header == "Search")
    assert search.cell is not None
    assert search.cell(split(result)) == f"50.00 ms ({100 * 0.05 / split(result).seconds:.1f} %)"


def test_the_draft_alone_is_inferred(analysed: Any) -> None:
    draft_alone_trace = DraftAlone(command=[], tokens=100, seconds=5.0)
    result = analysed(traces(("verify", 5, 8, 0.5), draft_alone=draft_alone_trace))
    assert unit(result, "draft step").source == "alone"
    assert unit(result, "draft step").inferred
    assert "draft" in split(result).inferred
    assert split(result).parts["draft"] == pytest.approx(0.2)


def test_answers_that_contradict_themselves_are_left_out(analysed: Any) -> None:
    assert analysed(draft_n_accepted=99).rounds.splits == []


def test_tokens_of_a_drafted_round_leave_plain_steps_out(analysed: Any) -> None:
    counters = {"draft_n": 4, "draft_n_accepted": 3, "rounds": 1, "accepted_by_position": [1, 1, 1, 0]}
    result = analysed(ids=list(range(41)), plain_steps=36, **counters)
    assert [split(result).tokens, split(result).drafted_round_tokens] == [40.0, 4.0]
    columns = {column.header: column for column in round_splits(result).columns}
    assert columns["Tokens per round"].text(split(result)) == "4.00"
    assert columns["with plain steps"].text(split(result)) == "40.00"


def test_another_groups_passes_are_not_of_this_target(analysed: Any) -> None:
    """Traces hold the arms of all groups of a run over axes; a width costs on each target what it costs there."""
    timed = traces(("verify", 5, 4, 0.5))
    other_passes = passes(("verify", 5, 4, 50.0))
    timed.arms.append(TracedArm(arm="spec-other", command=[], answers=1, tokens=9, seconds=1.0, passes=other_passes))
    result = analysed(timed)
    widths = {row.width: row.steps for row in result.rounds.units if (row.arm, row.what) == ("baseline", "verify")}
    assert widths == {1: pytest.approx(1.0), 5: pytest.approx(2.5)}


def test_a_jump_of_the_width_curve_is_named_and_even_growth_is_not() -> None:
    def curve(*steps: float) -> list[UnitCost]:
        return [
            UnitCost(arm="b", what="verify", width=width, seconds=cost, steps=cost, count=9, source="traced")
            for width, cost in enumerate(steps, 1)
        ]

    jumping = cliffs_and_falls(curve(1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 2.6, 2.7))
    assert len(jumping) == 1
    assert jumping[0].startswith("Verify width 9 ") and "7 tokens" in jumping[0]
    twice = cliffs_and_falls(curve(*[1] * 8, *[2] * 8, *[3] * 4))
    assert [sentence.split(" is a cliff")[0] for sentence in twice] == ["Verify width 9", "Verify width 17"]
    assert cliffs_and_falls(curve(*range(1, 20))) == []
    assert cliffs_and_falls(curve(1, 1.1, 1.2, 1.6, 1.3, 1.4)) == [], "a single slow width is a disturbance"
    seldom = [unit.model_copy(update={"count": 2}) for unit in curve(1, 1, 3)]
    assert cliffs_and_falls(seldom) == []


def test_a_fall_of_the_width_curve_is_named() -> None:
    """Measured on an H100, widths 1 to 33 of a target of 6 GB in f16: cuBLAS takes over at 17 tokens."""
    steps = json.loads((Path(__file__).parent / "h100-widths.json").read_text())
    curve = [
        UnitCost(arm="b", what="verify", width=width, seconds=cost, steps=cost, count=5, source="traced")
        for width, cost in enumerate(steps, 1)
    ]
    assert cliffs_and_falls(curve) == [
        "Verify width 2 is a cliff: 1.91 target steps, and 1.00 at 1; up to width 16 it stays about there, so a draft "
        "of 15 tokens is verified at the price of one.",
        "Verify width 17 is a fall: 0.78 target steps, and 2.14 at 16; a draft of 16 tokens costs less to verify than "
        "one of 15.",
    ]


def test_rounds_that_were_timed_for_the_curve_are_the_curve(analysed: Any) -> None:
    timed = traces(("verify", 5, 4, 0.5))
    timed.widths = [WidthTime(width=width, seconds=0.2 * cost, count=5) for width, cost in ((1, 1), (5, 2), (17, 0.5))]
    result = analysed(timed)
    widths = {row.width: row.steps for row in result.rounds.units if (row.arm, row.what) == ("baseline", "verify")}
    assert widths == {1: pytest.approx(1), 5: pytest.approx(2), 17: pytest.approx(0.5)}
