"""What is said of a sweep. That the conclusions are right is tested where they are drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchctl.analysis.conditions.results import Crossing, NotJudged
from benchctl.analysis.conditions.results import Sweep as SweepResult
from benchctl.analysis.result import Interval
from benchctl.data.store import open_run
from benchctl.lossless.judge.run import analyse_run
from benchctl.words.conclusion import sentences_of_sweep
from benchctl.words.sweep import batches, crossings, lead, not_judged
from tests.analysis.conditions.simulated import Server, Sweep, write_sweep

CROSSES = Crossing(
    arm="spec", temperature=0.0, outcome="crosses", at=5.25, helps_at=[1, 4], loses_at=[8], undecided_at=[], doubts={}
)


def sweep(*of_arms: Crossing) -> SweepResult:
    return SweepResult(dimensions=["concurrency"], levels=[], crossings=list(of_arms), unjudged=None)


CROSSINGS: list[tuple[dict[str, Any], str]] = [
    ({}, "spec, total throughput: helps at concurrency 1 and 4; costs throughput at 8: the curves cross at about 5.2; "
     "switch it off from 6 requests in flight on."),
    ({"at_interval": Interval(low=4.3, high=6.14, method="")},
     "spec, total throughput: helps at concurrency 1 and 4; costs throughput at 8: the curves cross at about 5.2 "
     "(95 %: 4.3 to 6.1); switch it off from 6 requests in flight on."),
    ({"at": None}, "spec, total throughput: helps at concurrency 1 and 4; costs throughput at 8: the curves cross "
     "between 4 and 8; switch it off from 8 requests in flight on."),
    ({"loses_at": [], "undecided_at": [2, 8], "outcome": "cannot be said", "doubts": {"contains 1": [2, 8]}},
     "spec, total throughput: helps at concurrency 1 and 4; is undetermined at 2 and 8 (the interval contains 1)."),
    ({"helps_at": [], "outcome": "cannot be said"},
     "spec: only concurrency 8 was measured, so no crossing can be found."),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "sentence"), CROSSINGS)
def test_a_crossing_in_a_sentence(fields: dict[str, Any], sentence: str) -> None:
    assert crossings(sweep(CROSSES.model_copy(update=fields))) == [sentence]


def test_several_temperatures_are_named_and_several_arms_are_counted_first() -> None:
    warm = CROSSES.model_copy(update={"temperature": 0.8})
    assert [sentence.partition(",")[0] for sentence in crossings(sweep(CROSSES, warm))] == [
        "At temperature 0",
        "At temperature 0.8",
    ]
    never = CROSSES.model_copy(update={"arm": "ngram", "outcome": "never helps"})
    assert lead(sweep(CROSSES, never)) == (
        "Total throughput: speculation stops helping as concurrency grows, at about 5.2 with spec, off from 6 on; "
        "costs throughput at every concurrency with ngram."
    )
    assert lead(sweep(CROSSES)) == crossings(sweep(CROSSES))[0]
    open_ended = {"outcome": "cannot be said", "undecided_at": [8]}
    unclear = CROSSES.model_copy(update={**open_ended, "helps_at": [], "loses_at": [1]})
    limitless = CROSSES.model_copy(update={**open_ended, "arm": "ngram", "loses_at": []})
    assert lead(sweep(unclear, limitless)) == (
        "Total throughput: speculation is not shown to help at any concurrency with spec; helps at concurrency 1 and "
        "4, up to an undetermined limit, with ngram."
    )


def test_a_batch_is_named_where_all_of_it_is_in_flight_at_once(tmp_path: Path) -> None:
    write_sweep(tmp_path / "run", Sweep(concurrency=(4, 12), prompts=12), Server(gain=lambda *_: 1.25))
    analysis = analyse_run(open_run(tmp_path / "run"))
    (sentence,) = batches(analysis)
    assert analysis.sweep is not None
    row = next(level for level in analysis.sweep.levels if level.arm == "spec_d4-c12")
    assert sentence.startswith("spec_d4-c12: a batch, from the first request sent to the last answer's end, is served")
    assert f"at {row.makespan_speedup:.2f}× the speed without speculation (95 %: " in sentence
    alone = next(level for level in analysis.sweep.levels if level.arm == "baseline-c12")
    assert row.makespan_s and alone.makespan_s
    assert sentence.endswith(f"): {row.makespan_s / 3:.2f} s in place of {alone.makespan_s / 3:.2f} s.")
    assert sentence in sentences_of_sweep(analysis)
    whole = analysis.model_copy(update={"sweep": analysis.sweep.model_copy(update={"levels": [row, alone]})})
    assert not any("crossing" in text for text in sentences_of_sweep(whole)), "nobody asked for one"


def test_conditions_that_are_not_judged_are_named() -> None:
    text = not_judged(NotJudged(concurrencies=[2, 4], rates=[0.5], temperatures=[0.8], some_judged=False))
    assert "not at concurrency 2, 4 or at 0.5 requests per second: concurrent outputs" in text
    assert "Nothing was measured one request at a time." in text
    assert "Nor is it assessed at temperature 0.8." in text
