"""What a stress test shows of each arm in each scenario: a pure function of its plan and its answers.

First come errors and invalid answers: those of the arm where the control, the target alone under the same plan, answers
well. An invalid answer that a fault on the engine's own list explains is told apart. Then two rules. One divergence is
enough where the target prefers its likeliest token by more than the noise that was measured on the control. Small
divergences count by prompt: McNemar's exact one-sided test of the prompts whose answer changed in the arm alone against
those in the control alone, adjusted by Holm over arms and scenarios.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Literal

from benchctl.analysis.answers import common_length
from benchctl.analysis.result import Result
from benchctl.analysis.statistics import holm
from benchctl.experiments.stress.counters import Exercised, exercised
from benchctl.experiments.stress.plan import SCENARIOS, SCHEMA, Request, ScenarioName
from benchctl.experiments.stress.stored import Divergence, Played, StressAnswer, StressTest
from benchctl.prompts.rules import Rules

StressWord = Literal["violation", "fails", "known fault", "undetermined", "stable", "not exercised", "control unstable"]
"""Never “lossless”: a test of states that were provoked shows nothing of others."""
InvalidCode = Literal["schema", "stop string passed", "ended before its stop string", "log probabilities"]
FACTOR = 3.0
"""A gap may be so many times the largest move that was measured: both answers move, and short samples lack the tail."""
LEAST_NATS = 0.001
"""No smaller margin is taken for a violation: engines print log probabilities with few digits."""
SUSPECT = 0.125
"""Of the paired test of a scenario alone: three prompts that changed in the arm, none in the control."""


class Invalid(Result):
    """An answer that does not keep what its request asks for, where the control's does."""

    request: str
    code: InvalidCode
    explained: bool = False
    """Whether a fault on the engine's list explains it."""


class ScenarioResult(Result):
    """The verdict on an arm in a scenario."""

    arm: str
    scenario: ScenarioName
    verdict: StressWord
    apart: StressWord
    """The verdict without invalid answers that a fault on the engine's list explains."""
    faults: list[str]
    """The sentences of those faults."""
    exercised: Exercised
    control: Exercised
    failures: list[str]
    """Requests that failed in the arm and not in the control."""
    aborts: int
    """How many of these the engine ended with."""
    invalid: list[Invalid]
    units: int
    """Prompts that were answered several times by arm and control."""
    changed: int
    changed_control: int
    arm_alone: int
    """Prompts that changed in the arm and not in the control."""
    control_alone: int
    p: float
    adjusted: float
    """p, adjusted by Holm."""
    needed: int
    """Prompts that must change in the arm alone for the test to reject."""
    limit: float | None
    """Nats that rounding may account for; `None`: the noise is not known."""
    largest: float | None
    """The largest gap of a divergence of the arm that was scored."""
    unscored: int
    """Divergences from the control that were not scored, where the noise is known."""
    shown: Divergence | None
    """The first divergence beyond the limit; of a violation by the test, the first from an earlier answer."""

    @property
    def unexplained(self) -> list[Invalid]:
        """The invalid answers that count against the arm."""
        return [item for item in self.invalid if not item.explained]


def divergences(requests: Sequence[Request], arm: Played, control: Played | None) -> list[Divergence]:
    """Return where answers of an arm leave its first answer to the same request, and the control's in the same place.

    `control`: `None` for the control itself.
    """
    listed: list[Divergence] = []
    firsts: dict[str, str] = {}
    for request in requests:
        answer = arm.answers.get(request.id)
        if answer is None or answer.error is not None or request.unit is None:
            continue
        first = firsts.setdefault(request.unit, request.id)
        references: list[tuple[Literal["first", "control"], str, StressAnswer | None]] = []
        if first != request.id:
            references.append(("first", first, arm.answers[first]))
        if control is not None:
            references.append(("control", request.id, control.answers.get(request.id)))
        for against, name, other in references:
            if other is not None and (place := fork(answer, other)) is not None:
                listed.append(
                    Divergence(request=request.id, reference=name, against=against, index=place[0], tokens=place[1])
                )
    return listed


