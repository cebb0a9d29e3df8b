"""Verdicts on pooled evidence, made by hand: what was asked after a run, and several runs of one workload."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchctl.analysis.output_results import Losslessness
from benchctl.data.cell import Cell
from benchctl.data.manifest import EngineIdentity, FurtherPrompt, FurtherPrompts
from benchctl.data.pool import pooled
from benchctl.data.record import Record, RecordError
from benchctl.data.scores import Replays, ReplayTarget
from benchctl.data.store import RunData
from benchctl.errors import UsageError
from benchctl.lossless.judge.run import analyse_run
from benchctl.lossless.score.session import Request, verify_pooled
from tests.analysis.conftest import build_manifest, build_record
from tests.lossless.judge.test_replay import DIFFERING, OTHER, replayed, speculating
from tests.lossless.replayed import codes, scores

MORE = "many:code"
ARMS: dict[str, Any] = {"baseline": None, "spec": {"type": "draft-simple"}, "other": {"type": "draft-simple"}}
OWN = [build_record("baseline"), speculating(), speculating("other")]


def run_of(
    further: list[Record], own: list[Record] = OWN, deviating: tuple[Record, ...] = (), **manifest: Any
) -> RunData:
    """A run of one prompt, all of whose answers replay but the `deviating` ones, and what was asked after it."""
    made = build_manifest(ARMS, 1, 1, **manifest)
    asked = sorted({(record.task, record.prompt_idx) for record in further})
    prompts = [
        FurtherPrompt(task=task, prompt_idx=index, sha256=f"{index}", suite="many.json", suite_task="code")
        for task, index in asked
    ]
    cells = [
        Cell(block=block, arm=arm, order=0, attempt=0, status="finished", started_at="", wall_s=1.0, log="")
        for block, arm in sorted({(record.block, record.label) for record in further})
    ]
    if further:
        made = made.model_copy(update={"further": FurtherPrompts(prompts=prompts, cells=cells)})
    readings = [
        replayed(record, [(7, 2.0)] if record in deviating else []) for record in (*own, *further) if not record.error
    ]
    target = ReplayTarget(arms=[*ARMS], command=["replay"], evidence="by hand", program_sha256=None, answers=readings)
    stored = scores([], made.run).model_copy(update={"replays": Replays(targets=[target])})
    return RunData(Path("by-hand"), made, own, [], scores=stored, further=further)


def asked(label: str, prompt_idx: int, block: int = 1, **more: Any) -> Record:
    make = build_record if label == "baseline" else speculating
    return make(label, prompt_idx, task=MORE, block=block, rate=1.0, **more)


def judged(run: RunData) -> dict[str, Losslessness]:
    return {row.arm: row for row in analyse_run(run).losslessness}


def test_what_was_asked_afterwards_is_evidence_on_the_output_and_no_speed() -> None:
    """Two times of asking; only `spec` was asked, and what it answered last is not the target's own."""
    wrong = asked("spec", 2, block=2, ids=OTHER, text="else")
    further = [asked(name, 1) for name in ("baseline", "spec")] + [asked("baseline", 2, block=2), wrong]
    sound, faulty = run_of(further), run_of(further, deviating=(wrong,))
    verdicts = judged(faulty)
    assert {name: row.verdict for name, row in verdicts.items()} == {"spec": "violation", "other": "identical"}
    assert verdicts["spec"].replay is not None and verdicts["spec"].replay.first is not None
    assert (verdicts["spec"].replay.first.task, verdicts["spec"].replay.first.prompt_idx) == (MORE, 2)
    assert "1 prompt of the run and 2 asked afterwards" in verdicts["spec"].reason
    assert "further" not in codes(verdicts["other"]) and len(verdicts["other"].comparisons) == 1
    assert [judged(sound)["spec"].verdict, judged(run_of([]))["spec"].verdict] == ["exact", "identical"]
    assert "widths" not in codes(judged(sound)["spec"]), "no other arm was asked where it differs"
    assert sound.manifest is not None
    of_run = replace(sound, further=(), manifest=sound.manifest.model_copy(update={"further": None}))
    with_more, alone = analyse_run(sound), analyse_run(of_run)
    assert (with_more.speedups, with_more.throughput) == (alone.speedups, alone.throughput)
    assert (with_more.records, with_more.blocks) == (alone.records, alone.blocks)


def test_a_prompt_that_the_baseline_could_not_answer_is_no_evidence_and_one_that_the_arm_could_not_is() -> None:
    error = RecordError(kind="http", message="too long")
    refused = [asked("baseline", 1), asked("spec", 1), asked("baseline", 2, error=error), asked("spec", 2)]
    assert len(judged(run_of(refused))["spec"].comparisons) == 2
    blank = [asked(name, 1, text=" ") for name in ("baseline", "spec")]
    equal = judged(run_of(blank))["spec"]
    assert equal.counts == {"identical": 2}, "not asked in the run's own block, and so not missing"
    assert "in the one block measured (those asked afterwards once)" in equal.reason
    failed = judged(run_of([asked("baseline", 1), asked("spec", 1, error=error)]))["spec"]
    assert (failed.verdict, failed.counts) == ("undetermined", {"identical": 1, "undetermined": 1})


def test_an_answer_that_the_run_lacks_is_still_missing() -> None:
    further = [asked("baseline", 1), asked("spec", 1)]
    row = judged(run_of(further, own=[OWN[0], OWN[2]]))["spec"]
    assert row.verdict == "undetermined" and "is missing" in row.reason


def test_runs_of_one_workload_are_judged_together() -> None:
    wrong = DIFFERING.changed(e2e_s=9.0)
    first, second = run_of([]), run_of([], [OWN[0], wrong, OWN[2]], (wrong,), run="20261122-110500-3fa9")
    assert (judged(first)["spec"].verdict, judged(second)["spec"].verdict) == ("identical", "violation")
    assert pooled([first, second]).name == "20261121-110500-3fa9 and 20261122-110500-3fa9"
    together = judged(pooled([first, second]))
    assert {name: row.verdict for name, row in together.items()} == {"spec": "violation", "other": "identical"}
    assert together["other"].comparisons[0].blocks_compared == 2
    assert together["other"].replay is not None and together["other"].replay.exact
    twice = [
        run_of([asked(name, 1), asked(name, 2, block=2)], run=f"20261122-110500-{name}") for name in ("spec", "other")
    ]
    manifest = pooled(twice).manifest
    assert manifest is not None and manifest.further is not None
    assert manifest.further.times == 4, "each run was asked two times, in blocks of its own"
    with pytest.raises(UsageError, match="named twice"):
        pooled([first, second, second])
    with pytest.raises(UsageError, match="no arm 'typo'"):
        verify_pooled([first, second], Request(arms=["typo"], offline=True))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"run": "20261121-110500-3fa9"}, "named twice"),
        ({"workload_sha256": "1" * 64}, "other prompts, sampling or models"),
        ({"engine": EngineIdentity(kind="vllm", binary=None, found_in="", version=None, build=None, commit=None,
                                   speculation_types=[])}, "another engine"),
        ({"machine": {"cpu": "another"}}, "another machine"),
        ({"arms": []}, "settings of an arm"),
    ],
)  # fmt: skip
def test_runs_that_are_not_alike_are_refused_with_what_differs(changes: dict[str, Any], named: str) -> None:
    other = run_of([])
    assert other.manifest is not None
    other = replace(other, manifest=other.manifest.model_copy(update={"run": "20261122-110500-3fa9"} | changes))
    with pytest.raises(UsageError, match=named):
        pooled([run_of([]), other])
