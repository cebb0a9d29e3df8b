"""The shortest plan that still shows what a scenario showed, found with fresh engines, as a bug report needs it."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Sequence

from benchctl.engines.in_use import ServerInUse
from benchctl.experiments.stress.judge import ScenarioResult, fork, invalid_code
from benchctl.experiments.stress.plan import Request
from benchctl.experiments.stress.send import Sender
from benchctl.experiments.stress.shrink import leading_up, only, shrink
from benchctl.experiments.stress.stored import Divergence, Played, Reproduction, StressAnswer, StressTest
from benchctl.measurement.cell import running
from benchctl.words.stress import likeliest_listed

TRIES = 3
"""Attempts at a plan whose requests are in flight at the same time: their timing differs from run to run."""
ATTEMPTS = 5
"""Attempts at the shortest plan, which tell how often it shows the fault."""
Start = Callable[[str], ServerInUse]
MakeSender = Callable[[ServerInUse, Played, float], Sender]
Gap = Callable[[StressAnswer, Divergence], float | None]
"""Scores a divergence on the target: see `Divergence.gap`."""


def reproduce(
    test: StressTest, result: ScenarioResult, start: Start, make_sender: MakeSender, gap: Gap, until: float
) -> Reproduction | None:
    """Return the shortest plan found until then (`time.perf_counter`); `None` where the fault does not show again.

    Raises EngineError where the engine cannot be started.
    """
    request = last_needed(test, result)
    return None if request is None else _Search(test, result, request, start, make_sender, gap, until).run()


def last_needed(test: StressTest, result: ScenarioResult) -> str | None:
    """Return the request up to which a process is repeated: the first that shows the fault; `None` without any.

    What a crowd answers differs from run to run: of the process with most wrong answers, the last of them.
    """
    if result.failures:
        return result.failures[0]
    if result.unexplained:
        return result.unexplained[0].request
    limit = math.inf if result.limit is None else result.limit
    beyond = {each.request for each in test.played[result.arm].divergences if (each.gap or 0.0) > limit}
    crowds = [
        [request.id for request in process.requests if request.id in beyond]
        for process in test.plan.processes
        if process.scenario == result.scenario and any(wave.clients > 1 for wave in process.waves)
    ]
    if most := max(crowds, key=len, default=[]):
        return most[-1]
    return None if result.shown is None else result.shown.request


class _Search:
    """Plays parts of the process in which the fault showed. Any request that shows it counts, not just the same one."""

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
        self._waves = leading_up(process, request)
        ids = {member.id for member in process.requests}
        earlier = test.played[result.arm].answers
        self._earlier = {name: answer for name, answer in earlier.items() if name not in ids}
        """Answers of other processes, of which requests may be made."""
        self._control = test.played[test.manifest.baseline].answers
        self._firsts: dict[str | None, StressAnswer] = {}
        for member in test.plan.of(result.scenario):
            if (answer := earlier.get(member.id)) is not None and answer.error is None:
                self._firsts.setdefault(member.unit, answer)
        self._sent: list[tuple[str, str]] = []
        self._together: list[int] = []
        self._played: list[str] = []
        self._shown = ""
        self._cut_short = False

    def run(self) -> Reproduction | None:
        """Shorten the plan."""
        names = [member.id for wave in self._waves for member in wave.requests]
        if not self._shows(names):
            return None
        shrink(names, lambda some: self._time_left and self._shows(some))
        shortest, sent, together, shown = self._played, self._sent, self._together, self._shown
        command = next(arm.argv for arm in self._test.manifest.arms if arm.name == self._result.arm)
        rate: list[bool] = []
        while len(rate) < ATTEMPTS and self._time_left:
            shows = self._shows(shortest, tries=1)
            rate += [] if self._cut_short else [shows]
        return Reproduction(
            arm=self._result.arm,
            scenario=self._result.scenario,
            command=(*command, *self._test.options.get(self._result.scenario, ())),
            requests=sent,
            together=together,
            shows=shown,
            attempts=len(rate),
            shown=sum(rate),
        )

    @property
    def _time_left(self) -> bool:
        return time.perf_counter() < self._until

    def _shows(self, names: Sequence[str], tries: int = TRIES) -> bool:
        """Whether the fault shows with these requests alone, in any of a few attempts; keeps what was sent."""
        waves = only(self._waves, names)
        for _ in range(tries if any(wave.clients > 1 for wave in waves) else 1):
            played = Played(answers=dict(self._earlier))
            with running(self._start(self._result.arm)) as server:
                sender = self._make_sender(server, played, self._until)
                asyncio.run(sender.play(waves))
            self._cut_short = sender.late > 0
            requests = [member for wave in waves for member in wave.requests if member.id in played.answers]
            number = 0
            for member in requests:
                answer = played.answers[member.id]
                number += 1 + (answer.restored is not None)  # slot files are moved by requests of their own
                if self._is_faulty(member, answer, played.answers):
                    self._played = [sent.id for sent in requests]
                    self._together = sender.together
                    self._sent = [(path, json.dumps(body, ensure_ascii=False)) for path, body in sender.sent]
                    text = likeliest_listed(answer.listed) if answer.listed else repr(answer.text)
                    self._shown = f"request {number}: {answer.error or text}"
                    return True
                number += member.saves and answer.error is None
        return False

    def _is_faulty(self, request: Request, answer: StressAnswer, answers: dict[str, StressAnswer]) -> bool:
        result = self._result
        if result.failures or answer.error is not None:
            return bool(result.failures) and answer.error is not None
        if result.unexplained:
            return invalid_code(request, answers) == result.unexplained[0].code
        references = [self._firsts.get(request.unit)] if request.unit else []
        if request.unit and result.limit is not None:  # else a near-tie would do, whose sides arm and control may take
            references.append(self._control.get(request.id))
        places = (fork(answer, reference) for reference in references if reference is not None)
        return any(self._is_beyond(request.id, answer, *place) for place in places if place is not None)

    def _is_beyond(self, request: str, answer: StressAnswer, index: int, tokens: tuple[int | None, int | None]) -> bool:
        """Whether the target prefers another token here by more than rounding explains."""
        divergence = Divergence(request=request, reference=request, against="first", index=index, tokens=tokens)
        gap, limit = self._gap(answer, divergence), self._result.limit
        return limit is None or (gap is not None and gap > limit)
