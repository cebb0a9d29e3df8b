"""What drafts left out, added up from traces: which lines count, and by which context."""

from __future__ import annotations

import json
from pathlib import Path

from benchctl.data.cell import Canary, Cell
from benchctl.data.record import Record
from benchctl.data.rounds import LeftOut, read_left_out
from tests.analysis.conftest import build_manifest


def line(answer: int, context: int, drafted: int, left_out: list[str] | None) -> str:
    keys = {"schema": 1, "step": 1, "accepted": 0, "tokens": [7], "seconds": {}}
    return json.dumps({"answer": answer, "context": context, "drafted": drafted, "left_out": left_out, **keys})


def test_measured_rounds_that_drafted_are_added_up_by_context(tmp_path: Path) -> None:
    lines = [
        line(0, 20, 4, ["0.mlp"]),  # a warm-up
        line(1, 20, 0, None),  # no draft
        line(1, 20, 4, None),  # something else drafted
        line(1, 32, 4, ["0.attention", "0.attention"]),
        line(2, 17, 2, ["0.attention", "1.layer", "x", "9.other"]),
        line(2, 33, 2, []),
        line(2, 33, 2, ["2.mlp"])[:-9],  # cut off
        '{"answer": "2", "context": 1, "drafted": 1, "left_out": []}',
    ]
    for name in ("block0-swift", "block1-swift"):
        path = tmp_path / "logs" / f"{name}.rounds.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines))
    cells = [
        Cell(block=block, arm="swift", order=0, status="finished", started_at="", wall_s=1, log=f"logs/{name}.log")
        for block, name in ((0, "block0-swift"), (1, "block1-swift"), (2, "untraced"))
    ]
    manifest = build_manifest({"baseline": None, "swift": None}, 1, 2, cells=cells)
    warm_up = Record(label="swift", task="warmup", prompt_idx=0, rep=0, phase="warmup")
    left_out = read_left_out(tmp_path, manifest, [warm_up], {(1, "swift", 0)})
    assert left_out == [
        LeftOut("swift", 32, rounds=2, layers=2, times={"0.attention": 2, "1.layer": 1}),
        LeftOut("swift", 64, rounds=1, layers=0, times={}),
    ]
    cells[0].canary = Canary(task="code", prompt_idx=0, requests=1, exact=True, same=True)
    (row,) = read_left_out(tmp_path, manifest, [warm_up], {(1, "swift", 0)})
    assert (row.rounds, row.times) == (1, {"0.attention": 1}), "the last answer is the canary's"
    cells[0].canary.error = "It failed."
    assert read_left_out(tmp_path, manifest, [warm_up], {(1, "swift", 0)}) == left_out
    manifest.target.facts["layers"] = 6
    assert {row.layers for row in read_left_out(tmp_path, manifest, [warm_up], set())} == {6}


def test_a_run_without_traces_has_none(tmp_path: Path) -> None:
    assert read_left_out(tmp_path, build_manifest({"baseline": None}, 1, 1), [], set()) == []
