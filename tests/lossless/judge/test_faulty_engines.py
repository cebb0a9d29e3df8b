"""Deliberately wrong engines (`benchmarks.lossy_engines`), judged again from a kept run: each is found at its token."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from benchctl.analysis.output_results import LOSSLESS, Losslessness
from benchctl.data.store import open_run
from benchctl.lossless.judge.run import analyse_run
from benchmarks.keep import RESULTS
from benchmarks.lossy_engines.replayed import AT_ITS_TOKEN, NAME
from benchmarks.restore_runs import unpack

ROWS: dict[str, dict[str, Any]] = json.loads((RESULTS / f"{NAME}.json").read_text("utf-8"))["found"]
KEPT = {row["arm"]: row for row in ROWS.values() if row["setting"] == "tiny-hybrid as it is, 12 prompts"}


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Losslessness]:
    folder = tmp_path_factory.mktemp("faulty")
    with tarfile.open(RESULTS / f"{NAME}.tar.xz") as archive:
        unpack(archive, folder)
    (manifest,) = Path(folder).rglob("manifest.json")
    return {arm.arm: arm for arm in analyse_run(open_run(manifest.parent)).losslessness}


@pytest.mark.parametrize("arm", sorted(KEPT))
def test_an_arm_is_judged_as_it_was_and_at_the_token_of_its_fault(arm: str, judged: dict[str, Losslessness]) -> None:
    row, verdict = KEPT[arm], judged[arm]
    assert verdict.verdict == row["verdict"]
    assert verdict.replay is not None
    first = verdict.replay.first
    assert (first and [first.prompt_idx, first.index]) == row["first_found"]
    assert verdict.replay.deviating == row["found_tokens"]


@pytest.mark.parametrize("name", sorted(ROWS))
def test_replay_finds_what_was_planted_and_nothing_else(name: str) -> None:
    row = ROWS[name]
    assert row["not_planted"] == 0
    if row["fault"] is None:
        assert row["verdict"] in LOSSLESS
    elif row["fault"].startswith(AT_ITS_TOKEN):
        assert row["missed_tokens"] == 0
        assert (row["verdict"] == "violation") == (row["found_tokens"] > 0)
