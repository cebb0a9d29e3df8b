"""The file of scores: written whole, read strictly, added to without loss."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchctl.data.scores import SCORES, TargetScores, read_scores
from benchctl.data.store import MANIFEST, RECORDS, open_run, read_manifest
from benchctl.data.writer import LOCK, LOGS, RunWriter, write_scores
from benchctl.errors import StorageError
from tests.analysis.conftest import build_manifest
from tests.lossless.replayed import divergence_at, sample, scores


def write(folder: Path, made: TargetScores) -> None:
    write_scores(folder / MANIFEST, SCORES, made.model_dump_json(by_alias=True))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    target_scores = scores([*sample([0.1, 0.2]), divergence_at(3, 9, [("decode", 1, 0.5)])])
    with RunWriter(tmp_path, build_manifest({"baseline": None}, prompts=1, blocks=1)):
        pass
    write(tmp_path, target_scores)
    assert read_scores(tmp_path) == target_scores
    assert read_manifest(tmp_path).files.keys() == {RECORDS, SCORES}
    assert {file.name for file in tmp_path.iterdir()} == {SCORES, RECORDS, MANIFEST, LOCK, LOGS}


def test_a_run_comes_with_its_scores(tmp_path: Path) -> None:
    manifest = build_manifest({"baseline": None}, prompts=1, blocks=1)
    with RunWriter(tmp_path, manifest):
        pass
    assert open_run(tmp_path).scores is None
    write(tmp_path, scores([]))
    assert open_run(tmp_path).scores == scores([])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"schema": 99}', "newer benchctl"),
        ('{"run": 3}', "is damaged: run: Input should be a valid string"),
    ],
)
def test_a_file_that_is_not_understood_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / SCORES).write_text(content, "utf-8")
    with pytest.raises(StorageError, match=message):
        read_scores(tmp_path)


def test_adding_keeps_what_is_there_and_takes_what_is_new() -> None:
    target_scores = scores(sample([0.1, 0.2]))
    duplicate = sample([9.9])[0]
    target_scores.add([duplicate, *sample([0.4], width=9), *sample([0.5], start=7)])
    assert len(target_scores.positions) == 3
    widths = {(reading.shape, reading.width): reading.margin for reading in target_scores.positions[0].readings}
    assert widths[("verify", 5)] == pytest.approx(3.1)  # what was measured first stays
    assert widths[("verify", 9)] == pytest.approx(3.4)


@pytest.mark.parametrize("changed", ["run", "engine_sha256", "model"])
def test_scores_of_something_else_are_not_of_this_run(changed: str) -> None:
    manifest = build_manifest({"baseline": None}, prompts=1, blocks=1)
    target_scores = scores([])
    assert target_scores.of(manifest)
    foreign = {"run": "other", "engine_sha256": "0" * 64, "model": [{"name": "x", "size": 1, "sha256": "0" * 64}]}
    raw = json.loads(target_scores.model_dump_json(by_alias=True)) | {changed: foreign[changed]}
    assert not type(target_scores).model_validate(raw).of(manifest)
