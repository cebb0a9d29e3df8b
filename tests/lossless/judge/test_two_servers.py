"""Two servers that ran already: what they differ in beside speculation is not called a violation of speculation."""

from __future__ import annotations

from typing import Any

import pytest

from benchctl.analysis.output_results import Losslessness
from benchctl.data.cell import AttestationRecord, Cell
from benchctl.lossless.judge.run import analyse_run
from tests.lossless.replayed import codes

ARMS = {"baseline": None, "spec-control": None, "spec": {"type": "draft-simple", "max": 4}}
GOOD = {"ids": [1, 2, 3, 4], "text": "abcd", "finish_reason": "length", "prompt_tokens": 5}
TOO_LONG = {"ids": [1, 2, 3, 4, 5], "text": "abcde", "finish_reason": "length", "prompt_tokens": 5}


@pytest.fixture
def judged(make_record: Any, make_run: Any, make_manifest: Any) -> Any:
    """(URLs, the control's answer, what each server reports, the arm, keys of the engine) -> the verdict on an arm that
    gives more tokens than were asked for."""

    def judge(
        urls: dict[str, str | None],
        control: dict[str, Any] | None = None,
        reported: dict[str, list[str]] | None = None,
        arm: str = "spec",
        **engine: Any,
    ) -> Losslessness:
        answers = {"baseline": GOOD, "spec": TOO_LONG} | ({"spec-control": control} if control else {})
        manifest = make_manifest({name: ARMS[name] for name in answers}, 1, 1)
        manifest.recipe |= {"sampling": {"temperature": 0, "top_k": 1, "max_tokens": 4}, "engine": engine}
        for planned in manifest.arms:
            planned.url = urls.get(planned.name)
        manifest.cells = [
            Cell(
                block=0,
                arm=name,
                order=order,
                status="finished",
                started_at="",
                wall_s=1.0,
                log="log",
                attestation=AttestationRecord(state="off", evidence=(reported or {}).get(name, [])),
            )
            for order, name in enumerate(answers)
        ]
        records = [make_record(name, **answer) for name, answer in answers.items()]
        rows = analyse_run(make_run(records, manifest)).losslessness
        return next(row for row in rows if row.arm == arm)

    return judge


TWO = {"baseline": "http://a/v1", "spec": "http://b/v1", "spec-control": "http://c/v1"}


def test_a_difference_between_two_servers_is_undetermined(judged: Any) -> None:
    result = judged(TWO)
    assert (result.verdict, result.counts) == ("undetermined", {"differs": 1})
    assert codes(result)[0] == "speculation-or-servers"
    assert "only_speculation_differs: true" in result.reason and "arm spec-control" in result.reason


@pytest.mark.parametrize("urls", [{}, dict.fromkeys(TWO, "http://a/v1")])
def test_one_server_or_a_launched_one_is_judged(judged: Any, urls: dict[str, str | None]) -> None:
    assert judged(urls).verdict == "violation"


def test_what_a_user_vouches_for_is_named_in_the_verdict(judged: Any) -> None:
    result = judged(TWO, only_speculation_differs=True)
    assert result.verdict == "violation" and codes(result)[0] == "vouched"


def test_the_arms_server_without_speculation_tells_them_apart(judged: Any) -> None:
    alike = judged(TWO, control=GOOD)
    assert alike.verdict == "violation" and codes(alike)[0] == "control-is-target"
    unlike = judged(TWO, control=TOO_LONG)
    assert unlike.verdict == "undetermined" and unlike.reasons[0].values["measured"] is True
    itself = judged(TWO, control=TOO_LONG, arm="spec-control")
    assert itself.verdict == "undetermined" and codes(itself)[0] == "servers-differ"


def test_the_baselines_own_server_is_no_control(judged: Any) -> None:
    assert judged(TWO | {"spec-control": TWO["baseline"]}, control=GOOD).verdict == "undetermined"


def test_what_the_servers_report_unlike_each_other_is_named(judged: Any) -> None:
    reported = {
        "baseline": ["GET /props: build b1, total_slots = 1", "GET /slots: speculative = false"],
        "spec": ["GET /props: build b2, total_slots = 1", "GET /slots: speculative = true"],
    }
    assert judged(TWO, reported=reported).reasons[0].values["reported"] == reported["spec"][0]
    reported["spec"][0] = reported["baseline"][0]
    assert judged(TWO, reported=reported).reasons[0].values["reported"] is None
