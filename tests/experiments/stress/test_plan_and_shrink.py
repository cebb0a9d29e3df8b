"""The plan of a stress test is a pure function; a failing one gets shorter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchctl.experiments.stress.plan import CUT, PASSAGE, SCENARIOS, USUAL, Material, Plan, Request, Turn, prompt_of
from benchctl.experiments.stress.scenarios import make_plan
from benchctl.experiments.stress.shrink import leading_up, only, shrink
from benchctl.experiments.stress.sizing import SIZES, Cost, largest_plan

MATERIAL = Material(
    prompts=tuple((Turn(text=f"Question {i}, long enough to be cut in two halves?"),) for i in range(12)),
    load=tuple(f"Other {i}" for i in range(9)),
    passage="words " * 9000,
    context=2000,
    token_chars=5.0,
)


def plan(size: float = 1.0, seed: int = 1) -> Plan:
    return make_plan(SCENARIOS, seed, size, MATERIAL)


def everything(made: Plan) -> list[Request]:
    return [request for process in made.processes for request in process.requests]


def test_a_seed_and_a_size_make_the_plan() -> None:
    assert plan() == plan()
    assert plan() != plan(seed=2)
    assert len(everything(plan(0.15))) < len(everything(plan())) / 3
    ids = [request.id for request in everything(plan())]
    assert len(ids) == len({*ids})


def test_a_request_is_made_of_earlier_answers_only() -> None:
    for size in SIZES:
        earlier: set[str] = set()
        for request in everything(plan(size)):
            names = {turn.answer_of for turn in request.turns} | {request.half_answer_of}
            names |= {request.stop.answer_of if request.stop else None, request.restores}
            assert earlier >= names - {None}
            earlier.add(request.id)


def test_every_scenario_asks_the_same_thing_again() -> None:
    for size in SIZES:
        for scenario in SCENARIOS:
            requests = plan(size).of(scenario)
            first: dict[str, Request] = {}
            again = 0
            for request in requests:
                if request.unit is not None:
                    other = first.setdefault(request.unit, request)
                    again += other is not request
                    same = ("turns", "tokens", "drop", "half_answer_of", "by_schema")
                    assert all(getattr(other, name) == getattr(request, name) for name in same)
            assert again >= 2, scenario


def test_no_request_is_compared_with_one_of_another_scenario() -> None:
    units = [{request.unit for request in plan().of(scenario)} - {None} for scenario in SCENARIOS]
    assert sum(map(len, units)) == len(set().union(*units))


def test_slots_are_first_used_in_different_orders() -> None:
    orders = set()
    for process in plan().processes:
        if process.scenario == "crowd":
            orders.add(tuple(request.slot for request in process.requests if request.slot is not None))
            assert {wave.clients for wave in process.waves} == {1, 4}
    assert len(orders) > 1
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders)


def test_cancelled_requests_share_their_beginning_with_prompts_that_are_asked_again() -> None:
    for size in SIZES:
        requests = plan(size).of("cancel")
        asked = {request.turns[0].text for request in requests if request.unit}
        cancelled = [request.turns[0].text for request in requests if request.cancel_after is not None]
        shared = [text for text in cancelled if any(text.startswith(other[: len(other) // 2]) for other in asked)]
        assert len(cancelled) / 4 <= len(shared) <= len(cancelled) / 2


def test_a_conversation_goes_on_from_the_servers_own_answers() -> None:
    later = next(request for request in plan().of("sessions") if len(request.turns) > 1)
    answered = next(turn.answer_of for turn in later.turns if turn.answer_of)
    prompt = prompt_of(later.turns, {answered: "It said so."}, raw=False)
    assert [message.role for message in prompt.messages or ()] == ["user", "assistant", "user"]
    assert "It said so." in (prompt_of(later.turns, {answered: "It said so."}, raw=True).prompt or "")


def test_long_prompts_and_their_answers_nearly_fill_the_context() -> None:
    lengths = {len(request.turns[0].text) / 5 + request.tokens for request in plan().of("long") if request.unit}
    assert all(0.9 * 2000 < length < 2000 for length in lengths)
    assert make_plan(["long"], 1, 1.0, replace(MATERIAL, context=None)).of("long") == [], "its context is not known"


def test_some_cached_prompts_are_longer_than_two_blocks_of_a_cache() -> None:
    for scenario in ("cache", "sessions"):
        lengths = {len(request.turns[0].text) for request in plan(0.15).of(scenario)}
        assert min(lengths) < 100 and max(lengths) > 1200 == PASSAGE
        narrow = make_plan([scenario], 1, 0.15, replace(MATERIAL, context=150)).of(scenario)
        assert max(len(request.turns[0].text) for request in narrow) < PASSAGE / 3, "there is no room for a passage"


def test_what_a_request_of_pressure_asks_for() -> None:
    cells = {process.scenario: process.cells for process in plan().processes if process.cells}
    assert cells.keys() == {"context shift", "small cache", "preemption"}
    outgrowing = [request for request in plan().of("context shift") if request.to_the_limit]
    assert outgrowing and all(request.tokens > (cells["context shift"] or 0) for request in outgrowing)
    assert all(request.unit is None for request in outgrowing), "where a context is shifted differs by its step"
    small = [len(request.turns[0].text) / 5 + request.tokens for request in plan().of("small cache")]
    assert 2 * max(small) < (cells["small cache"] or 0) < 4 * max(small), "two at a time fit, four slots do not"
    prompt, answer = ({value(request) for request in plan().of("preemption")}.pop() for value in (_read, _decoded))
    room = (cells["preemption"] or 0) - 2 * prompt
    assert 0 < room < min(80, 2 * answer), "two prompts fit, but not with answers that end early"
    saved = {request.id: request.slot for request in plan().of("slot files") if request.saves}
    restored = {request.restores: request.slot for request in plan().of("slot files") if request.restores}
    assert saved == restored


def _read(request: Request) -> float:
    return len(request.turns[0].text) / 5


def _decoded(request: Request) -> float:
    return request.tokens


def test_a_plan_fits_the_time_that_reading_was_measured_to_take() -> None:
    def size(read_s: float | None) -> float:
        cost = Cost(startup_s=1, token_s=0.05, read_s=read_s)
        return largest_plan(["long"], 1, MATERIAL, cost, left_s=420).size

    assert size(None) == size(1.0) == 1.0
    assert size(20.0) < 0.5


def test_a_slow_arm_gets_a_smaller_plan_in_which_every_scenario_has_its_turn() -> None:
    def made(slower: float) -> Plan:
        return largest_plan(USUAL, 1, MATERIAL, Cost(startup_s=3, token_s=0.08, slower=slower), left_s=360)

    assert made(1.0).size > made(2.3).size
    assert {process.scenario for process in made(99.0).processes} == {*USUAL}


def test_lookups_have_something_to_copy_that_goes_on_otherwise() -> None:
    """Its answer is cut after a few tokens, then the same is asked again."""
    for size in SIZES:
        for scenario in ("canary", "cache", "crowd", "constraint"):
            requests = {request.id: request for request in plan(size).of(scenario)}
            long = [turns for request in requests.values() if len(turns := request.turns) > 1]
            again = [turns for turns in long if turns[-3].text == turns[-1].text]
            assert again, (scenario, size)
            assert all(requests[turns[-2].answer_of or ""].tokens == CUT for turns in again)


def test_what_is_not_needed_goes() -> None:
    asked: list[Sequence[str]] = []

    def shows(names: Sequence[str]) -> bool:
        asked.append(names)
        return {"c", "k"} <= {*names}

    assert shrink("abcdefghijklm", shows) == ["c", "k"]
    assert len(asked) < 40
    assert shrink([], shows) == []
    assert shrink("ab", lambda names: True) == []


def test_the_requests_before_a_failing_one_are_kept_in_their_waves() -> None:
    process = next(process for process in plan().processes if process.scenario == "crowd")
    crowd = process.waves[1].requests
    waves = leading_up(process, crowd[5].id)
    assert len(waves) == 2
    assert waves[1].requests == crowd[:9], "what may have been in flight with it, too"
    kept = only(waves, [crowd[5].id])
    assert [wave.requests for wave in kept] == [(crowd[5],)]
    assert kept[0].clients == 4
