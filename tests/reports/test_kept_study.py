"""The PLaMo 2 study as it is kept (docs/plamo2.md): its table is whole, and a float32 target is its ground truth."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from benchctl.cli.app import app
from benchmarks.restore_runs import REPOSITORY, unpack
from tests.cli.calls import answer, call

KEPT = REPOSITORY / "benchmarks" / "results" / "plamo2-study.tar.xz"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The run of the recipe, whose target is in q8_0, and the same with its target unquantized."""
    folder = tmp_path_factory.mktemp("kept")
    with tarfile.open(KEPT) as packed:
        unpack(packed, folder)
    manifests = {path.parent: json.loads(path.read_text("utf-8")) for path in folder.glob("*/*/manifest.json")}
    return {
        "f32" if manifest["recipe"]["models"]["target"]["quantize"] is None else "q8_0": run
        for run, manifest in manifests.items()
    }


def test_the_table_is_whole(runs: dict[str, Path]) -> None:
    result = json.loads(answer(app, "report", str(runs["q8_0"]), "--layout", "plamo2-study", "--json"))
    rows = [row for row in result["configurations"] if row["configuration"].startswith("spec_")]
    assert len(rows) == 4 * 4, "four depths, three tasks and all of them"
    for row in rows:
        assert 0 < row["acceptance"] < 1
        assert row["tok_per_sec"] and row["speedup"] and row["checkpoint_bytes"] and row["identical"] is not None
    assert result["draft_alone"]["tok_per_sec"] and result["draft_alone"]["ratio"]


def test_precision_and_speculation_are_told_apart(runs: dict[str, Path]) -> None:
    words = ("verify-against", str(runs["q8_0"]), str(runs["f32"]), "--json")
    result = json.loads(call(app, *words).stdout)
    (pair,) = result["baselines"]
    assert pair["differs_in"] == ["precision"]
    assert 0 < len(pair["differing"]) < pair["prompts"]
    assert {sum(arm["counts"].values()) for arm in result["arms"]} == {12}
