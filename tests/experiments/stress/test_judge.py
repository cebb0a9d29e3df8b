"""Every verdict of a stress test, on answers that are made up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from benchctl.engines.scoring import Scorer, Scores
from benchctl.experiments.stress.counters import exercised
from benchctl.experiments.stress.judge import ScenarioResult, divergences, judge_stress, limit_of, one_sided
from benchctl.experiments.stress.plan import Plan, ProcessPlan, Request, ScenarioName, Stop, Turn, Wave
from benchctl.experiments.stress.scoring import find_divergences, score
from benchctl.experiments.stress.stored import ListedFault, Played, StressAnswer, StressTest
from benchctl.words.stress import conclusion, scope
from tests.analysis.conftest import build_manifest

PROMPTS = 12
Change = Callable[[str, StressAnswer], None]


def request(number: int, unit: str | None, **more: Any) -> Request:
    return Request(id=f"r{number}", unit=unit, turns=(Turn(text=f"{unit}"),), tokens=4, **more)


REPEATED = [request(number, f"p{number % PROMPTS}") for number in range(2 * PROMPTS)]
"""Every prompt twice: the first askings, then the second ones."""


def answers(requests: list[Request], change: Change = lambda name, answer: None, accepted: int = 6) -> Played:
    made = Played()
    for number, asked in enumerate(requests):
        answer = StressAnswer(
            started_s=number,
            decoded_s=(number, number + 0.5),
            prompt_sha256=asked.unit or "",
            prompt=(1, 2),
            token_ids=(7, 8, 9),
            text="abc",
            finish="length",
            cached=2,
            drafted=10,
            accepted=accepted,
        )
        change(asked.id, answer)
        made.answers[asked.id] = answer
    return made


def stress_test(
    arm: Played,
    control: Played | None = None,
    requests: list[Request] = REPEATED,
    scenario: ScenarioName = "canary",
    gaps: dict[str, float] | None = None,
    **more: Any,
) -> StressTest:
    """Return a stress test of an arm; `gaps`: the scores of divergences by request."""
    manifest = build_manifest({"off": None, "spec": {"type": "draft-simple"}}, 1, 1, baseline="off")
    process = ProcessPlan(scenario=scenario, name=scenario, waves=(Wave(requests=tuple(requests)),))
    control = control or answers(requests)
    played = {"off": control, "spec": arm}
    for name, side in played.items():
        side.divergences = divergences(requests, side, None if name == "off" else control)
        for divergence in side.divergences:
            divergence.gap = (gaps or {}).get(divergence.request)
    settings: dict[str, Any] = {"noise": {"crowd": 0.01}, "slots": 4} | more
    plan = Plan(seed=1, size=1, processes=(process,))
    return StressTest(manifest=manifest, plan=plan, played=played, **settings)


def judged(arm: Played, *answered: Any, **more: Any) -> ScenarioResult:
    """Judge the arm of a `stress_test`."""
    (result,) = judge_stress(stress_test(arm, *answered, **more))
    assert conclusion(result.verdict, result.scenario, result.model_dump())
    return result


def changed(*names: str) -> Change:
    def change(name: str, answer: StressAnswer) -> None:
        if name in names:
            answer.token_ids = (7, 5, 9)

    return change


def test_equal_answers_are_stable_as_far_as_was_exercised() -> None:
    result = judged(answers(REPEATED))
    assert (result.verdict, result.units, result.changed, result.p) == ("stable", PROMPTS, 0, 1.0)
    sentence = conclusion("stable", "canary", result.model_dump())
    assert "up to 5 tokens of prompt and answer" in sentence
    assert "prompts on with different answers only from the arm." in sentence
    few = result.model_copy(update={"units": result.needed - 1})
    assert "only from the arm; fewer were repeated." in conclusion("stable", "canary", few.model_dump())


def test_a_violation_says_which_cause_of_its_scenario_was_not_seen() -> None:
    """As where a prompt is answered from another one's cache and the engine reports that nothing was cached."""

    def uncached(name: str, answer: StressAnswer) -> None:
        changed("r15")(name, answer)
        answer.cached = 0

    result = judged(answers(REPEATED, uncached), scenario="cache", gaps={"r15": 1.0})
    assert (result.verdict, result.exercised.lacking) == ("violation", ["cached"])
    assert "Not exercised: nothing came from the prompt cache" in conclusion("violation", "cache", result.model_dump())


