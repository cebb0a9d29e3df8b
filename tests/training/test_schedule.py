"""When a training run logs, saves and ends: by a clock that a test can turn."""

import json
import time
from pathlib import Path

import pytest

from training.schedule import Clock


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, to be set by a test."""
    hand = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: hand[0])
    return hand


def test_the_rate_rises_by_steps_and_falls_by_time_to_nothing(tmp_path: Path, now: list[float]) -> None:
    clock = Clock(tmp_path, minutes=10, warm_up=4)
    assert clock.share_of_rate() == 0.25
    for _ in range(4):
        clock.step(1.0, 100)
    assert clock.share_of_rate() == 1.0
    now[0] += 300
    clock.step(1.0, 100)
    assert clock.share_of_rate() == pytest.approx(0.5)
    assert not clock.done()
    now[0] += 400
    clock.step(1.0, 100)
    assert clock.done()
    assert clock.share_of_rate() == 0.0


def test_it_saves_now_and_then_and_at_the_end(tmp_path: Path, now: list[float]) -> None:
    clock = Clock(tmp_path, minutes=10, warm_up=1, minutes_between_saves=5)
    assert not clock.due_to_save()
    now[0] += 301
    assert clock.due_to_save()
    assert not clock.due_to_save()
    now[0] += 299
    clock.step(1.0, 1)
    assert clock.done()
    assert clock.due_to_save()


def test_the_log_counts_steps_and_tokens(tmp_path: Path, now: list[float]) -> None:
    clock = Clock(tmp_path, minutes=1, warm_up=1, log="log-1.jsonl", log_every=2)
    for loss in (3.0, 2.0, 2.0):
        now[0] += 1
        clock.step(loss, 1024)
    clock.note(validation_loss=1.5)
    lines = [json.loads(line) for line in (tmp_path / "log-1.jsonl").read_text("utf-8").splitlines()]
    assert lines == [
        {"step": 2, "tokens": 2048, "seconds": 2, "train_loss": 2.98},
        {"step": 3, "tokens": 3072, "seconds": 3, "validation_loss": 1.5},
    ]
