"""What is read of a part of a run with axes is kept under that part's name."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchctl.data.scores import TargetScores
from benchctl.data.store import MANIFEST, RunData, open_run
from benchctl.lossless.score import session


def test_the_noise_of_shared_batches_is_kept_with_its_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "read_shared", lambda *_, **__: None)
    relaunch: Any = SimpleNamespace(slot_scorer=lambda *_: nullcontext())
    selection: Any = SimpleNamespace(prompts=())
    scores = TargetScores.model_construct(answers=[], passes=[], seconds=0.0)
    folder = Path(__file__).parents[2] / "data" / "kept" / "run"
    shutil.copy(folder / MANIFEST, tmp_path)
    manifest = open_run(folder).manifest
    run = RunData(tmp_path, manifest, [], [])
    for part in (run, replace(run, part="kv_q8_0")):
        target: Any = SimpleNamespace(run=part)
        session.ScoringSession(target, scores)._read_shared(scores, relaunch, selection, 5, 4, 0.0)
    assert {file.name for file in tmp_path.iterdir()} >= {"scores-kv_q8_0.json", "scores.json"}