def fork(answer: StressAnswer, other: StressAnswer) -> tuple[int, tuple[int | None, int | None]] | None:
    """Return where two answers to the same prompt differ and the tokens there; `None` where they do not."""
    if other.error is not None or answer.prompt_sha256 != other.prompt_sha256:
        return None
    if answer.token_ids is None or other.token_ids is None:
        return None if answer.text == other.text else (common_length(answer.text, other.text), (None, None))
    if answer.token_ids == other.token_ids:
        return None
    index = common_length(answer.token_ids, other.token_ids)
    ours, theirs = ([*ids[index : index + 1], None][0] for ids in (answer.token_ids, other.token_ids))
    return index, (ours, theirs)


def invalid_code(request: Request, answers: Mapping[str, StressAnswer]) -> InvalidCode | None:
    """Return what of the request an answer does not keep; `None` where it keeps all, or was cut by its limit."""
    answer = answers[request.id]
    stop = (answer.stop,) if request.stop is not None and answer.stop else ()
    rules = Rules(answer_schema=SCHEMA if request.by_schema else None, stop=stop)
    kept = rules.kept(answer.text, cut=answer.finish != "stop")
    if kept.status == "invalid" and kept.enforced:
        return "stop string passed" if kept.code == "stop" else "schema"
    if request.stop is not None and answer.stop:
        plain = answers[request.stop.answer_of].text
        expected = plain[: plain.find(answer.stop)]
        if answer.text != expected and expected.startswith(answer.text):
            return "ended before its stop string"
    if request.listed and answer.listed is not None and 0 in answer.listed:
        return "log probabilities"
    return None


def one_sided(arm_alone: int, control_alone: int) -> float:
    """Return P(at least `arm_alone` of the discordant prompts are the arm's), each side as likely: McNemar (1947)."""
    count = arm_alone + control_alone
    return float(sum(math.comb(count, k) for k in range(arm_alone, count + 1)) / 2**count)


def limit_of(test: StressTest) -> float | None:
    """Return the nats that rounding may account for in a test; `None` where the noise was not measured."""
    return max(LEAST_NATS, FACTOR * max(test.noise.values())) if test.noise else None


def judge_stress(test: StressTest) -> list[ScenarioResult]:
    """Return the verdicts of a stored test, arm by arm, scenarios in their usual order."""
    played = [name for name in SCENARIOS if test.plan.of(name)]
    cells = [_Cell(test, arm, scenario) for arm in test.arms for scenario in played]
    adjusted = holm([cell.p for cell in cells])
    return [cell.result(value, len(cells)) for cell, value in zip(cells, adjusted, strict=True)]


