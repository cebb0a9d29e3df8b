"""The shortest plan and how often it shows the fault, on a server that is made up."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchctl.engines.in_use import ServerInUse
from benchctl.experiments.stress import reproduce as module
from benchctl.experiments.stress.judge import judge_stress
from benchctl.experiments.stress.plan import Plan, ProcessPlan, Wave
from benchctl.experiments.stress.stored import ListedFault, Played, StressAnswer, StressTest
from tests.experiments.stress.test_judge import PLAIN, REPEATED, STOP, answers, changed, request, stress_test


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


def test_the_shortest_plan_shows_what_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the fault that is on the engine's list; and an answer that is wrong from the first asking on."""
    fault = ListedFault(arms=("spec",), sentence="Lists are empty.", lacks="log probabilities")
    requests = [PLAIN, request(1, None, listed=True), request(2, None, stop=STOP)]

    def change(name: str, answer: StressAnswer) -> None:
        answer.listed, answer.stop = ((5, 0), None) if name == "r1" else (None, "b" if name == "r2" else None)

    arm, control = answers(requests, change), answers(requests)
    control.answers["r2"].text = "a"
    assert shown(monkeypatch, stress_test(arm, control, requests, "constraint", faults=[fault])) == "request 1: 'abc'"
    always = answers(REPEATED, changed("r3", "r15"))
    assert shown(monkeypatch, stress_test(always, gaps={"r3": 1.0, "r15": 1.0})) == "request 1: 'abc'"
    names = [f"r{number}" for number in range(12, 19)]
    unscored = stress_test(answers(REPEATED, changed("r3", *names)), noise={})
    assert shown(monkeypatch, unscored) == "request 1: 'abc'", "not r3, which differs from the target alone"


def test_of_a_crowd_the_process_with_most_wrong_answers_is_repeated() -> None:
    arm, wrong = answers(REPEATED, changed("r12", "r20", "r21", "r22")), ("r12", "r20", "r21")
    test = stress_test(arm, gaps=dict.fromkeys(wrong, 1.0))
    processes = [
        ProcessPlan(scenario="canary", name=f"{first}", waves=(Wave(requests=tuple(REPEATED[first:end]), clients=4),))
        for first, end in ((0, 12), (12, 15), (15, 24))
    ]
    test.plan = Plan(seed=1, size=1, processes=tuple(processes))
    (result,) = judge_stress(test)
    assert module.last_needed(test, result) == "r21", "r22 is within the noise"
    for process in test.plan.processes:
        process.waves[0].clients = 1
    assert module.last_needed(test, result) == "r12"


@pytest.mark.parametrize(("restored", "line"), [(None, 3), (16, 4)])
def test_a_fault_is_counted_as_its_line_is(monkeypatch: pytest.MonkeyPatch, restored: int | None, line: int) -> None:
    """A slot is saved and restored by lines of their own; where that fails, nothing else is sent."""
    requests = [request(0, None, slot=0, saves=True), request(1, "p1", slot=0, restores="r0")]

    def fails(name: str, answer: StressAnswer) -> None:
        answer.error, answer.restored = ("HTTP 400", restored) if name == "r1" else (None, None)

    monkeypatch.setattr(module, "shrink", lambda names, shows: None)  # these answers do not depend on what is left out
    test = stress_test(answers(requests, fails), requests=requests, scenario="slot files")
    assert shown(monkeypatch, test) == f"request {line}: HTTP 400"


def shown(monkeypatch: pytest.MonkeyPatch, test: StressTest) -> str | None:
    """Return what the shortest plan shows, where every request is answered as in the test, and scored as 1 nat."""
    monkeypatch.setattr(module, "running", nullcontext)
    (result,) = judge_stress(test)

    def make_sender(server: Any, played: Played, until: float) -> Any:
        async def play(waves: Any) -> None:
            names = [request.id for wave in waves for request in wave.requests]
            played.answers |= {name: test.played["spec"].answers[name] for name in names}

        return SimpleNamespace(play=play, late=0, sent=[], together=[])

    shortest = module.reproduce(test, result, lambda arm: cast("ServerInUse", None), make_sender, lambda *_: 1.0, 1e99)
    return shortest.shows if shortest else None