def test_one_divergence_beyond_the_noise_is_a_violation() -> None:
    arm = answers(REPEATED, changed("r15"))
    assert judged(arm, gaps={"r15": 0.029}).verdict == "stable", "within three times the noise"
    result = judged(arm, gaps={"r15": 0.031})
    assert result.verdict == "violation"
    assert result.shown is not None
    assert (result.shown.index, result.shown.tokens, result.shown.reference) == (1, (5, 8), "r3")
    assert "0.031 nats" in conclusion("violation", "canary", result.model_dump())


def test_a_divergence_from_the_control_counts_too() -> None:
    """A fault that is there from the first answer on changes nothing between two askings."""
    arm = answers(REPEATED, changed("r3", "r15"))
    result = judged(arm, gaps={"r3": 1.0, "r15": 1.0})
    assert (result.verdict, result.changed) == ("violation", 0)
    assert result.shown is not None
    assert result.shown.against == "control"


def test_many_small_divergences_are_a_violation() -> None:
    names = [f"r{number}" for number in range(PROMPTS, PROMPTS + 7)]
    gaps = dict.fromkeys(names, 0.001)
    result = judged(answers(REPEATED, changed(*names)), gaps=gaps)
    assert (result.verdict, result.arm_alone, result.needed) == ("violation", 7, 7)
    by_holm = result.model_dump() | {"arm_alone": 6}  # as the last of several rejections
    assert "6 got different answers only from the arm" in conclusion("violation", "canary", by_holm)
    assert result.p == pytest.approx(2**-7)
    few = judged(answers(REPEATED, changed(*names[:4])), gaps=gaps)
    assert few.verdict == "undetermined"
    assert "violation from 7 prompts on with" in conclusion("undetermined", "canary", few.model_dump())
    both = judged(answers(REPEATED, changed(*names)), answers(REPEATED, changed(*names)), gaps=gaps)
    assert (both.verdict, both.arm_alone, both.changed) == ("stable", 0, 7), "the control changes as often"


def test_noise_of_an_unknown_state_is_shown_by_its_name() -> None:
    assert "odd 0.1." in scope(["canary"], {"odd": 0.1}, 0.3, 9)


def fails(*names: str, ended: bool = False) -> Change:
    def change(name: str, answer: StressAnswer) -> None:
        if name in names:
            answer.error, answer.ended = "HTTP 500", ended

    return change


def test_errors_count_first() -> None:
    result = judged(answers(REPEATED, fails("r15", ended=True)))
    assert (result.verdict, result.failures, result.aborts) == ("fails", ["r15"], 1)
    assert "ended 1 time" in conclusion("fails", "canary", result.model_dump())
    same = judged(answers(REPEATED, fails("r15")), answers(REPEATED, fails("r15")))
    assert (same.verdict, same.failures) == ("control unstable", [])


def test_a_control_that_changes_is_no_reference() -> None:
    control = answers(REPEATED, changed("r15"))
    assert judged(answers(REPEATED), control, gaps={"r15": 2.0}).verdict == "control unstable"


def test_a_cause_that_was_not_seen_is_not_exercised() -> None:
    def without(name: str, answer: StressAnswer) -> None:
        answer.cached = None

    assert judged(answers(REPEATED, accepted=8)).exercised.lacking == ["rejected"]
    assert judged(answers(REPEATED, without), scenario="cache").verdict == "not exercised"
    assert judged(answers(REPEATED), scenario="crowd").exercised.lacking == ["crowd"]
    assert judged(answers(REPEATED), scenario="cancel").exercised.lacking == ["cancelled"]
    assert judged(answers(REPEATED, lambda _, answer: setattr(answer, "drafted", 0))).exercised.lacking == ["drafted"]
    assert judged(answers(REPEATED[:PROMPTS]), requests=REPEATED[:PROMPTS]).exercised.lacking == ["repeated"]


def test_pressure_must_be_seen_in_the_answers() -> None:
    def lacking(scenario: ScenarioName, name: str = "text", value: object = "abc", **more: Any) -> list[str]:
        played = answers(REPEATED, lambda _, answer: setattr(answer, name, value))
        return [*exercised(scenario, REPEATED, played.answers, 4, **more).lacking]

    assert (lacking("long"), lacking("long", context=7), lacking("long", context=6)) == (["long"], ["long"], [])
    assert (lacking("completions"), lacking("completions", "completions", 2)) == (["several"], [])
    assert (lacking("slot files"), lacking("slot files", "restored", 9)) == (["restored"], [])
    assert (lacking("context shift", context=5), lacking("context shift", context=4)) == (["shifted"], [])
    assert lacking("small cache") == ["evicted", "crowd"]
    assert lacking("small cache", "decoded_s", (0.0, 1.0), counted={"evictions": 1}) == []
    assert (lacking("preemption"), lacking("preemption", counted={"preemptions": 1})) == (
        ["preempted", "crowd"],
        ["crowd"],
    )


