"""Speed-up by the length of the answer, from when each token came: what answers that end earlier would have taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchctl.analysis.answer_length import find_answer_lengths, stops_paying
from benchctl.analysis.frame import make_frame
from benchctl.analysis.speed_results import AnswerLength
from benchctl.data.record import Record
from benchctl.data.store import RunData
from benchctl.lossless.judge.run import analyse_run
from benchctl.words.answer_length import sentences
from tests.analysis.conftest import build_manifest, build_record

SPEC = {"type": "draft-simple", "max": 2}

TOKENS = 65
"""An answer: the prompt's own token, and 64 of which each round of the arm brings two."""


def answer(label: str, block: int, gaps: list[float], steps: list[list[int]] | None, **more: Any) -> Record:
    values = {"burst_gaps_s": gaps, "target_steps": steps, "draft_n": 2 * len(steps or ())} | more
    return build_record(label, block=block, ids=list(range(TOKENS)), rate=64 / sum(gaps), **values)


def records(slow: float) -> list[Record]:
    """The baseline takes 1 s a token; the arm 1 s a round of two tokens up to token 33, then `slow` s."""
    rounds = [1.0] * 16 + [slow] * 16
    return [
        record
        for block in range(3)
        for record in (
            answer("baseline", block, [1.0 + block / 100] * 64, None, draft_n=None),
            answer("spec", block, [gap * (1 + block / 100) for gap in rounds], [[2, 1]] * 32),
        )
    ]


def test_an_answer_is_cut_at_the_burst_that_brings_the_token() -> None:
    manifest = build_manifest({"baseline": None, "spec": SPEC}, 1, 3)
    frame = make_frame(records(4.0), manifest, None)
    rows = find_answer_lengths(frame, frame.arms.index("spec"), 1)
    # 15 tokens after the first: 8 rounds; 31: 16 rounds; 63: 16 fast and 16 slow ones.
    assert [row.tokens for row in rows] == [16, 32, 64]
    assert [row.speedup for row in rows] == pytest.approx([15 / 8, 31 / 16, 63 / (16 + 4 * 16)])
    assert [row.stretch for row in rows] == pytest.approx([15 / 8, 16 / 8, 32 / (4 * 16)])
    assert [(row.pairs, row.acceptance) for row in rows] == [(3, 0.5)] * 3
    assert stops_paying(rows) == (32, 64)
    run = RunData(Path("x"), manifest, records(4.0), [])
    assert sentences(analyse_run(run)) == ["spec stops paying in longer answers: 1.94× at 32 tokens, 0.79× at 64."]
    assert sentences(analyse_run(RunData(Path("x"), manifest, records(2.0), []))) == [], "faster at 64, too"


def test_nothing_is_said_where_it_is_not_known_when_a_token_came() -> None:
    def lengths(measured: list[Record]) -> list[AnswerLength]:
        return find_answer_lengths(make_frame(measured, build_manifest({"baseline": None, "spec": SPEC}, 1, 3)), 1, 1)

    usual = lengths(records(1.0))
    assert len(usual) == 3
    characters = [
        record.changed(burst_gaps_s=[2.0 * gap for gap in gaps[::2]], decode_s=sum(gaps))
        if record.label == "baseline" and (gaps := record.burst_gaps_s)
        else record
        for record in records(1.0)
    ]
    assert [row.speedup for row in lengths(characters)] == pytest.approx([row.speedup for row in usual])
    lacking = [record.changed(target_steps=None) if record.label == "spec" else record for record in records(1.0)]
    assert lengths(lacking) == [], "32 bursts of 64 tokens, and nothing says of which"
    fastest = [record.changed(burst_gaps_s=[9.0]) if record.block == 2 else record for record in records(1.0)]
    assert lengths(fastest) == [], "the two pairs that are known may be the slow ones"
    assert lengths([record.changed(burst_gaps_s=(record.burst_gaps_s or [])[2:]) for record in records(1.0)]) == []
    for first in ([0, 2, 1], [2, 3], []):  # read with the prompt, or impossible
        steps = [[first, *[[2, 1]] * 31] if record.label == "spec" else None for record in records(1.0)]
        changed = [record.changed(target_steps=new) for record, new in zip(records(1.0), steps, strict=True)]
        assert lengths(changed) == []
    again = [
        record.changed(target_steps=[[2, 0, 1]] * 32) if record.label == "spec" else record for record in records(1)
    ]
    assert [row.acceptance for row in lengths(again)] == [0.0] * 3, (
        "what is read again ends with the target's own token"
    )
