from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchctl.data.cell import AttestationRecord, Cell
from benchctl.data.manifest import ArmIdentity, Manifest
from benchctl.data.record import Record, RecordError, sha256_text, sha256_tokens
from benchctl.data.store import latest_run, open_run, resolve_run
from benchctl.data.writer import RunWriter
from benchctl.errors import StorageError, UsageError

STUDY_LINE = {
    "label": "spec_d4",
    "task": "code",
    "prompt_idx": 3,
    "rep": 2,
    "tok_per_sec": 9.5,
    "n_predicted": 256,
    "draft_n": 300,
    "draft_n_accepted": 270,
    "prompt_per_sec": 120.0,
    "content_sha": "ab12",
    "content": "def f():\n",
}


def record(label: str = "spec", block: int = 0, prompt_idx: int = 0, text: str = "x", **more: object) -> Record:
    return Record.from_dict(
        {
            "label": label,
            "task": "code",
            "prompt_idx": prompt_idx,
            "rep": block,
            "block": block,
            "schema": 1,
            "content": text,
            "content_sha": sha256_text(text),
            **more,
        }
    )


def test_a_record_survives_its_line() -> None:
    wild = record(text="\x1b[31m<script>\x00\n\u2028\ud800 日本語", token_ids=[1, 2])
    line = wild.to_line()
    assert line.isascii()
    assert "\n" not in line
    assert Record.from_line(line) == wild


def test_the_studys_eleven_keys_load_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "study.jsonl"
    file.write_text(json.dumps(STUDY_LINE) + "\n")
    run = open_run(file)
    assert run.manifest is None
    (loaded,) = run.records
    assert STUDY_LINE.items() <= loaded.to_dict().items()
    assert loaded.schema_version == 0
    assert loaded.token_ids is None


def test_the_last_good_record_of_a_measurement_counts(writer: RunWriter, folder: Path) -> None:
    failed = RecordError(kind="timeout", message="silent")
    ids = [1, 2]
    fetched = record(text="first", token_ids=ids, token_sha=sha256_tokens(ids))
    for line in (record(text="first", token_gap="withheld"), fetched, record(text="", error=failed)):
        writer.append(line)
    writer.append(record(prompt_idx=1, error=failed))
    run = open_run(folder)
    assert [(r.prompt_idx, r.content, r.error) for r in run.records] == [(0, "first", None), (1, "x", failed)]
    assert run.records[0].token_ids == ids


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"text": "forged"}, {}, "text"),
        ({"token_sha": "a"}, {"token_sha": "b"}, "token ids"),
        ({"n_predicted": 3}, {"n_predicted": 4}, "length or ending"),
        ({"prompt_sha": "a"}, {"prompt_sha": "b"}, "rendered prompt"),
        ({"e2e_s": 1.0}, {"e2e_s": 2.0}, "times or counts"),
        ({"text": "forged", "attempt": 1}, {}, "text"),
    ],
)
def test_two_good_records_that_disagree_are_neither(
    writer: RunWriter, folder: Path, first: dict[str, Any], second: dict[str, Any], message: str
) -> None:
    for line in (record(**first), record(**second), record(**first), record(**second)):
        writer.append(line)
    (conflict,) = open_run(folder).records
    assert conflict.error == RecordError(
        kind="conflict", message=f"two good records of this measurement disagree in their {message}"
    )
    assert conflict.content is None


def test_an_answer_that_a_later_process_repeats_is_one_answer(writer: RunWriter, folder: Path) -> None:
    writer.append(record(e2e_s=1.0))
    writer.append(record(e2e_s=2.0, attempt=1))
    assert [record.e2e_s for record in open_run(folder).records] == [2.0]


def test_a_cell_of_overlapping_requests_that_was_measured_again_counts_once(folder: Path, manifest: Manifest) -> None:
    manifest.arms = [ArmIdentity(name="spec", baseline=False, speculation=None, argv=[], env=[], concurrency=4)]
    with RunWriter(folder, manifest) as writer:
        writer.append(record(text="one"))
        writer.append(record(text="another", attempt=1))
        assert [record.content for record in open_run(folder).records] == ["another"]
        writer.append(record(text="forged", attempt=1))
    assert [record.content for record in open_run(folder).records] == [None]


def test_records_of_a_cell_that_failed_its_attestation_do_not_count(writer: RunWriter, folder: Path) -> None:
    writer.append(record("baseline"))
    writer.append(record("spec"))
    for arm, state in (("baseline", "off"), ("spec", "failed")):
        writer.add_cell(cell(arm, state))
    run = open_run(folder)
    assert [r.label for r in run.records] == ["baseline"]
    assert run.damaged == [], "the manifest says why; nothing is unreadable"
    writer.append(record("spec", prompt_idx=1, attempt=1))
    writer.add_cell(cell("spec", "active", attempt=1))
    counting = [(r.label, r.prompt_idx) for r in open_run(folder).records]
    assert counting == [("baseline", 0), ("spec", 1)], "a later attempt does not redeem what the first one measured"


