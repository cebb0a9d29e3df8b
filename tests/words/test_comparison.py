"""What is said of a comparison. That gates and doubts are right is tested where they are found."""

from __future__ import annotations

import pytest

from benchctl.analysis.comparison.changes import Doubt, Ratio
from benchctl.analysis.comparison.compare import ArmVerdict
from benchctl.analysis.comparison.gates import Gate, GateFailure, GateResult, WorstCase
from benchctl.analysis.comparison.workload import Change
from benchctl.analysis.result import Interval
from benchctl.words.comparison import doubt_sentence, failed_gates, failure_sentence, gate_note

SLOWER = Gate("slower", 0.05)
MEMORY = Gate("memory", 0.05)
LOWER = Ratio(a=1.2, b=1.08, ratio=0.9, interval=Interval(low=0.85, high=0.95, method=""))

FAILURES = [
    (SLOWER, GateFailure("worse", "spec", change=LOWER),
     "spec: 0.900× A's speed-up over the own run's baseline (95 % interval 0.850 to 0.950), slower by more than 5 % "
     "beyond noise."),
    (SLOWER, GateFailure("cannot tell", "spec", at_worst=0.123, blocks=4),
     "spec: cannot tell. At this noise it may be 12.3 % slower, and the gate passes only where 5 % is excluded. An arm "
     "that did not change passes with about 4 blocks in each run."),
    (MEMORY, GateFailure("cannot tell", "spec", at_worst=0.123),
     "spec: cannot tell. At this noise it may be 12.3 % higher, and the gate passes only where 5 % is excluded. An arm "
     "that did not change passes with more runs of A and B."),
    (SLOWER, GateFailure("undetermined", "spec", doubt=Doubt(code="few blocks", counts=(3, 2))),
     "spec: undetermined. A has 3 and B 2 blocks; below 3 in each there is no interval."),
    (MEMORY, GateFailure("not reported"), "undetermined, because A reports no peak memory in every block of an arm."),
    (Gate("lossy"), GateFailure("not judged", overlapping=True),
     "undetermined, because no arm of B beside its baseline was compared one request at a time."),
    (Gate("lossy"), GateFailure("lossy", "spec", verdict=ArmVerdict(arm="spec", verdict="violation", reason="So.",
                                                                    scope=None)),
     "spec: violation. So."),
]  # fmt: skip


@pytest.mark.parametrize(("gate", "failure", "sentence"), FAILURES)
def test_why_a_gate_fails(gate: Gate, failure: GateFailure, sentence: str) -> None:
    assert failure_sentence(gate, failure) == sentence


def test_a_gate_that_holds_says_how_much_worse_an_arm_may_be() -> None:
    passed = GateResult(SLOWER, (), WorstCase("spec", 0.127, 0.95))
    assert gate_note(passed) == "With 95 % confidence no arm is over 12.7 % slower (spec)."
    assert gate_note(GateResult(SLOWER, (), WorstCase("spec", -0.01, 0.95))) == "With 95 % confidence no arm is slower."
    skipped = GateResult(MEMORY, (), other_machine=(Change(what="machine cpu", a="one", b="two"),))
    assert (gate_note(skipped) or "").endswith("only ratios within a run are. machine cpu: one and two.")
    assert list(failed_gates([passed, GateResult(MEMORY, (GateFailure("not in B", "spec"),))])) == [
        "1 of 2 gates failed.",
        "  memory:5%: spec: undetermined, because B has no such arm.",
    ]


@pytest.mark.parametrize(
    ("doubt", "words"),
    [
        (Doubt(code="damaged", reason="records.jsonl was changed."), "records.jsonl was changed."),
        (Doubt(code="a baseline"), "no speed-up"),
        (Doubt(code="not timed"), "No prompt was timed in every block of both runs."),
        (Doubt(code="not reported"), "B does not report it"),
        (Doubt(code="prompts missing", counts=(1, 4)), "1 of the 4 prompts"),
        (Doubt(code="few blocks"), "Below 3 blocks in each run"),
        (Doubt(code="no equal answer"), "not the same work"),
        (Doubt(code="unequal lengths", matched=0.951), "The ratio is 0.95 over the answers of equal length"),
    ],
)
def test_why_a_change_is_unknown(doubt: Doubt, words: str) -> None:
    assert words in doubt_sentence(doubt)
