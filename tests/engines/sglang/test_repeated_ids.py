"""Every event of `/generate` repeats the answer so far: what is new is counted, and what changed is noticed."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from benchctl.engines.sglang.server import GenerateReader
from benchctl.errors import EngineError


def event(
    ids: Sequence[object], *, text: object = "x", finish: bool = False, separators: tuple[str, str] = (",", ":")
) -> bytes:
    meta = {"finish_reason": {"type": "length"} if finish else None, "prompt_tokens": 3, "completion_tokens": len(ids)}
    body = {"text": text, "output_ids": ids, "meta_info": meta}
    return b"data: " + json.dumps(body, separators=separators).encode() + b"\n\n"


def read(*events: bytes) -> GenerateReader:
    reader = GenerateReader()
    reader.begin(0.0)
    for number, event in enumerate(events):
        reader.feed(event, float(number))
    return reader


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_ids_are_read_once_however_they_are_written(separators: tuple[str, str]) -> None:
    steps: list[list[int]] = [[], [7], [7, 77], [7, 77], [7, 77, 7, 1234, 5]]
    events = [event(ids, separators=separators) for ids in steps]
    reader = read(*events, event(steps[-1], finish=True, separators=separators))
    answer = reader.answer()
    assert answer is not None and answer.ids == tuple(steps[-1])
    assert (reader.count, answer.first_tokens) == (5, 1)


def test_another_way_of_writing_in_the_middle_changes_nothing() -> None:
    first, then = event([1, 2]), event([1, 2, 3], separators=(", ", ": "))
    answer = read(first, then, event([1, 2, 3, 4]), event([1, 2, 3, 4], finish=True)).answer()
    assert answer is not None and answer.ids == (1, 2, 3, 4)


@pytest.mark.parametrize("changed", [[1, 22], [9, 2, 3], [1], []])
def test_ids_that_were_sent_cannot_change(changed: list[int]) -> None:
    with pytest.raises(EngineError, match="retracted tokens"):
        read(event([1, 2]), event(changed), event(changed, finish=True))


NO_JSON = b'data: {"text":"x","output_ids":[1,],"meta_info":{"finish_reason":null}}\n\n'


@pytest.mark.parametrize("malformed", [event([1], text=5), event([1, "a"]), NO_JSON])
def test_what_is_no_text_and_no_ids_is_refused(malformed: bytes) -> None:
    with pytest.raises(EngineError, match="cannot be read"):
        read(event([1]), malformed)
