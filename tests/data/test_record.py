"""The record: what a line may hold, and what is said of one that is none."""

from __future__ import annotations

import hashlib
import json
import math

import pytest

from benchctl.data.record import Record, RecordError, sha256_tokens

PLAIN = {"label": "spec", "task": "code", "prompt_idx": 3, "rep": 2, "draft_n": 8, "content": "x", "schema": 1}


def line(**more: object) -> str:
    return json.dumps(PLAIN | more)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not json", "Expecting value"),
        ("[1, 2]", "no JSON object"),
        (line()[:-5], "starting at"),
        (json.dumps({"label": "spec"}), "task"),
        (line(prompt_idx=-1), r">= 0.*prompt_idx"),
        (line(draft_n="many"), r"int.*draft_n"),
        (line(draft_n=1.5), r"int.*draft_n"),
        (line(block=None), r"int.*block"),
        (line(content=5), r"str.*content"),
        (line(phase="later"), r"later.*phase"),
        (line(token_ids=[1, None]), r"token_ids\[1\]"),
        (line(error={"kind": "crash"}), r"message.*error"),
        (f'{{"label": {"[" * 100_000}', "nested too deeply"),
    ],
)
def test_what_is_no_record_is_a_value_error_that_names_why(text: str, message: str) -> None:
    for form in (text, text.encode()):
        with pytest.raises(ValueError, match=message):
            Record.from_line(form)


@pytest.mark.parametrize("place", ["content", "a later key", "a value of a later key"])
def test_broken_utf8_is_found_in_what_is_not_read_too(place: str) -> None:
    values = PLAIN | {"a later key": "a value of a later key"}
    broken = json.dumps(values).encode().replace(place.encode(), place.encode() + b"\xff", 1)
    with pytest.raises(ValueError, match="utf-8"):
        Record.from_line(broken)


def test_what_other_writers_of_json_do_is_read() -> None:
    assert Record.from_line(line()) == Record.from_line("\ufeff".encode() + line().encode())
    assert Record.from_line(line(draft_n=8.0, prompt_idx=3.0)) == Record.from_line(line())
    assert Record.from_line(line(tok_per_sec=12)).tok_per_sec == 12.0
    assert math.isnan(Record.from_line(line(tok_per_sec=math.nan)).tok_per_sec or 0)
    assert Record.from_line(line(content="\ud800")).content == "\ud800"
    assert Record.from_line(json.dumps(PLAIN | {"content": "日本"}, ensure_ascii=False).encode()).content == "日本"


def test_unknown_keys_are_left_out_and_absent_ones_are_none() -> None:
    record = Record.from_line(line(later={"a": [1]}))
    assert "later" not in record.to_dict()
    assert (record.n_predicted, record.draft_n_accepted, record.token_ids, record.error) == (0, None, None, None)
    assert record.target_steps is None


def test_a_line_keeps_every_value_under_the_keys_of_the_schema() -> None:
    full = Record.from_line(
        line(token_ids=[], target_steps=[[4, 2, 3], [0, 0]], error={"kind": "crash", "message": "gone"})
    )
    parsed = json.loads(full.to_line())
    assert list(parsed)[:4] == ["label", "task", "prompt_idx", "rep"]
    assert (parsed["schema"], parsed["token_ids"], parsed["rounds"]) == (1, [], None)
    assert Record.from_line(full.to_line()) == full == Record.from_dict(full.to_dict())
    with pytest.raises(ValueError, match="not JSON compliant"):
        full.changed(tok_per_sec=math.nan).to_line()


def test_what_was_verified_is_unknown_where_the_engine_does_not_tell_and_in_older_records_all_that_was_drafted() -> (
    None
):
    older = Record.from_line(line(draft_n=8))
    assert (older.verified, Record.from_line(older.to_line()).verified) == (8, 8)
    silent = Record.from_line(line(draft_n=8, verified_n=None))
    assert (silent.verified, Record.from_line(silent.to_line()).verified) == (None, None)
    assert Record.from_line(line(draft_n=8, verified_n=5)).verified == 5


def test_a_changed_copy_leaves_the_record_as_it_was() -> None:
    record = Record.from_dict(PLAIN)
    failed = record.changed(error=RecordError(kind="crash", message="gone"), schema_version=0)
    assert (record.error, record.key, failed.key) == (None, (0, "spec", "code", 3), (2, "spec", "code", 3))
    with pytest.raises(TypeError, match="no field 'nothing'"):
        record.changed(nothing=1)
    with pytest.raises(AttributeError):
        record.label = "other"  # type: ignore[misc]


@pytest.mark.parametrize("ids", [[], [7], [0, 31999, 2**70], (1, 2)])
def test_the_hash_of_tokens_is_that_of_their_decimal_list(ids: list[int]) -> None:
    assert sha256_tokens(ids) == hashlib.sha256(",".join(str(token) for token in ids).encode()).hexdigest()
