"""Stored evidence is not taken on trust: what changed since it was written, or contradicts itself, decides nothing.

A forger without care leaves the digests as they are; one with care makes them anew (`tests/resealed.py`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchctl.analysis.comparison.compare import compare_runs
from benchctl.analysis.comparison.gates import check_gates, parse_gate
from benchctl.cli.app import app
from benchctl.data.chain import chain_seed, linked, stated
from benchctl.data.integrity import DIGESTS, RecordCheck
from benchctl.data.store import MANIFEST, RECORDS, open_run, read_manifest
from benchctl.data.writer import RunWriter
from benchctl.errors import StorageError
from benchctl.experiments.diagnose.stored import DOCUMENT, read_diagnosis, write_diagnosis
from benchctl.experiments.isolate.stored import ISOLATION, read_isolation, write_isolation
from benchctl.experiments.sampling.conclude import sampling_verdict
from benchctl.experiments.sampling.stored import ANSWERS, CHECK, open_check
from benchctl.lossless.analysed import analyse_run, judge
from tests.cli.calls import call
from tests.kept_runs import ROOT, RUNS
from tests.resealed import reseal

KEPT = Path(__file__).parents[1] / "data" / "kept"
RESULTS = ROOT / "results"
Line = dict[str, Any]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A real run of three arms and three blocks, with scores; one answer of the arm `spec` is not the target's."""
    return shutil.copytree(KEPT / "version_4", tmp_path / "results" / "kept" / "20261123-063549-f5e2")


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
    return {(one.speed, one.lossless) for one in analyse_run(open_run(run)).verdicts}


def nothing_is_concluded(run: Path, *words: str) -> None:
    """Every verdict is open, a warning says why, and everything is still shown."""
    data = open_run(run)
    found = analyse_run(data)
    assert {(one.speed, one.lossless) for one in found.verdicts} == {("unknown", "undetermined")}
    (warning,) = [one for one in found.warnings if one.id == "changed-evidence"]
    for word in words:
        assert word in warning.seen, warning.seen
        assert all(word in one.why for one in found.verdicts)
    assert data.records and any(one.speedup for one in found.verdicts)


def spec(line: Line) -> bool:
    return bool(line["label"] == "spec" and line["phase"] == "measure")


def test_the_run_itself_is_intact_and_judged(run: Path) -> None:
    assert open_run(run).integrity.state == "intact"
    assert {lossless for _, lossless in conclusions(run)} == {"identical", "violation"}
    assert {speed for speed, _ in conclusions(run)} != {"unknown"}


def test_every_line_is_chained_to_the_one_before_and_the_first_to_run_and_recipe(run: Path) -> None:
    manifest = read_manifest(run)
    head = chain_seed(manifest.run, manifest.recipe_sha256).encode()
    lines = (run / RECORDS).read_bytes().splitlines(keepends=True)
    for line in lines:
        assert json.loads(line)["chain"].encode() == stated(line) == linked(line, head)
        head = stated(line)
    marks = [cell.mark for cell in manifest.cells if cell.mark]
    assert len(marks) == len(manifest.cells) == 9
    assert (marks[-1].lines, marks[-1].bytes, marks[-1].head.encode()) == (len(lines), sum(map(len, lines)), head)


def edited(line: Line) -> None:
    if spec(line):
        line["decode_s"] *= 0.99


