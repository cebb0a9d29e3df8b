"""Files of another version are refused, and kept ones are of this version."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from benchctl.data.manifest import MANIFEST_FORMAT
from benchctl.data.scores import SCORES, read_scores
from benchctl.data.store import MANIFEST, open_run
from benchctl.errors import StorageError
from benchctl.experiments.isolate.stored import ISOLATION, read_isolation
from benchctl.experiments.sampling.stored import CHECK, open_check

KEPT = Path(__file__).parent / "kept" / "run"


def test_kept_files_are_of_this_version() -> None:
    run = open_run(KEPT)
    assert run.manifest is not None
    assert [cell.status for cell in run.manifest.cells] == ["finished"] * 9
    assert len([record for record in run.records if record.phase == "measure" and record.error is None]) == 36
    assert run.scores is not None
    assert len(run.scores.positions) == 37
    check = open_check(KEPT / "sampling")
    assert (check.check.settings.seeds, len(check.answers), check.damaged) == (6, 36, 0)
    search = read_isolation(KEPT)
    assert search is not None and len(search.measurements) == 2


@pytest.mark.parametrize(
    ("version", "words"), [(4, "an older benchctl .schema 4; this one reads 5"), (6, "a newer benchctl .schema 6")]
)
def test_another_version_of_a_manifest_is_refused(tmp_path: Path, version: int, words: str) -> None:
    folder = shutil.copytree(KEPT, tmp_path / "run")
    document = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(document | {"schema": version}))
    with pytest.raises(StorageError, match=words) as caught:
        open_run(folder)
    assert caught.value.fix


READERS: dict[str, Callable[[Path], object]] = {
    MANIFEST: open_run,
    SCORES: read_scores,
    CHECK: open_check,
    ISOLATION: read_isolation,
}


VERSIONS = {MANIFEST: MANIFEST_FORMAT.version, SCORES: 1, CHECK: 2, ISOLATION: 2}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"schema": 99}', "was written by a newer benchctl .schema 99; this one reads"),
        (b'{"schema": "1"}', "its schema is no version"),
        (b'{"schema": 0}', "its schema is no version"),
        (b"[]", "it is no JSON object"),
        (b"{", "cannot be read"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"schema": %d}', "is damaged: .*: "),
    ],
)
def test_what_is_no_such_file_is_one_message(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content.replace(b"%d", str(VERSIONS[name]).encode()))
    with pytest.raises(StorageError, match=message) as caught:
        READERS[name](tmp_path)
    assert caught.value.where is not None
    assert name in caught.value.where
    assert caught.value.fix
