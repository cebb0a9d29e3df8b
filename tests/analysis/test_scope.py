"""The scope of a verdict: from records and manifest, a line for all arms of a condition, nothing assumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchctl.analysis.losslessness import ArmReplay, DetectionPower, Scope
from benchctl.data.store import open_run
from benchctl.lossless.judge.run import analyse_run
from benchctl.words.scope import scope_lines, scope_sentence
from tests.analysis.conditions.simulated import Sweep, write_sweep

DEPTH_4 = {"type": "draft-simple", "max": 4}


def test_lengths_and_requests_are_counted_from_the_records(make_record: Any, make_run: Any, make_manifest: Any) -> None:
    """A warm-up is a request to the process, and no answer; a resumed cell has two processes."""
    manifest = make_manifest({"baseline": None, "spec": DEPTH_4}, 2, 1)
    manifest.engine.details["prompt_cache"] = False
    records = [make_record(arm, index, ids=[*range(5 + index)], prompt_tokens=30 + 10 * index)
               for arm in ("baseline", "spec") for index in range(2)]  # fmt: skip
    records += [make_record("spec", 1, phase="warmup"), make_record("spec", 0, phase="warmup", attempt=1)]
    (judged,) = analyse_run(make_run(records, manifest)).losslessness
    assert judged.scope == Scope(
        temperature=0.0, concurrency=1, rate=None, requests_per_process=3, prompts=2, blocks=1, prompt_tokens=(30, 40),
        answer_tokens=(5, 6), answer_characters=None, prompt_cache=False, turn=1,
    )  # fmt: skip
    limited = judged.model_copy(
        update={"differing_limit": 0.089, "power": DetectionPower(nats=0.3, chance=0.32, prompts=48)}
    )
    assert scope_sentence(judged.scope, limited) == (
        "Scope: greedy, one request at a time, at most 3 requests per process, prompts of 30 to 40 tokens, "
        "answers of 5 to 6 tokens, prompt cache off, first turn. "
        "Where an arm is identical, at most 8.9 % of new prompts like these get another answer (95 %; power 32.0 %, "
        "80.0 % with about 48 prompts)."
    )
    never_scored = limited.model_copy(update={"verdict": "identical", "power": None})
    assert "power not measured: `benchctl verify-lossless --arm spec` measures it" in scope_lines([never_scored])[0]
    failed = never_scored.model_copy(update={"power_lacking": "the engine failed"})
    assert "(95 %; power not measured: the engine failed)" in scope_lines([failed])[0]
    replays = [
        ArmReplay(arm="spec", answers=2, of=2, rounds=rounds, tokens=11, control=2, control_of=2, control_deviating=0)
        for rounds in (143, 11)
    ]
    several = [never_scored.model_copy(update={"replay": replay}) for replay in replays]
    assert "(95 %; all its rounds replay exactly)" in scope_lines(several)[0], "neither has the other's 143"


def test_what_is_not_stored_is_not_assumed(make_record: Any, make_run: Any) -> None:
    records = [make_record(arm, n_predicted=0) for arm in ("baseline", "spec")]
    (judged,) = analyse_run(make_run(records)).losslessness
    assert judged.scope is not None
    line = scope_sentence(judged.scope)
    assert line.startswith(
        "Scope: sampling not reported, requests at a time not reported, at most 1 request per process"
    )
    assert "prompt length not reported" in line
    assert f"answers of {len(records[0].content or '')} characters" in line
    assert "prompt cache not reported" in line


def test_arms_of_a_condition_share_a_line(tmp_path: Path) -> None:
    write_sweep(tmp_path / "run", Sweep(concurrency=(1, 4), prompts=12))
    judged = analyse_run(open_run(tmp_path / "run")).losslessness
    single = [row for row in judged if row.scope and row.scope.concurrency == 1]
    assert [row.verdict for row in single] == ["identical"]
    (line,) = scope_lines(judged)  # of what is not judged nothing is said
    assert "one request at a time" in line
    assert "Where an arm is identical, at most 22 % of new prompts like these get another answer (95 %; " in line
