"""The shortest plan that still shows what a scenario showed, found with fresh engines, as a bug report needs it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence

from benchctl.engines.base import ServerInUse
from benchctl.experiments.stress.judge import ScenarioResult, fork, invalid_code
from benchctl.experiments.stress.plan import Wave
from benchctl.experiments.stress.send import Sender
from benchctl.experiments.stress.shrink import leading_up, needs, only, shrink
from benchctl.experiments.stress.stored import Divergence, Played, Reproduction, StressAnswer, StressTest
from benchctl.measurement.cell import running
from benchctl.words.stress import likeliest_listed

TRIES = 3
"""Attempts at a plan whose requests are in flight at the same time: their timing differs from run to run."""
Start = Callable[[str], ServerInUse]
MakeSender = Callable[[ServerInUse, Played], Sender]
Gap = Callable[[StressAnswer, Divergence], float | None]
"""Scores a divergence on the target: see `Divergence.gap`."""


def reproduce(
    test: StressTest, result: ScenarioResult, start: Start, make_sender: MakeSender, gap: Gap, seconds: float
) -> Reproduction | None:
    """Return the shortest plan found within so many seconds; `None` where the fault does not show again.

    Raises EngineError where the engine cannot be started.
    """
    if result.failures:
        request = result.failures[0]
    elif result.invalid:
        request = result.invalid[0].request
    elif result.shown is not None:
        request = result.shown.request
    else:
        return None
    return _Search(test, result, request, start, make_sender, gap, time.monotonic() + seconds).run()


def _together(wave: Wave) -> list[int]:
    """Return the sizes of the groups of a wave's requests that are in flight at the same time."""
    return [len(wave.requests)] if wave.clients > 1 else [1] * len(wave.requests)


class _Search:
    def __init__(
        self,
        test: StressTest,
        result: ScenarioResult,
        request: str,
        start: Start,
        make_sender: MakeSender,
        gap: Gap,
        until: float,
    ) -> None:
        self._test, self._result, self._until = test, result, until
        self._start, self._make_sender, self._gap = start, make_sender, gap
        process = next(each for each in test.plan.processes if request in {member.id for member in each.requests})
        self._target = next(member for member in process.requests if member.id == request)
        self._waves = leading_up(process, request)
        ids = {member.id for member in process.requests}
        earlier = test.played[result.arm].answers
        self._earlier = {name: answer for name, answer in earlier.items() if name not in ids}
        """Answers of other processes, of which requests may be made."""
        self._sent: list[tuple[str, str]] = []
        self._shown = ""

    def run(self) -> Reproduction | None:
        """Shorten the plan."""
        by_id = {member.id: member for process in self._test.plan.processes for member in process.requests}
        fixed = {*needs(self._target, by_id), self._target.id}
        names = [member.id for wave in self._waves for member in wave.requests]

        def chosen(some: Sequence[str]) -> list[str]:
            return [name for name in names if name in {*some, *fixed}]

        if not self._shows(names):
            return None
        removable = [name for name in names if name not in fixed]
        shortest = chosen(shrink(removable, lambda some: time.monotonic() < self._until and self._shows(chosen(some))))
        shown = [self._shows(shortest, tries=1) for _ in range(TRIES)]
        waves = only(self._waves, shortest)
        return Reproduction(
            arm=self._result.arm,
            scenario=self._result.scenario,
            command=tuple(next(arm.argv for arm in self._test.manifest.arms if arm.name == self._result.arm)),
            requests=self._sent,
            together=[size for wave in waves for size in _together(wave)],
            shows=self._shown,
            attempts=len(shown),
            shown=sum(shown),
        )

    def _shows(self, names: Sequence[str], tries: int = TRIES) -> bool:
        """Whether the fault shows with these requests alone, in any of a few attempts; keeps what was sent."""
        waves = only(self._waves, names)
        for _ in range(tries if any(wave.clients > 1 for wave in waves) else 1):
            played = Played(answers=dict(self._earlier))
            with running(self._start(self._result.arm)) as server:
                sender = self._make_sender(server, played)
                asyncio.run(sender.play(waves))
            answer = played.answers.get(self._target.id)
            if answer is not None and self._is_faulty(answer, played.answers):
                self._sent = [(path, json.dumps(body, ensure_ascii=False)) for path, body in sender.sent]
                self._shown = answer.error or (likeliest_listed(answer.listed) if answer.listed else repr(answer.text))
                return True
        return False

    def _is_faulty(self, answer: StressAnswer, answers: dict[str, StressAnswer]) -> bool:
        result = self._result
        if result.failures or answer.error is not None:
            return bool(result.failures) and answer.error is not None
        if result.invalid:
            return invalid_code(self._target, answers) == result.invalid[0].code
        assert result.shown is not None
        side = result.arm if result.shown.against == "first" else self._test.manifest.baseline
        place = fork(answer, self._test.played[side].answers[result.shown.reference])
        if place is None:
            return False
        divergence = result.shown.model_copy(update={"index": place[0], "tokens": place[1]})
        gap = self._gap(answer, divergence)
        return result.limit is None or (gap is not None and gap > result.limit)
