"""Warnings are a closed set, each raised by what it names and by nothing else; verdicts say what follows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from benchctl.analysis.decision_results import Verdict
from benchctl.analysis.results import Analysis
from benchctl.analysis.speed_results import SpeedUp
from benchctl.analysis.warnings import KINDS
from benchctl.lossless.judge.run import analyse_run
from benchctl.words.conclusion import headline
from benchctl.words.numbers import no_interval
from benchctl.words.warnings import TEXTS, seen, todo, why

DOCS = Path(__file__).parents[2] / "docs"
ARMS = {"baseline": None, "spec": {"type": "ngram-simple"}}


def steady_records(make_record: Any, prompts: int = 6, blocks: int = 3) -> list[Any]:
    return [
        make_record(arm, index, block=block, rate=rate, started_at=f"2026-11-21T1{block}:00:0{index}+00:00")
        for block in range(blocks)
        for arm, rate in (("baseline", 10.0), ("spec", 12.0))
        for index in range(prompts)
    ]


def cell(block: int, arm: str, **more: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"block": block, "arm": arm, "order": 0, "status": "finished"}
    return values | {"started_at": "2026-11-21T11:00:00+00:00", "wall_s": 1.0, "log": "logs/x.log"} | more


def ids(analysis: Analysis) -> set[str]:
    return {warning.id for warning in analysis.warnings}


def test_a_sound_run_warns_of_nothing(make_record: Any, make_run: Any, make_manifest: Any) -> None:
    analysis = analyse_run(make_run(steady_records(make_record), make_manifest(ARMS, 6, 3)))
    assert analysis.warnings == []
    verdict = analysis.verdicts[0]
    assert (verdict.speed, verdict.lossless, verdict.attestation) == ("faster", "identical", "unknown")
    assert verdict.speedup == pytest.approx(1.2) and verdict.doubt is None


@pytest.mark.parametrize(
    ("step", "observed"),
    [
        (-1.0, "The baseline fell from 9.5 to 5.5 tok/s (-42 %) between its first and last prompts: heat, "),
        (1.0, "The baseline rose from 10.5 to 14.5 tok/s (+38 %) between its first and last prompts: other "
         "work may have ended, "),
    ],
)  # fmt: skip
def test_a_baseline_that_changes_its_rate_within_a_block_is_drift(
    make_record: Any, make_run: Any, make_manifest: Any, step: float, observed: str
) -> None:
    records = [
        record.changed(client_tok_per_sec=10.0 + step * record.prompt_idx)
        if record.label == "baseline"
        else record.changed(client_tok_per_sec=12.0)
        for record in steady_records(make_record)
    ]
    drift = [
        warning
        for warning in analyse_run(make_run(records, make_manifest(ARMS, 6, 3))).warnings
        if warning.id == "drift"
    ]
    assert [warning.where for warning in drift] == ["block 1, baseline"]
    assert seen(drift[0]).startswith(observed)
    assert "cool" not in todo(drift[0]), "a rate that rose was not slowed by heat"


def test_a_client_that_wakes_up_late_is_no_other_clock(make_record: Any, make_run: Any, make_manifest: Any) -> None:
    # 2 % of ten tokens at 1000 tok/s are 0.2 ms; at 10 tok/s they are 20 ms, and something else was timed.
    for rate, expected in ((1000.0, set()), (10.0, {"clock-mismatch"})):
        records = [
            make_record(record.label, record.prompt_idx, block=record.block, rate=rate, tok_per_sec=1.02 * rate)
            for record in steady_records(make_record)
        ]
        assert ids(analyse_run(make_run(records, make_manifest(ARMS, 6, 3)))) == expected


def test_answers_without_a_decode_rate_have_a_lower_limit(make_record: Any, make_run: Any, make_manifest: Any) -> None:
    records = [
        record.changed(tok_per_sec=None, client_tok_per_sec=None, client_tok_per_sec_least=200.0 + record.block)
        if record.label == "spec" and record.prompt_idx < 2
        else record
        for record in steady_records(make_record)
    ]
    analysis = analyse_run(make_run(records, make_manifest(ARMS, 6, 3)))
    (warning_found,) = [warning for warning in analysis.warnings if warning.id == "first-event"]
    assert warning_found.where == "spec"
    assert "6 of 18 answers" in seen(warning_found)
    assert "at least 201.0 tok/s" in seen(warning_found)


def test_load_before_a_cell_is_reported_with_the_worst(make_record: Any, make_run: Any, make_manifest: Any) -> None:
    # Below 2 nobody else works before the first cell; before later ones the run itself may have added up to 4.
    loads = [(0, "baseline", 0.2), (0, "spec", 5.5), (1, "baseline", 6.4), (1, "spec", 3.5)]
    cells = [
        cell(block, arm, load_before=load, started_at=f"2026-11-21T11:0{minute}:00+00:00")
        for minute, (block, arm, load) in enumerate(loads)
    ]
    manifest = make_manifest(ARMS, 6, 3, cells=cells, machine={"cores": 4})
    analysis = analyse_run(make_run(steady_records(make_record), manifest))
    assert [seen(warning) for warning in analysis.warnings] == [
        "1 of 4 cells started at a higher load than the run itself explains; "
        "the highest was 6.4 on 4 cores, before block 2, baseline."
    ]


def test_load_before_the_first_cell_is_not_the_runs_own(make_record: Any, make_run: Any, make_manifest: Any) -> None:
    manifest = make_manifest(ARMS, 6, 3, cells=[cell(0, "baseline", load_before=2.5)], machine={"cores": 4})
    assert ids(analyse_run(make_run(steady_records(make_record), manifest))) == {"high-load"}


def test_a_failed_cell_is_named_and_a_later_attempt_replaces_it(
    make_record: Any, make_run: Any, make_manifest: Any
) -> None:
    failed = cell(1, "spec", status="failed", error={"kind": "crash", "message": "The engine died."})
    records = steady_records(make_record)
    analysis = analyse_run(make_run(records, make_manifest(ARMS, 6, 3, cells=[failed])))
    assert analysis.failed_cells == ["block 2, spec: The engine died."]
    assert ids(analysis) == {"failed-cell"}
    retried = analyse_run(make_run(records, make_manifest(ARMS, 6, 3, cells=[failed, cell(1, "spec", attempt=1)])))
    assert (retried.failed_cells, retried.warnings) == ([], [])


@pytest.mark.parametrize("arm", ["spec", "baseline"])
def test_a_failed_attestation_leaves_the_speed_unknown_and_says_the_remedy(
    make_record: Any, make_run: Any, make_manifest: Any, arm: str
) -> None:
    attested = {"state": "failed", "evidence": [], "reason": "Nothing was drafted.", "remedy": "Add --spec-type."}
    manifest = make_manifest(ARMS, 6, 3, cells=[cell(0, arm, attestation=attested)])
    records = [record for record in steady_records(make_record) if (record.block, record.label) != (0, arm)]
    analysis = analyse_run(make_run(records, manifest))
    verdict = analysis.verdicts[0]
    assert (verdict.speed, verdict.reason) == ("unknown", "refused")
    assert verdict.refusal == "Nothing was drafted. Add --spec-type."
    assert verdict.lossless == "undetermined"
    assert verdict.attestation == ("failed" if arm == "spec" else "unknown")
    assert analysis.failed_cells == [f"block 1, {arm}: Nothing was drafted."]


def test_speculation_that_never_fired_is_a_state_of_its_own(
    make_record: Any, make_run: Any, make_manifest: Any
) -> None:
    cells = [cell(block, "spec", attestation={"state": "idle", "evidence": []}) for block in range(3)]
    analysis = analyse_run(make_run(steady_records(make_record), make_manifest(ARMS, 6, 3, cells=cells)))
    assert ids(analysis) == {"never-fired"}
    verdict = analysis.verdicts[0]
    assert verdict.attestation == "idle"
    assert verdict.speedup == pytest.approx(1.2)
    assert verdict.speed == "unknown"  # what never drafted cannot have made it faster
    assert (verdict.reason, verdict.doubt) == ("never fired", "not drafted")


@pytest.mark.parametrize(("accepted", "dead"), [(0, True), (3, False)])
def test_a_drafter_whose_drafts_are_all_rejected_is_dead(
    make_record: Any, make_run: Any, make_manifest: Any, accepted: int, dead: bool
) -> None:
    records = [
        record.changed(draft_n=40, draft_n_accepted=accepted, rounds=10) if record.label == "spec" else record
        for record in steady_records(make_record)
    ]
    arms = {"baseline": None, "spec": {"type": "draft-simple", "max": 4}}
    analysis = analyse_run(make_run(records, make_manifest(arms, 6, 3)))
    warnings = [warning for warning in analysis.warnings if warning.id == "dead-drafter"]
    assert bool(warnings) == dead
    if dead:
        assert seen(warnings[0]).startswith("720 tokens were drafted and 0 accepted. Causes seen in llama.cpp: ")


def test_a_cell_that_crashed_before_it_drafted_is_not_idle(make_record: Any, make_run: Any, make_manifest: Any) -> None:
    error = {"kind": "crash", "message": "The engine ended with signal SIGABRT."}
    crashed = {"attestation": {"state": "idle", "evidence": []}, "status": "failed", "error": error}
    cells = [cell(block, "spec", **crashed) for block in range(3)]
    records = [record for record in steady_records(make_record) if record.label != "spec"]
    analysis = analyse_run(make_run(records, make_manifest(ARMS, 6, 3, cells=cells)))
    assert "never-fired" not in ids(analysis)
    assert analysis.verdicts[0].attestation == "unknown"
    assert len(analysis.failed_cells) == 3


def test_missing_token_ids_are_reported_with_their_reason(make_record: Any, make_run: Any, make_manifest: Any) -> None:
    gap = {"token_ids": None, "token_sha": None, "token_gap": "incomplete UTF-8"}
    records = [
        make_record(record.label, record.prompt_idx, block=record.block, rate=record.tok_per_sec, **gap)
        if record.prompt_idx == 2
        else record
        for record in steady_records(make_record)
    ]
    analysis = analyse_run(make_run(records, make_manifest(ARMS, 6, 3)))
    assert ids(analysis) == {"token-ids-withheld"}
    assert all("incomplete UTF-8" in seen(warning) for warning in analysis.warnings)


def test_undecided_when_the_interval_holds_one_and_is_wide(make_record: Any, make_run: Any, make_manifest: Any) -> None:
    speeds = {0: 0.8, 1: 1.0, 2: 1.25}
    records = [
        record.changed(client_tok_per_sec=10.0 * (speeds[record.block] if record.label == "spec" else 1.0))
        for record in steady_records(make_record)
    ]
    verdict = analyse_run(make_run(records, make_manifest(ARMS, 6, 3))).verdicts[0]
    assert verdict.speed == "undecided"
    assert verdict.more_blocks and verdict.within is None
    assert verdict.speedup == pytest.approx(0.98, abs=0.005)


def test_an_arm_that_is_shown_to_be_no_different_is_within(make_record: Any, make_run: Any, make_manifest: Any) -> None:
    speeds = {0: 0.998, 1: 1.0, 2: 1.003}
    records = [
        record.changed(client_tok_per_sec=10.0 * (speeds[record.block] if record.label == "spec" else 1.0))
        for record in steady_records(make_record)
    ]
    verdict = analyse_run(make_run(records, make_manifest(ARMS, 6, 3))).verdicts[0]
    assert verdict.speed == "within"
    assert verdict.within is not None and 0.002 < verdict.within < 0.01 and verdict.more_blocks is None


def arms_of_luck(make_record: Any, arms: int, gain: float) -> list[Any]:
    """Five blocks in which the first arm is faster by `gain`, give or take a tenth of it; the others not at all."""
    return [
        make_record(name, index, block=block, rate=10.0 * (1 + gain * (1 + 0.1 * (block - 2)) * (name == "arm0")))
        for block in range(5)
        for name in ("baseline", *(f"arm{number}" for number in range(arms)))
        for index in range(2)
    ]


def test_what_one_arm_may_claim_alone_it_may_not_among_many(
    make_record: Any, make_run: Any, make_manifest: Any
) -> None:
    def first(arms: int) -> tuple[Verdict, SpeedUp]:
        kinds = {"baseline": None} | {f"arm{number}": {"type": "ngram-simple"} for number in range(arms)}
        records = [
            row.changed(draft_n=4, draft_n_accepted=2) if row.label != "baseline" else row
            for row in arms_of_luck(make_record, arms, 0.01)
        ]
        records = [
            record.changed(
                client_tok_per_sec=9.9 if (record.label, record.block) == ("arm0", 0) else record.client_tok_per_sec
            )
            for record in records
        ]
        analysis = analyse_run(make_run(records, make_manifest(kinds, 2, 5)))
        return analysis.verdicts[0], analysis.speedups[0]

    single, among = first(1), first(40)
    assert single[1].pointwise == among[1].pointwise
    assert single[1].pointwise == single[1].interval
    assert among[1].interval is not None and single[1].interval is not None
    assert among[1].interval.low < single[1].interval.low
    assert among[1].interval.high > single[1].interval.high
    assert "40 claims" in among[1].interval.method


def test_a_gain_from_one_prompt_alone_is_open_for_others_like_them(
    make_record: Any, make_run: Any, make_manifest: Any
) -> None:
    def drafted(record: Any) -> Any:
        if record.label == "baseline":
            return record
        lucky = record.prompt_idx == 0
        steady = 1 + 0.002 * record.block
        return record.changed(
            draft_n=8 * lucky,
            draft_n_accepted=8 * lucky,
            rounds=2 * lucky,
            client_tok_per_sec=steady * (20.0 if lucky else 10.0),
        )

    records = [drafted(record) for record in steady_records(make_record)]
    analysis = analyse_run(make_run(records, make_manifest(ARMS, 6, 3)))
    verdict, accepted = analysis.verdicts[0], analysis.acceptance[0]
    assert (accepted.prompts_drafted, accepted.prompts) == (1, 6)
    assert verdict.speed == "faster" and verdict.like_these is not None
    assert not verdict.like_these.excludes_one
    sentence = headline(analysis)
    assert "The gain holds for these 6 prompts" in sentence and "over all 6 prompts (1 with a draft)" in sentence
    assert "at least 12" in sentence


def test_the_fastest_of_several_is_marked_as_selected(make_record: Any, make_run: Any, make_manifest: Any) -> None:
    kinds = {"baseline": None, "arm0": {"type": "ngram-simple"}, "arm1": {"type": "ngram-simple"}}
    records = [
        row.changed(draft_n=4, draft_n_accepted=2) if row.label != "baseline" else row
        for row in arms_of_luck(make_record, 2, 0.5)
    ]
    first, second = analyse_run(make_run(records, make_manifest(kinds, 2, 5))).verdicts
    assert (first.speed, first.selected, second.selected) == ("faster", True, False)
    assert (first.selected_of, second.selected_of) == (2, None)


def test_every_warning_says_why_and_what_to_do(make_record: Any, make_run: Any) -> None:
    assert list(TEXTS) == list(KINDS)
    for texts in TEXTS.values():
        assert texts.why.endswith(".") and texts.todo.endswith(".")
    analysis = analyse_run(
        make_run([make_record(), make_record("spec", ids=[1])], damaged=["records.jsonl:3 is cut off."])
    )
    assert ids(analysis) <= set(KINDS)
    assert ids(analysis) == {"damaged-records", "few-blocks", "unequal-work", "empty-answer"} - {"unequal-work"}


def test_the_docs_name_every_warning_in_its_order() -> None:
    section = (DOCS / "method.md").read_text().partition("\n## Warnings\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE) == list(KINDS)


def test_a_finding_of_a_newer_benchctl_is_listed(make_record: Any, make_run: Any, make_manifest: Any) -> None:
    preflight = {"mode": "on", "findings": [{"id": "from-the-future", "where": "models.target", "seen": "Something."}]}
    analysis = analyse_run(make_run(steady_records(make_record), make_manifest(ARMS, 6, 3, preflight=preflight)))
    assert [(warning.id, seen(warning)) for warning in analysis.warnings] == [("from-the-future", "Something.")]
    assert "does not know" in why(analysis.warnings[0])


def test_a_run_that_was_cut_off_before_its_first_block_lacks_everything(make_run: Any, make_manifest: Any) -> None:
    manifest = make_manifest(ARMS, 6, 0, recipe={"blocks": {"max": 9}})
    analysis = analyse_run(make_run([], manifest))
    assert ids(analysis) == {"few-blocks", "missing-records"}
    assert [(verdict.speed, verdict.lossless) for verdict in analysis.verdicts] == [("unknown", "undetermined")]
    assert analysis.stopping is not None
    assert (analysis.stopping.blocks, analysis.stopping.reason) == (0, None)


def test_the_analysis_survives_json_with_hostile_text(make_record: Any, make_run: Any) -> None:
    import json

    text = "\x1b[2J<script>\x00\ud800"
    records = [make_record("baseline"), make_record("spec", text=text, ids=[1, 2, 3])]
    analysis = analyse_run(make_run(records))
    line = json.dumps(analysis.model_dump(by_alias=True), allow_nan=False)
    assert Analysis.model_validate(json.loads(line)) == analysis


@pytest.mark.parametrize(
    ("answers", "doubt", "matched"),
    [
        # Short where it is slow, long where it is fast: 4 tokens at half the rate, 40 at 1.2 times.
        (
            ({"rate": 5.0, "ids": list(range(100, 105))}, {"rate": 12.0, "ids": list(range(100, 141))}),
            "unequal lengths",
            0.86,
        ),
        (
            ({"rate": 40.0, "ids": list(range(100, 105))},) * 2,
            "no equal pair",
            4.0,
        ),
    ],
)
def test_a_sign_that_answers_of_equal_length_do_not_bear_out_is_no_verdict(
    make_record: Any, make_run: Any, answers: tuple[dict[str, Any], dict[str, Any]], doubt: str, matched: float
) -> None:
    records = []
    for block in range(3):
        for index in range(6):
            answer = answers[index % 2] | {"text": "def"}
            records += [make_record(prompt_idx=index, block=block)]
            records += [make_record("spec", index, block=block, **answer)]
    analysis = analyse_run(make_run(records))
    verdict = analysis.verdicts[0]
    assert verdict.interval is not None and verdict.interval.low > 1
    assert verdict.speed == "unknown"
    assert verdict.doubt == doubt
    assert verdict.length_matched == pytest.approx(matched, abs=0.005)


def test_an_arm_without_speculation_is_not_called_a_gain(make_record: Any, make_run: Any, make_manifest: Any) -> None:
    cells = [cell(block, arm, attestation={"state": "off", "evidence": []}) for block in range(3) for arm in ARMS]
    manifest = make_manifest({"baseline": None, "spec": None}, 6, 3, cells=cells)
    verdict = analyse_run(make_run(steady_records(make_record), manifest)).verdicts[0]
    assert (verdict.speed, verdict.attestation, verdict.reason) == ("unknown", "off", "off")


def test_without_a_decode_rate_no_further_blocks_are_advised(
    make_record: Any, make_run: Any, make_manifest: Any
) -> None:
    """A server whose stream does not show how many tokens came first has none, however many blocks are measured."""
    records = [
        record.changed(client_tok_per_sec=None, tok_per_sec=None) if record.label == "spec" else record
        for record in steady_records(make_record)
    ]
    analysis = analyse_run(make_run(records, make_manifest(ARMS, 6, 3)))
    assert analysis.verdicts[0].speedup is None
    assert "no decode rate" in no_interval(analysis)
    assert analysis.decision is not None and analysis.decision.next is None
