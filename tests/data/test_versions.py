"""Files that an earlier benchctl wrote: kept ones of every version are read as if they had been written today."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchctl.data.manifest import MANIFEST_FORMAT
from benchctl.data.scores import SCORES, read_scores
from benchctl.data.store import MANIFEST, open_run
from benchctl.data.versions import StoredFormat
from benchctl.errors import StorageError
from benchctl.experiments.isolate.stored import ISOLATION, read_isolation
from benchctl.experiments.sampling.stored import CHECK, open_check

KEPT = Path(__file__).parent / "kept"


def test_a_run_of_the_first_version(tmp_path: Path) -> None:
    folder = shutil.copytree(KEPT / "version_1", tmp_path / "run")
    run = open_run(folder)
    assert run.manifest is not None
    assert run.manifest.schema_version == MANIFEST_FORMAT.version
    assert run.manifest.ordering == "rotated"
    assert [cell.status for cell in run.manifest.cells] == ["finished"] * 4
    assert len([one for one in run.records if one.phase == "measure" and one.error is None]) == 8
    assert json.loads((folder / MANIFEST).read_text())["schema"] == 1, "reading changes nothing"


def test_replays_of_the_first_version() -> None:
    found = read_scores(KEPT / "version_1")
    assert found is not None
    assert [len(found.positions), len(found.decoded)] == [3, 2]
    assert found.positions[0].readings[0].shape == "decode"


def test_a_sampling_check_of_the_first_version() -> None:
    found = open_check(KEPT / "version_1" / "sampling")
    assert found.check.settings.seeds == 3
    assert found.check.manifest.ordering == "rotated"
    assert (len(found.answers), found.damaged) == (6, 0)


def test_an_isolation_of_the_first_version() -> None:
    found = read_isolation(KEPT / "version_1")
    assert found is not None
    assert len(found.measurements) == 2
    assert found.type == "q4_0"


def test_steps_follow_each_other_and_none_is_left_out() -> None:
    steps: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {
        1: lambda old: {"names": [old["name"]]},
        2: lambda old: {"names": old["names"], "count": len(old["names"])},
    }
    form = StoredFormat("list", version=3, steps=steps)
    assert form.current({"name": "a"}, "here") == {"names": ["a"], "count": 1, "schema": 3}
    assert form.current({"schema": 2, "names": ["b"]}, "here") == {"names": ["b"], "count": 1, "schema": 3}
    assert form.migrate({"names": []}, 3) == {"names": [], "schema": 3}


READERS: dict[str, Callable[[Path], object]] = {
    MANIFEST: open_run,
    SCORES: read_scores,
    CHECK: open_check,
    ISOLATION: read_isolation,
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"schema": 99}', "was written by a newer benchctl .schema 99; this one reads up to"),
        (b'{"schema": "1"}', "its schema is no version"),
        (b'{"schema": 0}', "its schema is no version"),
        (b"[]", "it is no JSON object"),
        (b"{", "cannot be read"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"schema": 1}', "is damaged: .*: "),
    ],
)
def test_what_is_no_such_file_is_one_message(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(StorageError, match=message) as caught:
        READERS[name](tmp_path)
    assert caught.value.where is not None
    assert name in caught.value.where
    assert caught.value.fix