def test_what_the_engine_counts_outranks_the_clock() -> None:
    def at_once(_: str, answer: StressAnswer) -> None:
        answer.decoded_s, answer.cached = (100.0, 101.0), None

    played = answers(REPEATED, at_once).answers
    assert exercised("crowd", REPEATED, played, None, counted={"running": 2}).lacking == []
    assert exercised("crowd", REPEATED, played, None, counted={"running": 1}).lacking == ["crowd"]
    assert exercised("cache", REPEATED, played, None).lacking == ["cached"]
    shown = exercised("cache", REPEATED, played, None, counted={"cached tokens": 40})
    assert (shown.cached, shown.lacking) == (40, []), "answers do not report it, the counter does"


def test_a_crowd_is_seen_by_the_clock_and_its_acceptance_beside_that_alone() -> None:
    def at_once(name: str, answer: StressAnswer) -> None:
        if int(name[1:]) >= PROMPTS:
            answer.decoded_s, answer.accepted = (100.0, 101.0), 1

    shown = exercised("crowd", REPEATED, answers(REPEATED, at_once).answers, 4)
    assert (shown.most_at_once, shown.lacking) == (PROMPTS, [])
    assert (shown.acceptance_alone, shown.acceptance) == (0.6, 0.1)
    assert exercised("crowd", REPEATED, answers(REPEATED, at_once).answers, 1).lacking == ["crowd"]


def test_without_known_noise_no_single_divergence_is_evidence() -> None:
    result = judged(answers(REPEATED, changed("r15")), gaps={"r15": 5.0}, noise={})
    assert (result.verdict, result.limit) == ("undetermined", None)
    assert limit_of(StressTest.model_construct(noise={"again": 0.0})) == 0.001


PLAIN = request(0, "p0")
STOP = Stop(answer_of="r0", start=0.5, length=1)
KEPT = '{"name": "Ann", "age": 5, "tags": ["red", "blue"]}'


@pytest.mark.parametrize(
    ("asked", "wrong", "right", "code"),
    [
        ({"by_schema": True}, {"text": KEPT[:-1], "finish": "stop"}, {"text": KEPT, "finish": "stop"}, "schema"),
        ({"by_schema": True}, {"text": KEPT.replace("red", "pink"), "finish": "stop"}, {"text": KEPT}, "schema"),
        ({"stop": STOP}, {"text": "abc"}, {"text": "a"}, "stop string passed"),
        ({"stop": STOP}, {"text": ""}, {"text": "a"}, "ended before its stop string"),
        ({"listed": True}, {"listed": (5, 0, 5)}, {"listed": (5, 5, 5)}, "log probabilities"),
    ],
)  # fmt: skip
def test_invalid_answers(
    asked: dict[str, object], wrong: dict[str, object], right: dict[str, object], code: str
) -> None:
    said = {"schema": "broke the schema", "stop string passed": "went on past the stop string",
            "ended before its stop string": "ended before the stop string",
            "log probabilities": "lacked log probabilities of tokens"}  # fmt: skip
    requests = [PLAIN, request(1, None, **asked), request(2, "p0")]

    def given(values: dict[str, object]) -> Change:
        def change(name: str, answer: StressAnswer) -> None:
            if name == "r1":
                for key, value in ({"stop": "b"} | values).items():
                    setattr(answer, key, value)

        return change

    result = judged(answers(requests, given(wrong)), answers(requests, given(right)), requests, "constraint")
    assert (result.verdict, [item.code for item in result.invalid]) == ("violation", [code])
    sentence = conclusion("violation", "constraint", result.model_dump())
    assert f": 1 answer of the arm {said[code]}, and the target's own did not." in sentence
    same = judged(answers(requests, given(wrong)), answers(requests, given(wrong)), requests, "constraint")
    assert same.invalid == [], "the target alone does the same"


def test_an_invalid_answer_that_a_listed_fault_explains_is_told_apart() -> None:
    """Not so with another invalid answer beside it, in an arm that the fault does not concern, or beside an error."""
    requests = [PLAIN, request(1, None, listed=True), request(2, "p0"), request(3, None, stop=STOP)]
    fault = ListedFault(arms=("spec",), sentence="Lists are empty.", lacks="log probabilities")

    def verdict(fault: ListedFault, text: str = "a", error: str | None = None) -> ScenarioResult:
        def change(name: str, answer: StressAnswer) -> None:
            answer.listed, answer.stop = ((5, 0), None) if name == "r1" else (None, "b" if name == "r3" else None)
            answer.text, answer.error = (text if name == "r3" else "abc"), (error if name == "r2" else None)

        arm, control = answers(requests, change), answers(requests)
        control.answers["r3"].text = "a"
        return judged(arm, control, requests, "constraint", faults=[fault])

    result = verdict(fault)
    assert (result.verdict, result.apart, result.faults) == ("known fault", "not exercised", ["Lists are empty."])
    told = conclusion("known fault", "constraint", result.model_dump())
    assert "Lists are empty. Apart from it: nothing was drafted under a schema" in told
    assert verdict(fault, text="abc").verdict == "violation"
    assert verdict(fault, error="HTTP 500").verdict == "fails"
    assert verdict(fault.model_copy(update={"arms": ("another",)})).verdict == "violation"


