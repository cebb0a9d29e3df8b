"""What every fuzz target shares: how a sound input is spoilt, how many are tried, and what may come of one.

Seeded and seconds long in the suite; `BENCHCTL_FUZZ=20000` tries so many of each, from a new seed, and
`BENCHCTL_LONG_RUN=file.json` adds up there what became of them.
"""

from __future__ import annotations

import copy
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from benchctl.errors import BenchctlError
from benchctl.text import visible

BY_HAND = int(os.environ.get("BENCHCTL_FUZZ", "0"))
LONG_RUN = os.environ.get("BENCHCTL_LONG_RUN")
SEEN: Counter[str] = Counter()
"""What became of the inputs of this process."""

EXAMPLES = 60
fuzzed = settings(
    max_examples=BY_HAND or EXAMPLES,
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
        return [path, *(place for key, inner in value.items() for place in places(inner, (*path, key)))]
    if isinstance(value, list):
        return [path, *(place for index, inner in enumerate(value) for place in places(inner, (*path, index)))]
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


@pytest.fixture(scope="module")
def told() -> Iterator[None]:
    """Add what became of a module's inputs to the file that is named for it."""
    SEEN.clear()
    yield
    if LONG_RUN:
        file = Path(LONG_RUN)
        document = json.loads(file.read_text()) if file.exists() else {"outcomes": {}}
        outcomes = dict(sorted({**document["outcomes"], **SEEN}.items()))
        file.write_text(json.dumps({"examples_each": BY_HAND or EXAMPLES, "outcomes": outcomes}, indent=1) + "\n")


def outcome(name: str, read: Callable[[], object], codes: tuple[int, ...] = (2, 4)) -> None:
    """Read, and let nothing but an error that is meant for users pass."""
    try:
        read()
    except BenchctlError as error:
        assert error.what
        assert error.where or error.exit_code == 3 or str(error).startswith("/"), "it says where"
        assert error.exit_code in codes
        visible(str(error)).encode()
        SEEN[f"{name}: refused"] += 1
    else:
        SEEN[f"{name}: read"] += 1
