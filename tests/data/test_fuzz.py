"""Stored files that were damaged, cut off or written by somebody else: an error that says so, or a file that is read.

Every parser gets what hypothesis makes of a sound file: bytes changed, cut and inserted, and values of other types and
sizes wherever the JSON has one. `BENCHCTL_FUZZ=20000` tries so many of each, from a new seed.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchctl.data.isolation import ISOLATION, read_isolation
from benchctl.data.record import Record
from benchctl.data.replays import REPLAYS, read_replays
from benchctl.data.sampling import ANSWERS, CHECK, open_check
from benchctl.data.store import MANIFEST, RECORDS, open_run
from benchctl.errors import BenchctlError
from benchctl.measure.plan import earlier_processes, measured, unclosed
from benchctl.measure.run import recipe_of

KEPT = Path(__file__).parent / "kept" / "version_1"
BY_HAND = int(os.environ.get("BENCHCTL_FUZZ", "0"))
LONG_RUN = os.environ.get("BENCHCTL_LONG_RUN")
SEEN: Counter[str] = Counter()

fuzzed = settings(
    max_examples=BY_HAND or 60,
    derandomize=not BY_HAND,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([-1, 2**31, 2**63, 2**64, 10**400, float("inf"), float("-inf"), float("nan"), -0.0, 1e308]),
    st.text(max_size=20),
    st.sampled_from(["\ud800", "\x00", "../../etc", "[red]", "\x1b[31m", "9" * 5000]),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the way to every value within a JSON document."""
    if isinstance(value, dict):
        return [path, *(one for key, inner in value.items() for one in places(inner, (*path, key)))]
    if isinstance(value, list):
        return [path, *(one for index, inner in enumerate(value) for one in places(inner, (*path, index)))]
    return [path]


def changed(document: Any, way: tuple[Any, ...], value: Any, *, drop: bool) -> Any:
    """Return a copy with another value at one place, or with nothing there."""
    if not way:
        return value
    made = copy.deepcopy(document)
    inner = made
    for key in way[:-1]:
        inner = inner[key]
    if drop:
        del inner[way[-1]]
    else:
        inner[way[-1]] = value
    return made


@st.composite
def spoilt(draw: st.DrawFn, sound: bytes) -> bytes:
    """Return the bytes of a file with a few of them changed, inserted or gone, or cut off."""
    made = bytearray(sound)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(made)))
        how = draw(st.sampled_from(["change", "insert", "cut", "remove"]))
        if how == "cut":
            del made[at:]
        elif how == "remove":
            del made[at : at + draw(st.integers(1, 40))]
        else:
            made[at : at + (how == "change")] = draw(st.binary(min_size=1, max_size=4))
    return bytes(made)


@st.composite
def mistaken(draw: st.DrawFn, document: Any) -> bytes:
    """Return a file of sound JSON in which some values are not what they should be."""
    for _ in range(draw(st.integers(1, 2))):
        way = draw(st.sampled_from(places(document)))
        document = changed(document, way, draw(VALUES), drop=draw(st.booleans()))
        if not isinstance(document, dict):
            break
    return json.dumps(document).encode("utf-8", "surrogatepass")


def read_run(folder: Path) -> object:
    """Read a run as `run --resume` does."""
    run = open_run(folder)
    done = measured(run, prompts=2)
    return recipe_of(run), unclosed(run, done), earlier_processes(run.records)


FILES: dict[str, tuple[Path, Callable[[Path], object]]] = {
    MANIFEST: (KEPT, read_run),
    REPLAYS: (KEPT, read_replays),
    ISOLATION: (KEPT, read_isolation),
    CHECK: (KEPT / "sampling", open_check),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(KEPT, tmp_path / "kept") and tmp_path / "kept"


@pytest.fixture(scope="module", autouse=True)
def told() -> Any:
    """Write what became of the inputs, where a file is named for it."""
    yield
    if LONG_RUN:
        document = {"examples_each": BY_HAND or 60, "outcomes": dict(sorted(SEEN.items()))}
        Path(LONG_RUN).write_text(json.dumps(document, indent=1) + "\n")


def outcome(name: str, read: Callable[[], object]) -> None:
    """Read, and let nothing but an error that is meant for users pass."""
    try:
        read()
    except BenchctlError as error:
        assert error.what and error.where
        assert error.exit_code in {2, 4}
        SEEN[f"{name}: refused"] += 1
    else:
        SEEN[f"{name}: read"] += 1


@pytest.mark.parametrize("name", FILES)
def test_a_document_with_other_bytes(name: str, folder: Path) -> None:
    source, read = FILES[name]
    place = folder / source.relative_to(KEPT)

    @fuzzed
    @given(spoilt((source / name).read_bytes()))
    def one(content: bytes) -> None:
        (place / name).write_bytes(content)
        outcome(name, lambda: read(place))

    one()


@pytest.mark.parametrize("name", FILES)
def test_a_document_with_other_values(name: str, folder: Path) -> None:
    source, read = FILES[name]
    place = folder / source.relative_to(KEPT)

    @fuzzed
    @given(mistaken(json.loads((source / name).read_bytes())))
    def one(content: bytes) -> None:
        (place / name).write_bytes(content)
        outcome(name, lambda: read(place))

    one()


@pytest.mark.parametrize(("name", "source"), [(RECORDS, KEPT), (ANSWERS, KEPT / "sampling")])
def test_a_file_of_lines_loses_no_more_than_the_damaged_ones(name: str, source: Path, folder: Path) -> None:
    place = folder / source.relative_to(KEPT)
    lines = (source / name).read_bytes().splitlines(keepends=True)

    @fuzzed
    @given(st.integers(0, len(lines) - 1), st.data())
    def one(number: int, data: st.DataObject) -> None:
        line = lines[number]
        content = data.draw(st.one_of(spoilt(line), mistaken(json.loads(line)))).replace(b"\n", b"") + b"\n"
        (place / name).write_bytes(b"".join([*lines[:number], content, *lines[number + 1 :]]))
        if name == ANSWERS:
            outcome(name, lambda: kept(open_check(place).answers))
        else:
            outcome(name, lambda: kept(read_lines(place)))

    def kept(found: list[Any]) -> None:
        assert len(found) >= len(lines) - 1

    def read_lines(run: Path) -> list[Record]:
        read_run(run)
        return open_run(run).records

    one()
