"""Stored evidence is not taken on trust: what changed since it was written decides nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from benchctl.analysis.comparison.compare import compare_runs
from benchctl.analysis.comparison.gates import check_gates, parse_gate
from benchctl.cli.app import app
from benchctl.data.store import MANIFEST, RECORDS, open_run, read_manifest
from benchctl.data.writer import RunWriter, write_scores
from benchctl.errors import StorageError
from benchctl.experiments.diagnose.stored import DOCUMENT, read_diagnosis, write_diagnosis
from benchctl.experiments.isolate.stored import ISOLATION, read_isolation, write_isolation
from benchctl.experiments.sampling.judge import sampling_verdict
from benchctl.experiments.sampling.stored import ANSWERS, CHECK, open_check
from benchctl.lossless.judge.run import analyse_run, judge
from benchctl.measurement.resume import resume_run
from benchctl.words.warnings import seen
from tests.cli.calls import call
from tests.kept_runs import ROOT, RUNS
from tests.resealed import reseal, write_sealed

KEPT = Path(__file__).parents[1] / "data" / "kept" / "run"
RESULTS = ROOT / "results"
Line = dict[str, Any]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A real run of three arms and three blocks, with scores; one answer of the arm `spec` is not the target's."""
    return shutil.copytree(KEPT, tmp_path / "results" / "kept" / "20261123-063549-f5e2")


def edit_records(run: Path, change: Callable[[Line], object], *, seal: bool = True) -> Path:
    lines = [json.loads(line) for line in (run / RECORDS).read_text("ascii").splitlines()]
    for line in lines:
        change(line)
    (run / RECORDS).write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines), "ascii")
    return reseal(run) if seal else run


def edit_manifest(run: Path, change: Callable[[Line], object], *, seal: bool = True) -> Path:
    document = json.loads((run / MANIFEST).read_text("utf-8"))
    change(document)
    (run / MANIFEST).write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    return reseal(run) if seal else run


def conclusions(run: Path) -> set[tuple[str, str]]:
    """Speed and losslessness of every arm."""
    return {(verdict.speed, verdict.lossless) for verdict in analyse_run(open_run(run)).verdicts}


def nothing_is_concluded(run: Path, *words: str) -> None:
    """Every verdict is open, a warning says why, and everything is still shown."""
    data = open_run(run)
    analysis = analyse_run(data)
    assert {(verdict.speed, verdict.lossless) for verdict in analysis.verdicts} == {("unknown", "undetermined")}
    (warning,) = [warning for warning in analysis.warnings if warning.id == "changed-evidence"]
    for word in words:
        assert word in seen(warning), seen(warning)
        assert all(word in verdict.refusal for verdict in analysis.verdicts)
    assert data.records and any(verdict.speedup for verdict in analysis.verdicts)


def spec(line: Line) -> bool:
    return bool(line["label"] == "spec" and line["phase"] == "measure")


def test_the_run_itself_is_intact_and_judged(run: Path) -> None:
    assert open_run(run).integrity.state == "intact"
    assert {lossless for _, lossless in conclusions(run)} == {"identical", "violation"}
    assert {speed for speed, _ in conclusions(run)} != {"unknown"}


def edited(line: Line) -> None:
    if spec(line):
        line["decode_s"] *= 0.99


@pytest.mark.parametrize(
    ("forge", "said"),
    [
        (lambda run: edit_records(run, edited, seal=False), "records.jsonl was changed"),
        (lambda run: edit_manifest(run, lambda one: one.update(blocks=2), seal=False), "manifest.json was changed"),
        (lambda run: drop_lines(run, 7, 8), "records.jsonl was changed"),
        (lambda run: drop_lines(run, 43, 46), "records.jsonl was changed"),
    ],
)
def test_what_changed_is_named(run: Path, forge: Callable[[Path], Path], said: str) -> None:
    nothing_is_concluded(forge(run), said)


def drop_lines(run: Path, first: int, end: int) -> Path:
    lines = (run / RECORDS).read_bytes().splitlines(keepends=True)
    (run / RECORDS).write_bytes(b"".join([*lines[: first - 1], *lines[end - 1 :]]))
    return run


def faster(line: Line) -> None:
    """Ten times faster by the rates alone."""
    if spec(line):
        line["client_tok_per_sec"] *= 10
        line["tok_per_sec"] *= 10


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_every_kept_run_is_as_it_was_written(folder: Path) -> None:
    integrity = open_run(folder, as_stored=True).integrity
    assert (integrity.state, integrity.findings) == ("intact", ())


