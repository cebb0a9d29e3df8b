"""The shortest plan and how often it shows the fault, on a server that is made up."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from benchctl.experiments.stress import reproduce as module
from benchctl.experiments.stress.judge import judge_stress
from benchctl.experiments.stress.stored import Played, StressAnswer
from tests.experiments.stress.test_judge import REPEATED, answers, stress_test


@pytest.mark.parametrize(("ends_after", "attempts"), [(99, 5), (3, 2)])
def test_an_attempt_that_the_time_cut_short_is_none(
    monkeypatch: pytest.MonkeyPatch, ends_after: int, attempts: int
) -> None:
    """Each shows the fault; the time is up within the one after `ends_after`, which sends nothing."""
    requests = REPEATED[:1]
    arm = answers(requests, lambda name, answer: setattr(answer, "error", "HTTP 500"))
    test = stress_test(arm, requests=requests)
    (result,) = judge_stress(test)
    clock, played_before = [0.0], [0]
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(module, "running", nullcontext)

    def make_sender(server: Any, played: Played, until: float) -> Any:
        async def play(waves: Any) -> None:
            names = [request.id for wave in waves for request in wave.requests]
            played_before[0] += bool(names)
            if played_before[0] > ends_after:
                clock[0], sender.late = until, len(names)
            else:
                played.answers |= {
                    name: StressAnswer(started_s=0, prompt_sha256="", error="HTTP 500") for name in names
                }

        sender = SimpleNamespace(play=play, late=0, sent=[], together=[])
        return sender

    def start(arm: str) -> Any:
        return None

    shortest = module.reproduce(test, result, start, make_sender, lambda *_: None, 60.0)
    assert shortest is not None
    assert (shortest.shown, shortest.attempts) == (attempts, attempts)