@pytest.mark.parametrize(
    ("forge", "said"),
    [
        (lambda run: edit_records(run, edited, seal=False), "records.jsonl:7, 8, 9"),
        (lambda run: edit_manifest(run, lambda one: one.update(blocks=2), seal=False), "manifest.json is not"),
        (lambda run: drop_lines(run, 7, 8), "records.jsonl:7 is not as it was written"),
        (lambda run: drop_lines(run, 43, 46), "line 45 is not the last of block 3"),
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


def faster_decoding(line: Line) -> None:
    """Ten times faster by rates and decoding times, in answers that take a second."""
    faster(line)
    line["e2e_s"] += 1
    if spec(line):
        line["decode_s"] /= 10
        line["engine_decode_s"] /= 10


def longer(line: Line) -> None:
    """Ten times the tokens in the same time."""
    if spec(line):
        line["n_predicted"] *= 10
        line["client_tok_per_sec"] = (line["n_predicted"] - 1) / line["decode_s"]
        line["tok_per_sec"] = (line["n_predicted"] - 1) / line["engine_decode_s"]


def slower_baseline(line: Line) -> None:
    """Ten times slower, times and rates in accord, where the next request was sent as before."""
    if line["label"] == "baseline" and line["phase"] == "measure":
        for name in ("ttft_s", "decode_s", "e2e_s", "engine_decode_s"):
            line[name] *= 10
        line["client_tok_per_sec"] /= 10
        line["tok_per_sec"] /= 10


def faster_in_all(line: Line) -> None:
    """Ten times faster in accord, of answers of some seconds: then most of the time nothing happened."""
    if line["phase"] != "measure":
        return
    for name in ("ttft_s", "decode_s", "e2e_s", "engine_decode_s", "sent_s"):
        line[name] *= 100
    for name in ("client_tok_per_sec", "tok_per_sec"):
        line[name] /= 100
    if spec(line):
        for name in ("ttft_s", "decode_s", "e2e_s", "engine_decode_s"):
            line[name] /= 10
        for name in ("client_tok_per_sec", "tok_per_sec"):
            line[name] *= 10


def without(document: Line, *way: str) -> None:
    for key in way[:-1]:
        document = document[key]
    del document[way[-1]]


@pytest.mark.parametrize(
    ("forge", "said"),
    [
        (lambda run: edit_records(run, lambda one: one.update(run="20260101-000000-beef")), "of another run"),
        (lambda run: edit_records(run, lambda one: one.update(tok_per_sek=1.0)), "unknown keys (tok_per_sek)"),
        (lambda run: edit_manifest(run, lambda one: one.update(atestation=1)), "atestation is no key"),
        (lambda run: edit_manifest(run, lambda one: one["cells"][1].update(atest=1)), "cells.1.atest is no key"),
        (lambda run: edit_manifest(run, lambda one: without(one, "engine", "details", "sha256")), "the engine has no"),
        (lambda run: edit_manifest(run, lambda one: one["target"].update(files=[])), "the target has no SHA-256"),
        (lambda run: edit_manifest(run, lambda one: one["draft"]["files"][0].update(sha256="")), "the draft has no"),
        (
            lambda run: edit_manifest(run, lambda one: [cell.update(attestation=None) for cell in one["cells"]]),
            "block 1, baseline finished without an attestation",
        ),
        (lambda run: edit_manifest(run, lambda one: one["cells"].pop(4)), "is not among the cells"),
        (lambda run: edit_records(run, faster), "tok_per_sec is not its tokens over engine_decode_s"),
        (lambda run: edit_records(run, faster_decoding), "ttft_s and decode_s are less than half of e2e_s"),
        (lambda run: edit_records(run, longer), "24 token ids and counts 240 tokens"),
        (lambda run: edit_records(run, slower_baseline), "sent before the answer to the request before it had ended"),
        (lambda run: edit_records(run, faster_in_all), "s of nothing lie between two of them"),
    ],
)
def test_what_contradicts_itself_is_named_though_the_digests_fit(
    run: Path, forge: Callable[[Path], Path], said: str
) -> None:
    nothing_is_concluded(forge(run), said)


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_no_kept_run_contradicts_itself(folder: Path) -> None:
    """Nor would it if it had digests: what only those runs are asked is asked of its records, too."""
    data = open_run(folder, as_stored=True)
    assert data.integrity.findings == ()
    assert data.integrity.state in ("no digests", "intact")
    assert data.manifest is not None and not data.integrity.recipe_changed
    check = RecordCheck(RECORDS, data.manifest.model_copy(update={"digests": True}))
    for record in data.records:
        check.record(record)
    assert not [sentence for sentence in check.damage() if "is not the last" not in sentence]


def test_scores_that_were_replaced_are_not_used(run: Path) -> None:
    for name in ("audit.json", "replays.json", "costs.json"):
        text = (run / name).read_text("utf-8")
        (run / name).write_text(text.replace("1", "2", 1), "utf-8")
    data = open_run(run)
    assert (data.scores, data.costs) == (None, None)
    assert data.integrity.state == "damaged"
    found = analyse_run(data)
    assert {one.arm: one.lossless for one in found.verdicts} == {"spec": "undetermined", "ngram": "identical"}
    (warning,) = [one for one in found.warnings if one.id == "changed-scores"]
    assert "not as it was written" in warning.seen


def test_scores_of_another_run_are_not_used_even_with_their_digests(run: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run, tmp_path / "other")
    edit_manifest(other, lambda one: one.update(run="20261123-063549-0000"), seal=False)
    edit_records(other, lambda one: one.update(run="20261123-063549-0000"))
    assert open_run(other).integrity.state == "intact"
    shutil.copy(other / "audit.json", run / "audit.json")
    shutil.copy(other / DIGESTS, run / DIGESTS)
    data = open_run(run)
    assert data.scores is None
    assert f"{DIGESTS} is not as it was written." in data.integrity.scores


def test_scores_that_are_gone_are_named(run: Path) -> None:
    (run / "audit.json").unlink()
    assert open_run(run).integrity.scores == ("audit.json is missing, and is not used.",)
    (run / DIGESTS).unlink()
    assert "has no digest" in open_run(run).integrity.scores[0]


def test_a_check_of_the_sampling_is_covered(run: Path) -> None:
    check = run / "sampling"
    assert open_check(check).integrity.state == "intact"
    lines = (check / ANSWERS).read_text("ascii")
    (check / ANSWERS).write_text(lines.replace('"drafted":', '"drafted":1', 1), "ascii")
    data = open_check(check)
    assert data.integrity.damage == (f"{ANSWERS}:1 is not as it was written, or not where.",)
    assert {one.verdict for one in sampling_verdict(data).arms} == {"undetermined"}
    assert all(ANSWERS in one.reason for one in sampling_verdict(data).arms)
    (check / ANSWERS).write_text(lines, "ascii")
    scores = (check / "scores.jsonl").read_text("ascii")
    (check / "scores.jsonl").write_text(scores.replace('"far":0', '"far":1', 1), "ascii")
    assert open_check(check).scores == []
    assert open_check(check).integrity.scores == ("scores.jsonl is not as it was written, and is not used.",)
    head = json.loads((check / CHECK).read_text())
    head["manifest"]["schema"] = 3
    (check / CHECK).write_text(json.dumps(head, indent=1) + "\n")
    assert open_check(check).integrity.damage


def test_a_line_that_a_kill_cut_off_is_no_damage_and_the_chain_goes_on(run: Path) -> None:
    for name in ("audit.json", "replays.json", "costs.json", DIGESTS):  # none was made while the run went on
        (run / name).unlink()
    edit_manifest(run, lambda one: one.update(status="started", cells=one["cells"][:8]))
    whole = (run / RECORDS).read_bytes()
    (run / RECORDS).write_bytes(whole[:-100])
    data = open_run(run)
    assert data.integrity.findings == ()
    assert "is cut off" in data.damaged[0]
    with RunWriter(run, read_manifest(run)) as writer:
        writer.append(data.records[-1])
        writer.append(data.records[-2])
    again = open_run(run)
    assert (again.integrity.findings, again.damaged) == ((), [])
    lines = (run / RECORDS).read_bytes().splitlines(keepends=True)
    torn = b"".join([*lines[:20], lines[20][:50] + b"\n", *lines[21:]])
    (run / RECORDS).write_bytes(torn)
    assert any("records.jsonl:21" in sentence for sentence in open_run(run).integrity.damage)


def test_lines_that_were_gone_before_a_run_was_resumed_stay_named(run: Path) -> None:
    drop_lines(run, 43, 46)
    with RunWriter(run, read_manifest(run)) as writer:
        for record in open_run(run).records[-3:]:
            writer.append(record)
        writer.save()
    assert any("not the last of block 3" in sentence for sentence in open_run(run).integrity.damage)


def test_a_recipe_that_was_changed_is_told(run: Path) -> None:
    edit_manifest(run, lambda one: one["recipe"]["sampling"].update(max_tokens=8))
    assert open_run(run).integrity.recipe_changed
    nothing_is_concluded(run, "the recipe is not that which was run")
    old = json.loads((KEPT / "version_1" / MANIFEST).read_text())
    assert not open_run(KEPT / "version_1").integrity.recipe_changed
    older = shutil.copytree(KEPT / "version_1", run.parent / "old")
    old["recipe"]["sampling"]["max_tokens"] = 8
    (older / MANIFEST).write_text(json.dumps(old))
    assert open_run(older).integrity.recipe_changed, "without digests, too"


def test_a_run_before_digests_is_judged_as_it_was(tmp_path: Path) -> None:
    old = shutil.copytree(KEPT / "version_1", tmp_path / "old")
    data = open_run(old)
    assert (data.integrity.state, data.integrity.findings) == ("no digests", ())
    with RunWriter(old, read_manifest(old)) as writer:  # as resuming it does
        writer.append(data.records[-1])
    assert json.loads((old / MANIFEST).read_text())["schema"] == 4
    assert "chain" not in (old / RECORDS).read_text("ascii").splitlines()[-1]
    assert (open_run(old).integrity.state, open_run(old).integrity.findings) == ("no digests", ())


@pytest.mark.parametrize(
    "strip",
    [
        lambda one: one.pop("digest"),
        lambda one: one.update(digests=False),
        lambda one: one.update(schema=3),
        lambda one: (one.update(schema=3), one.pop("digest")),
    ],
)
def test_a_run_with_digests_that_lacks_them_is_damaged(run: Path, strip: Callable[[Line], object]) -> None:
    nothing_is_concluded(edit_manifest(run, strip, seal=False))


def test_records_without_a_chain_in_a_run_with_digests_are_damage(run: Path) -> None:
    nothing_is_concluded(edit_records(run, lambda one: one.pop("chain"), seal=False), "records.jsonl:1, 2, 3")


def said_by(*words: str, code: int | None = None) -> str:
    result = call(app, *words)
    assert code is None or result.exit_code == code, result.output
    return " ".join(result.output.split())


def test_verify_lossless_tells_in_one_line(run: Path, tmp_path: Path) -> None:
    offline = ("verify-lossless", str(run), "--offline")
    assert "Files: unchanged" in said_by(*offline, code=1)
    edit_records(run, edited, seal=False)
    assert "records.jsonl:7, 8, 9" in said_by(*offline, code=1)
    document = json.loads(call(app, *offline, "--json").stdout)
    assert document["integrity"]["state"] == "damaged" and document["integrity"]["damage"]
    assert "Files: no digests" in said_by("verify-lossless", str(KEPT / "version_1"), "--offline")
    study = tmp_path / "study.jsonl"
    study.write_bytes((KEPT / "version_1" / RECORDS).read_bytes())
    assert "Files: no digests" in said_by("verify-lossless", str(study), "--offline")


def test_report_runs_and_compare_warn(run: Path, tmp_path: Path) -> None:
    sound = shutil.copytree(run, run.with_name("20261123-063549-aaaa"))
    edit_records(run, faster, seal=False)
    out = ("--out", str(tmp_path / "reports"), "--no-figures")
    assert "records.jsonl:7, 8, 9" in said_by("report", str(run), *out, code=0)
    (page,) = (tmp_path / "reports").glob("*/*/report.md")
    assert "records.jsonl:7, 8, 9" in page.read_text("utf-8")
    assert "records.jsonl:7, 8, 9" in said_by("runs", "show", str(run))
    compared = said_by("compare", str(sound), str(run))
    assert "records.jsonl:7, 8, 9" in compared
    for left, right in ((sound, run), (run, sound)):
        found = compare_runs(open_run(left), open_run(right), judge=judge)
        assert {arm.change for arm in found.arms} == {"unknown"}
        assert not check_gates([parse_gate("slower:3%")], found)[0].passed
    third = shutil.copytree(sound, run.with_name("20261123-063549-cccc"))
    several = ("compare", str(sound), str(run), str(third))
    assert "records.jsonl:7, 8, 9" in said_by(*several)
    rows = json.loads(call(app, *several, "--json").stdout)["rows"]
    assert all("not as they were written" in row["not_compared"]["rate"] for row in rows if row["run"] == 1)
    listed = said_by("runs", "list", "--results", str(run.parents[1]))
    assert f"{run.name} is damaged: records.jsonl is not as it was written." in listed
    assert f"{sound.name} is damaged" not in listed


def test_a_diagnosis_and_a_search_that_changed_are_refused_and_named(tmp_path: Path) -> None:
    search = read_isolation(KEPT / "version_1")
    assert search is not None
    write_isolation(tmp_path, search)
    assert read_isolation(tmp_path) == search.model_copy(update={"schema_version": 2})
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