def test_scores_that_were_replaced_are_not_used(run: Path) -> None:
    for name in ("scores.json", "costs.json"):
        text = (run / name).read_text("utf-8")
        (run / name).write_text(text.replace("1", "2", 1), "utf-8")
    data = open_run(run)
    assert (data.scores, data.costs) == (None, None)
    assert data.integrity.state == "damaged"
    analysis = analyse_run(data)
    assert {verdict.arm: verdict.lossless for verdict in analysis.verdicts} == {
        "spec": "undetermined",
        "ngram": "identical",
    }
    (warning,) = [warning for warning in analysis.warnings if warning.id == "changed-scores"]
    assert "was changed after it was written" in seen(warning)


def test_scores_of_another_run_are_not_used(run: Path, tmp_path: Path) -> None:
    second = shutil.copytree(run, tmp_path / "other")
    (second / "scores.json").write_text((second / "scores.json").read_text("utf-8") + "\n", "utf-8")
    assert open_run(reseal(second)).integrity.state == "intact"
    shutil.copy(second / "scores.json", run / "scores.json")
    assert open_run(run).scores is None
    shutil.copy(second / MANIFEST, run / MANIFEST)
    (run / RECORDS).write_bytes((run / RECORDS).read_bytes()[:-1] + b" \n")
    nothing_is_concluded(run, "records.jsonl was changed")


def test_scores_that_are_gone_and_that_nobody_knows_are_named(run: Path) -> None:
    scores = (run / "scores.json").rename(run / "scores-part.json")
    assert open_run(run).integrity.scores == ("scores.json is missing, and is not used.",)
    edit_manifest(run, lambda one: one["files"].pop("scores.json"), seal=False)
    scores.rename(run / "scores.json")
    assert "has no SHA-256 in the manifest" in open_run(run).integrity.scores[0]


def test_scores_are_not_added_to_a_manifest_that_was_changed(run: Path) -> None:
    edit_manifest(run, lambda one: one.update(blocks=2), seal=False)
    before = (run / MANIFEST).read_bytes()
    with pytest.raises(StorageError, match="no scores are added"):
        write_scores(run / MANIFEST, "scores.json", "{}")
    assert (run / MANIFEST).read_bytes() == before


def test_a_check_of_the_sampling_is_covered(run: Path) -> None:
    check = run / "sampling"
    assert open_check(check).integrity.state == "intact"
    lines = (check / ANSWERS).read_text("ascii")
    (check / ANSWERS).write_text(lines.replace('"drafted":', '"drafted":1', 1), "ascii")
    data = open_check(check)
    assert data.integrity.damage == (f"{ANSWERS} was changed after it was written.",)
    assert {arm.verdict for arm in sampling_verdict(data).arms} == {"undetermined"}
    assert all(ANSWERS in arm.reason for arm in sampling_verdict(data).arms)
    (check / ANSWERS).write_text(lines, "ascii")
    scores = (check / "scores.jsonl").read_text("ascii")
    (check / "scores.jsonl").write_text(scores.replace('"far":0', '"far":1', 1), "ascii")
    assert open_check(check).scores == []
    assert open_check(check).integrity.scores == ("scores.jsonl was changed after it was written, and is not used.",)
    head = json.loads((check / CHECK).read_text())
    head["manifest"]["blocks"] = 3
    (check / CHECK).write_text(json.dumps(head, indent=1) + "\n")
    assert open_check(check).integrity.damage


def test_what_a_killed_process_had_appended_is_no_damage_and_the_run_goes_on(run: Path) -> None:
    edit_manifest(run, lambda one: one.update(status="started"), seal=False)
    reseal(run)
    complete_run, last = (run / RECORDS).read_bytes(), open_run(run).records[-1]
    (run / RECORDS).write_bytes(complete_run + complete_run.splitlines(keepends=True)[-1][:-100])
    data = open_run(run)
    assert data.integrity.findings == ()
    assert "is cut off" in data.damaged[0]
    with RunWriter(run, read_manifest(run)) as writer:
        writer.append(last)
    reopened = open_run(run)
    assert (reopened.integrity.findings, reopened.damaged) == ((), [])
    assert read_manifest(run).files[RECORDS].bytes == len(complete_run), "the last record came after the manifest"
    edit_manifest(run, lambda one: one.update(status="finished"), seal=False)
    write_sealed(run / MANIFEST, json.loads((run / MANIFEST).read_text("utf-8")))
    nothing_is_concluded(run, "records.jsonl was changed")