def test_a_divergence_from_the_control_that_nobody_scored_is_not_stable() -> None:
    """As where the time was spent: an answer that is wrong from the first asking on changes nothing."""
    arm = answers(REPEATED, changed("r3", "r15"))
    result = judged(arm)
    assert (result.verdict, result.unscored) == ("undetermined", 2)
    words = conclusion("undetermined", "canary", result.model_dump())
    assert "2 divergences from the target alone could not be scored" in words
    assert words.index("would be a violation") < words.index("2 divergences"), "the limit is that of changed prompts"
    partly = judged(arm, gaps={"r3": 0.01})
    assert (partly.verdict, partly.unscored) == ("stable", 1)
    assert conclusion("stable", "canary", partly.model_dump()).endswith(
        "1 divergence from the target alone could not be scored."
    )
    assert judged(arm, gaps={"r3": 0.01, "r15": 0.01}).unscored == 0
    mostly = judged(answers(REPEATED, changed("r3", "r15", "r4", "r16")), gaps={"r3": 0.01})
    assert (mostly.verdict, mostly.unscored) == ("undetermined", 3)
    assert judged(arm, noise={}).verdict == "stable", "of endpoints the paired test alone decides"


def test_an_answer_without_token_ids_takes_those_of_an_equal_one() -> None:
    """As where a stream breaks within a character: the control's answer is the same text."""

    def without(name: str, answer: StressAnswer) -> None:
        changed("r15")(name, answer)
        answer.text = "axc" if name == "r15" else "abc"
        answer.token_ids = None if name == "r3" else answer.token_ids

    test = stress_test(answers(REPEATED, without))
    find_divergences(test)
    assert test.played["spec"].answers["r3"].token_ids == (7, 8, 9)
    assert [place.tokens for place in test.played["spec"].divergences] == [(5, 8), (5, 8)]


class Target:
    """Counts what it reads; the second token is the likeliest."""

    def __init__(self) -> None:
        self.read: list[tuple[int, ...]] = []

    def read_whole(self, prefix: Sequence[int], top: int) -> Scores:
        self.read.append(tuple(prefix))
        return Scores({8: -0.1, 5: -0.3}, len(prefix))


def test_a_place_is_scored_once_and_no_scenario_has_all_the_time() -> None:
    requests = [*REPEATED, *(request(number, "crowd p") for number in (30, 31))]
    many = [f"r{number}" for number in range(PROMPTS, 2 * PROMPTS)]
    test = stress_test(answers(requests, changed(*many, "r31")), requests=requests)
    canary, crowd = (Wave(requests=tuple(part)) for part in (requests[:-2], requests[-2:]))
    processes = (ProcessPlan(scenario="canary", name="canary", waves=(canary,)),
                 ProcessPlan(scenario="crowd", name="crowd", waves=(crowd,)))  # fmt: skip
    test.plan = Plan(seed=1, size=1, processes=processes)
    for number, answer in enumerate(test.played["spec"].answers.values()):
        answer.prompt = (number,)
    test.played["spec"].answers["r23"].prompt = test.played["spec"].answers["r12"].prompt
    target, time_left = Target(), iter([True, True, False])
    assert score(test, cast("Scorer", target), lambda: next(time_left), lambda *_: None) > 0
    gaps = {place.request: place.gap for place in test.played["spec"].divergences}
    assert [name for name, gap in gaps.items() if gap is not None] == ["r12", "r23", "r31"], (
        "one place, behind the end of the time"
    )
    assert gaps["r23"] == gaps["r31"] == pytest.approx(0.2)
    assert len(target.read) == 2, "that of the first answer and that of the control are one place"


def test_histories_that_differ_are_not_compared() -> None:
    arm = answers(REPEATED, changed("r15"))
    arm.answers["r15"].prompt_sha256 = "another history"
    assert judged(arm).changed == 0


def test_one_sided() -> None:
    assert one_sided(0, 0) == 1.0
    assert one_sided(5, 0) == pytest.approx(1 / 32)
    assert one_sided(2, 1) == pytest.approx(0.5)
