"""Arms that answered several requests at once: judged by whole answers, against the noise of shared batches."""

from __future__ import annotations

from typing import Any

import pytest

from benchctl.analysis.answers import find_answers
from benchctl.analysis.conditions.split import Group
from benchctl.analysis.frame import make_frame
from benchctl.analysis.losslessness import ArmAudit, DetectionPower
from benchctl.lossless.not_judged import find_not_judged


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, "consistent with the target"),
        ({"beyond": 1}, "violation"),
        ({"p_adjusted": 0.001}, "violation"),
        ({"stated": DetectionPower(nats=0.3, chance=0.79, prompts=48)}, "undetermined"),
        ({"stated": None}, "undetermined"),
        ({"lacking": "the noise was measured at 3 prefixes"}, "undetermined"),
    ],
)
def test_an_audit_of_overlapping_requests_clears_and_condemns(
    make_record: Any, make_run: Any, change: dict[str, Any], verdict: str
) -> None:
    run = make_run([make_record("baseline"), make_record("spec")])
    frame = make_frame(run.records, run.manifest, "baseline")
    fields: dict[str, Any] = {
        "arm": "spec",
        "widths": (3,),
        "slots": 4,
        "by_prefill": False,
        "answers": 1,
        "of": 1,
        "prompts": 1,
    }
    fields |= {"tokens": 11, "diverged": 1, "expected": 0.5, "p": 0.4, "p_adjusted": 0.4, "floor": 0.1, "beyond": 0}
    fields["stated"] = DetectionPower(nats=0.3, chance=0.81, prompts=None)
    audit = ArmAudit(**fields | {"excess_limit": 9.0, "prefixes": 1_000, "changed": 400} | change)
    group = Group(run, "baseline", overlapping=True)
    found = find_not_judged(group, frame, find_answers(frame), 1, judged_elsewhere=True, audit=audit)
    assert found.verdict == verdict
    assert ("4 requests in a batch" in found.reason) == (audit.lacking is None)
    assert ("No violation found" in found.reason) == (verdict != "violation" and audit.lacking is None)