def cell(arm: str, state: str, attempt: int = 0) -> Cell:
    return Cell(
        block=0,
        arm=arm,
        order=0,
        attempt=attempt,
        status="finished",
        started_at="now",
        wall_s=1.0,
        log="logs/x.log",
        attestation=AttestationRecord.model_validate({"state": state, "evidence": []}),
    )


def test_the_attestation_of_the_process_that_closes_a_cell_is_that_of_the_ones_that_were_broken_off(
    writer: RunWriter, folder: Path
) -> None:
    for attempt in range(3):
        writer.append(record(prompt_idx=attempt, attempt=attempt))
    writer.add_cell(cell("spec", "idle", attempt=1).model_copy(update={"status": "interrupted"}))
    writer.add_cell(cell("spec", "failed", attempt=2).model_copy(update={"status": "failed"}))
    assert open_run(folder).records == []


def test_damaged_lines_are_named_and_left_out(writer: RunWriter, folder: Path) -> None:
    writer.append(record())
    with (folder / "records.jsonl").open("ab") as stream:
        stream.write(b"not json\n[1,2]\n" + record(prompt_idx=1).to_line().encode()[:-20])
    run = open_run(folder)
    assert len(run.records) == 1
    assert [sentence.split(" and was")[0] for sentence in run.damaged] == [
        "records.jsonl:2 is no record",
        "records.jsonl:3 is no record",
        "records.jsonl:4 is cut off",
    ]


@pytest.mark.parametrize("where", ["manifest", "records"])
def test_a_newer_schema_is_refused(writer: RunWriter, folder: Path, where: str) -> None:
    if where == "records":
        writer.append(record(schema=99))
    else:
        raw = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps(raw | {"schema": 99}))
    with pytest.raises(StorageError, match=r"schema 99") as caught:
        open_run(folder)
    assert caught.value.exit_code == 4


def test_a_damaged_manifest_is_an_error_that_names_it(writer: RunWriter, folder: Path) -> None:
    (folder / "manifest.json").write_text("{")
    with pytest.raises(StorageError, match="manifest cannot be read"):
        open_run(folder)
    (folder / "manifest.json").write_text('{"schema": 5}')
    with pytest.raises(StorageError, match="run: Field required"):
        open_run(folder)


def test_runs_are_found_by_folder_recipe_id_or_recency(tmp_path: Path, manifest: Manifest) -> None:
    names = ["20260101-000000-aaaa", "20260301-000000-bbbb", "20260201-000000-cccc"]
    for name, recipe in zip(names, ["one", "two", "one"], strict=True):
        with RunWriter(tmp_path / recipe / name, manifest):
            pass
    assert latest_run(tmp_path).name == names[1]
    assert resolve_run(None, tmp_path).name == names[1]
    assert resolve_run("one", tmp_path).name == names[2]
    assert resolve_run(str(tmp_path / "one"), tmp_path).name == names[2]
    assert resolve_run(names[0], tmp_path).name == names[0]
    with pytest.raises(UsageError, match="no such run") as caught:
        resolve_run("three", tmp_path)
    assert "one, two" in (caught.value.fix or "")
    with pytest.raises(UsageError, match="no run yet"):
        latest_run(tmp_path / "nothing")


def test_equal_answers_share_their_memory_and_others_stay_apart(tmp_path: Path) -> None:
    ids = [70001, 70002]
    records = [
        record("baseline", text="same", token_ids=ids),
        record("spec", text="same", token_ids=list(ids)),
        record("spec", prompt_idx=1, text="same", token_ids=[70001, 70003]),
        record("spec", prompt_idx=2, text="other", content_sha=sha256_text("same"), token_ids=ids),
    ]
    file = tmp_path / "records.jsonl"
    file.write_text("".join(line.to_line() + "\n" for line in records))
    read = open_run(file).records
    assert read == records
    assert read[0].token_ids is read[1].token_ids


def test_the_record_that_counts_keeps_its_own_place(tmp_path: Path) -> None:
    failed = record("spec", error=RecordError(kind="crash", message="gone"))
    retried = record("spec", text="first", attempt=1, e2e_s=1.0)
    records = [record("spec", text="first"), failed, record("spec", prompt_idx=1), retried]
    file = tmp_path / "records.jsonl"
    file.write_text("".join(line.to_line() + "\n" for line in [*records, failed]))
    assert open_run(file).records == [records[2], records[3]]


def test_a_folder_of_one_file_an_arm_is_a_run(tmp_path: Path) -> None:
    study = tmp_path / "plamo2" / "raw"
    study.mkdir(parents=True)
    for arm in ("baseline", "spec_d4"):
        lines = [{**STUDY_LINE, "label": arm, "rep": rep} for rep in range(2)]
        (study / f"{arm}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert resolve_run(str(study), tmp_path / "results") == study
    run = open_run(study)
    assert run.manifest is None and run.folder == study
    assert [(record.label, record.rep) for record in run.records] == [
        (arm, rep) for arm in ("baseline", "spec_d4") for rep in range(2)
    ]
    (study / "cut.jsonl").write_text("{")
    assert [sentence.split(" ")[0] for sentence in open_run(study).damaged] == ["cut.jsonl:1"]
    for file in study.glob("*.jsonl"):
        file.write_text("")
    with pytest.raises(UsageError, match="no benchctl record"):
        open_run(study)
