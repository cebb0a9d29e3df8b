"""A run's folder has one writer, whether it measures or replays; what an earlier launch saw is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchctl.data.store import RunData
from benchctl.data.writer import folder_lock
from benchctl.engines.base import Launch
from benchctl.errors import EngineError, StorageError
from benchctl.lossless.score import relaunch
from benchctl.lossless.score.relaunch import Relaunch, ScoringOutcome, Target
from benchctl.recipes.schema import GREEDY


class Engine:
    """Makes scorers that are only counted."""

    def __init__(self) -> None:
        self.logs: list[Path] = []
        self.stopped = 0

    def start_scorer(self, launch: Launch, log_path: Path, sampling: Any = None) -> Any:
        log_path.parent.mkdir(exist_ok=True)
        log_path.write_text("seen")
        self.logs.append(log_path)
        return self

    def stop(self) -> int:
        self.stopped += 1
        return 0


def test_two_do_not_replay_one_run_and_logs_are_kept(tmp_path: Path) -> None:
    engine: Any = Engine()
    relaunch = Relaunch(engine, Launch(("toy",), {}), GREEDY, {}, "")
    with relaunch.scorer(tmp_path, "replay"):
        assert engine.stopped == 0
        message = r"Another benchctl \(process \d+\) is measuring or replaying in this run"
        with pytest.raises(StorageError, match=message), relaunch.scorer(tmp_path, "replay"):
            pass
    with pytest.raises(KeyboardInterrupt), relaunch.scorer(tmp_path, "replay"):
        raise KeyboardInterrupt
    assert [log.name for log in engine.logs] == ["replay.log", "replay.1.log"]
    assert engine.stopped == 2
    with folder_lock(tmp_path):
        pass


def test_one_process_scores_everything_and_a_failure_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine: Any = Engine()
    second_launch = Relaunch(engine, Launch(("toy",), {}), GREEDY, {}, "")
    texts: list[str] = []

    def launched(_: RunData, name: str, **__: object) -> Relaunch:
        texts.append(name)
        return second_launch

    monkeypatch.setattr(relaunch, "relaunch", launched)
    with Target(RunData(tmp_path, None, [], []), "baseline") as target:
        for _ in range(2):
            with target.scorer():
                assert (len(engine.logs), engine.stopped) == (1, 0)
        outcome = ScoringOutcome()
        with outcome.keeping_failures(), target.scorer():
            raise EngineError("It died.", kind="crash")
        assert (outcome.reason, engine.stopped) == ("the engine failed: It died.", 1)
        with target.scorer():
            assert len(engine.logs) == 2
        target.stop()
        assert engine.stopped == 2
    assert (texts, engine.stopped) == (["baseline"], 2)