class _Cell:
    """An arm in a scenario."""

    def __init__(self, test: StressTest, arm: str, scenario: ScenarioName) -> None:
        self._test, self._name, self._scenario = test, arm, scenario
        self._requests = test.plan.of(scenario)
        ids = {request.id for request in self._requests}
        empty = Played()
        self._arm, self._control = test.played.get(arm, empty), test.played.get(test.manifest.baseline, empty)
        self._of_arm = [divergence for divergence in self._arm.divergences if divergence.request in ids]
        self._of_control = [divergence for divergence in self._control.divergences if divergence.request in ids]
        self._units = self._asked_again(self._arm) & self._asked_again(self._control)
        unit_of = {request.id: request.unit for request in self._requests}
        first = [divergence for divergence in self._of_arm if divergence.against == "first"]
        self._changed = {unit_of[divergence.request] for divergence in first} & self._units
        self._changed_control = {unit_of[divergence.request] for divergence in self._of_control} & self._units
        self._alone = len(self._changed - self._changed_control)
        self._control_alone = len(self._changed_control - self._changed)
        self.p = one_sided(self._alone, self._control_alone)

    def _asked_again(self, played: Played) -> set[str | None]:
        """Return the units that have several answers."""
        answered = [
            request.unit for request in self._requests if request.unit and _sound(played.answers.get(request.id))
        ]
        return {unit for unit in answered if answered.count(unit) > 1}

    def result(self, adjusted: float, family: int) -> ScenarioResult:
        """Return the verdict. `family`: how many tests the level is shared among."""
        test, limit = self._test, limit_of(self._test)
        arm, control = (
            exercised(
                self._scenario,
                self._requests,
                side.answers,
                test.slots,
                test.contexts.get(self._scenario),
                side.counted.get(self._scenario, {}),
            )
            for side in (self._arm, self._control)
        )
        listed_faults = {row.lacks: row.sentence for row in test.faults if row.lacks and self._name in row.arms}
        failures, invalid = list(self._failures()), list(self._invalid(listed_faults))
        far, far_control = (
            [item for item in listed if limit is not None and item.gap is not None and item.gap > limit]
            for listed in (self._of_arm, self._of_control)
        )
        tested = adjusted <= test.level
        unscored = any(item.against == "first" and (item.gap is None or limit is None) for item in self._of_arm)
        scored, missed = (0, 0) if limit is None else self._scored()
        blind = missed > scored
        suspect = self.p <= SUSPECT or (unscored and self._alone > self._control_alone) or blind
        explained = {item.code for item in invalid if item.explained}
        verdict: StressWord = "stable"
        if control.errors or far_control:
            verdict = "control unstable"
        elif far or tested or not all(item.explained for item in invalid):
            verdict = "violation"
        elif failures:
            verdict = "fails"
        elif suspect:
            verdict = "undetermined"
        elif arm.lacking:
            verdict = "not exercised"
        worse = ("control unstable", "violation", "fails")
        gaps = [item.gap for item in self._of_arm if item.gap is not None]
        changed_first = sorted(self._of_arm, key=lambda item: item.against != "first")
        return ScenarioResult(
            arm=self._name,
            scenario=self._scenario,
            verdict="known fault" if explained and verdict not in worse else verdict,
            apart=verdict,
            faults=[listed_faults[code] for code in sorted(explained)],
            exercised=arm,
            control=control,
            failures=failures,
            aborts=sum(self._arm.answers[request].ended for request in failures),
            invalid=invalid,
            units=len(self._units),
            changed=len(self._changed),
            changed_control=len(self._changed_control),
            arm_alone=self._alone,
            control_alone=self._control_alone,
            p=self.p,
            adjusted=adjusted,
            needed=math.ceil(math.log2(family / test.level)),
            limit=limit,
            largest=max(gaps, default=None),
            unscored=missed,
            shown=next(iter(far or (changed_first if tested or suspect else [])), None),
        )

    def _scored(self) -> tuple[int, int]:
        """Return how many answers that diverge from the control's at a token of each were scored, and were not."""
        gaps = [item.gap for item in self._of_arm if item.against == "control" and None not in item.tokens]
        return len(gaps) - gaps.count(None), gaps.count(None)

    def _failures(self) -> Iterator[str]:
        for request in self._requests:
            answer = self._arm.answers.get(request.id)
            if answer is not None and answer.error is not None and _sound(self._control.answers.get(request.id)):
                yield request.id

    def _invalid(self, listed_faults: Container[str | None]) -> Iterator[Invalid]:
        for request in self._requests:
            if all(_sound(side.answers.get(request.id)) for side in (self._arm, self._control)):
                code = invalid_code(request, self._arm.answers)
                if code is not None and invalid_code(request, self._control.answers) != code:
                    yield Invalid(request=request.id, code=code, explained=code in listed_faults)


def _sound(answer: StressAnswer | None) -> bool:
    return answer is not None and answer.error is None
