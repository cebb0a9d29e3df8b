"""Stored files that were damaged, cut off or written by somebody else: an error that says so, or a file that is read.

Every parser gets what hypothesis makes of a sound file: bytes changed, cut and inserted, and values of other types and
sizes wherever the JSON has one; see `tests/fuzz.py`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchctl.data.record import Record
from benchctl.data.scores import SCORES, read_scores
from benchctl.data.store import MANIFEST, RECORDS, open_run
from benchctl.experiments.isolate.stored import ISOLATION, read_isolation
from benchctl.experiments.sampling.stored import ANSWERS, CHECK, open_check
from benchctl.measurement.plan import earlier_processes, measured, unclosed
from benchctl.measurement.resume import recipe_of
from tests.fuzz import fuzzed, mistaken, outcome, spoilt, told

KEPT = Path(__file__).parent / "kept" / "run"
pytestmark = pytest.mark.usefixtures(told.__name__)


def read_run(folder: Path) -> object:
    """Read a run as `run --resume` does."""
    run = open_run(folder)
    done = measured(run, prompts=2)
    return recipe_of(run), unclosed(run, done), earlier_processes(run.records)


FILES: dict[str, tuple[Path, Callable[[Path], object]]] = {
    MANIFEST: (KEPT, read_run),
    SCORES: (KEPT, read_scores),
    ISOLATION: (KEPT, read_isolation),
    CHECK: (KEPT / "sampling", open_check),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(KEPT, tmp_path / "kept") and tmp_path / "kept"


@pytest.mark.parametrize("name", FILES)
def test_a_document_with_other_bytes(name: str, folder: Path) -> None:
    source, read = FILES[name]
    target = folder / source.relative_to(KEPT)

    @fuzzed
    @given(spoilt((source / name).read_bytes()))
    def one(content: bytes) -> None:
        (target / name).write_bytes(content)
        outcome(name, lambda: read(target))

    one()


@pytest.mark.parametrize("name", FILES)
def test_a_document_with_other_values(name: str, folder: Path) -> None:
    source, read = FILES[name]
    target = folder / source.relative_to(KEPT)

    @fuzzed
    @given(mistaken(json.loads((source / name).read_bytes())))
    def one(content: bytes) -> None:
        (target / name).write_bytes(content)
        outcome(name, lambda: read(target))

    one()


@pytest.mark.parametrize(("name", "source"), [(RECORDS, KEPT), (ANSWERS, KEPT / "sampling")])
def test_a_file_of_lines_loses_no_more_than_the_damaged_ones(name: str, source: Path, folder: Path) -> None:
    target = folder / source.relative_to(KEPT)
    lines = (source / name).read_bytes().splitlines(keepends=True)

    @fuzzed
    @given(st.integers(0, len(lines) - 1), st.data())
    def one(number: int, data: st.DataObject) -> None:
        line = lines[number]
        content = data.draw(st.one_of(spoilt(line), mistaken(json.loads(line)))).replace(b"\n", b"") + b"\n"
        (target / name).write_bytes(b"".join([*lines[:number], content, *lines[number + 1 :]]))
        if name == ANSWERS:
            outcome(name, lambda: kept(open_check(target).answers))
        else:
            outcome(name, lambda: kept(read_lines(target)))

    def kept(found: list[Any]) -> None:
        assert len(found) >= len(lines) - 1

    def read_lines(run: Path) -> list[Record]:
        read_run(run)
        return open_run(run).records

    one()