def test_a_run_whose_records_were_changed_is_not_resumed(run: Path) -> None:
    edit_manifest(run, lambda one: one.update(status="interrupted"))
    drop_lines(run, 43, 46)
    before = (run / MANIFEST).read_bytes()
    absent = cast("Any", None)  # it is refused before anything is prepared or shown
    with pytest.raises(StorageError, match=r"records\.jsonl was changed") as caught:
        resume_run(absent, open_run(run), absent)
    assert "--resume" in str(caught.value)
    assert (run / MANIFEST).read_bytes() == before


@pytest.mark.parametrize(
    "strip",
    [lambda one: one.pop("digest"), lambda one: one.pop("files"), lambda one: one["files"].pop(RECORDS)],
)
def test_a_run_that_lacks_its_digests_is_damaged(run: Path, strip: Callable[[Line], object]) -> None:
    nothing_is_concluded(edit_manifest(run, strip, seal=False))


def test_records_without_a_digest_are_damage_even_in_a_sealed_manifest(run: Path) -> None:
    document = json.loads((run / MANIFEST).read_text("utf-8"))
    del document["files"][RECORDS]
    write_sealed(run / MANIFEST, document)
    nothing_is_concluded(run, "records.jsonl has no SHA-256 in the manifest")


def said_by(*words: str, code: int | None = None) -> str:
    result = call(app, *words)
    assert code is None or result.exit_code == code, result.output
    return " ".join(result.output.split())


def test_verify_lossless_tells_in_one_line(run: Path, tmp_path: Path) -> None:
    offline = ("verify-lossless", str(run), "--offline")
    assert "Files: unmodified" in said_by(*offline, code=1)
    edit_records(run, edited, seal=False)
    assert "records.jsonl was changed" in said_by(*offline, code=1)
    document = json.loads(call(app, *offline, "--json").stdout)
    assert document["integrity"]["state"] == "damaged" and document["integrity"]["damage"]
    study = tmp_path / "study.jsonl"
    study.write_bytes((KEPT / RECORDS).read_bytes())
    assert "Files: no digests" in said_by("verify-lossless", str(study), "--offline")


def test_report_runs_and_compare_warn(run: Path, tmp_path: Path) -> None:
    sound = shutil.copytree(run, run.with_name("20261123-063549-aaaa"))
    edit_records(run, faster, seal=False)
    out = ("--output", str(tmp_path / "reports"), "--no-figures")
    assert "records.jsonl was changed" in said_by("report", str(run), *out, code=0)
    (page,) = (tmp_path / "reports").glob("*/*/report.md")
    assert "records.jsonl was changed" in page.read_text("utf-8")
    assert "records.jsonl was changed" in said_by("runs", "show", str(run))
    compared = said_by("compare", str(sound), str(run))
    assert "records.jsonl was changed" in compared
    for first, right in ((sound, run), (run, sound)):
        result = compare_runs(open_run(first), open_run(right), judge=judge)
        assert {arm.change for arm in result.arms} == {"unknown"}
        assert not check_gates([parse_gate("slower:3%")], result)[0].passed
    third = shutil.copytree(sound, run.with_name("20261123-063549-cccc"))
    several = ("compare", str(sound), str(run), str(third))
    assert "records.jsonl was changed" in said_by(*several)
    rows = json.loads(call(app, *several, "--json").stdout)["rows"]
    assert all("not as they were written" in row["not_compared"]["rate"] for row in rows if row["run"] == 1)
    listed = said_by("runs", "list", "--results", str(run.parents[1]))
    assert f"{run.name} is damaged: records.jsonl was changed after it was written." in listed
    assert f"{sound.name} is damaged" not in listed


def test_a_diagnosis_and_a_search_that_changed_are_refused_and_named(tmp_path: Path) -> None:
    search = read_isolation(KEPT)
    assert search is not None
    write_isolation(tmp_path, search)
    assert read_isolation(tmp_path) == search
    write_diagnosis(tmp_path, read_diagnosis(next(RESULTS.glob("*/diagnosis/*"))))
    assert read_diagnosis(tmp_path).drafts
    readers: dict[str, Callable[[Path], object]] = {ISOLATION: read_isolation, DOCUMENT: read_diagnosis}
    for name, read in readers.items():
        text = (tmp_path / name).read_text("utf-8")
        for changed in (text.replace("1", "2", 3), text[: text.rindex(",")] + "\n}\n"):
            (tmp_path / name).write_text(changed, "utf-8")
            with pytest.raises(StorageError) as caught:
                read(tmp_path)
            assert name in str(caught.value.where)
