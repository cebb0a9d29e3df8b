"""Arms that answered several requests at once: judged by whole answers, against the noise of shared batches."""

from __future__ import annotations

from typing import Any

import pytest

from benchctl.analysis.analyse import conditions_of
from benchctl.analysis.answers import find_answers
from benchctl.analysis.conditions.split import ConditionRun
from benchctl.analysis.frame import make_frame
from benchctl.analysis.losslessness import ArmAudit, DetectionPower
from benchctl.lossless.judge.run import judge_by_scores
from benchctl.lossless.judge.selection import Reach, select_answers
from tests.lossless.replayed import codes

SOUND = ArmAudit(
    arm="spec", widths=(3,), slots=4, by_prefill=False, answers=1, of=1, prompts=1, tokens=11, diverged=1, expected=0.5,
    p=0.4, p_adjusted=0.4, floor=0.1, beyond=0, excess_limit=9.0, prefixes=1_000, changed=400,
    stated=DetectionPower(nats=0.3, chance=0.81, prompts=None),
)  # fmt: skip


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
    audit = SOUND.model_copy(update=change)
    group = ConditionRun(run, "baseline", overlapping=True)
    not_judged = judge_by_scores(group, frame, find_answers(frame), 1, judged_elsewhere=True, audit=audit)
    assert not_judged.verdict == verdict
    tested = verdict != "violation" and audit.lacking is None
    assert codes(not_judged) == (["power", "audit"] if tested else ["audit"])


@pytest.mark.parametrize("slots", [1, 4])
def test_the_width_of_parallel_requests_is_that_of_all(
    make_record: Any, make_run: Any, make_manifest: Any, slots: int
) -> None:
    """Alone, noise is that of one request's round; of four at once, of all their rounds in one batch, at every token:
    also of an answer that drafted nothing itself."""
    manifest = make_manifest({"baseline": None, "spec": {"type": "draft-simple", "max": 4}}, 2, 1)
    manifest.arms = [identity.model_copy(update={"concurrency": slots}) for identity in manifest.arms]
    drafts = [{"draft_n": 8, "draft_n_accepted": 1, "rounds": 5}, {"draft_n": 0, "draft_n_accepted": 0, "rounds": 0}]
    records = [make_record("baseline", index) for index in range(2)]
    records += [make_record("spec", index, ids=[*range(11)], **drafts[index]) for index in range(2)]
    selection = select_answers(
        [(condition.group, condition.frame) for condition in conditions_of(make_run(records, manifest))]
    )
    (arm,) = selection.arms
    assert (arm.widths, arm.slots) == ((5,), slots)
    assert selection.shared == ([(5, slots, "baseline")] if slots > 1 else [])
    reach = [arm.reach.get(answer.key) for answer in arm.answers]
    # The prompt's reading decides the first token; five rounds, as the engine tells, where eight tokens need only two.
    reported = [Reach(6, 10), Reach(0, 0)]
    assert reach == (reported if slots == 1 else [None, None])


def test_sharing_a_batch_is_no_noise_where_the_engine_promises_that(
    make_record: Any, make_run: Any, make_manifest: Any
) -> None:
    manifest = make_manifest({"baseline": None, "spec": {"type": "ngram-simple", "max": 4}}, 1, 1)
    manifest.engine = manifest.engine.model_copy(update={"kind": "vllm"})
    run = make_run([make_record("baseline"), make_record("spec", ids=[*range(11)], draft_n=8, rounds=5)], manifest)
    for setting, slots in (("VLLM_BATCH_INVARIANT=0", 4), ("VLLM_BATCH_INVARIANT=1", 1)):
        update = {"concurrency": 4, "env": [setting]}
        manifest.arms = [identity.model_copy(update=update) for identity in manifest.arms]
        (arm,) = select_answers([(part.group, part.frame) for part in conditions_of(run)]).arms
        assert (arm.overlapping, arm.slots) == (True, slots)


def test_a_looping_answer_is_named_and_judged_by_its_scores(make_record: Any, make_run: Any) -> None:
    """As one request at a time: noise may tip any answer into a loop. A missing answer leaves it undetermined."""
    loop = {"text": "again and " * 40, "ids": [7, 8] * 40}
    for fields, verdict in (
        (loop, "consistent with the target"),
        ({"error": {"kind": "http", "message": "HTTP 500"}}, "undetermined"),
    ):
        run = make_run([make_record("baseline"), make_record("spec", **fields)])
        frame = make_frame(run.records, run.manifest, "baseline")
        not_judged = judge_by_scores(
            ConditionRun(run, "baseline", overlapping=True),
            frame,
            find_answers(frame),
            1,
            judged_elsewhere=False,
            audit=SOUND,
        )
        assert not_judged.verdict == verdict
        flaw = not_judged.reasons[-1]
        assert (flaw.code, flaw.values["count"]) == ("degenerate-answers" if fields is loop else "unfit-answers", 1)
