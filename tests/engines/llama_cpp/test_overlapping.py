"""Several requests in flight on the real llama-server: every answer whole, every count its own, none left behind."""

from __future__ import annotations

from typing import Any

import pytest

from benchctl.engines.base import Completion, Server
from benchctl.engines.llama_cpp.server import LlamaServer
from benchctl.models.files import ResolvedPair
from benchctl.prompts.suite import Message, Prompt
from benchctl.recipes.schema import Sampling
from tests.engines.cells import arm_of, stopped_in_flight
from tests.engines.cells import at_once as all_at_once
from tests.engines.conftest import StartServer

pytestmark = pytest.mark.engine

SLOTS = 4
ASKED = [
    Prompt(messages=(Message(role="user", content=text),))
    for text in (
        "Write a function that adds two numbers.",
        "日本の首都について説明してください。",
        "List ten animals.",
        "Translate into Japanese: The harbour was quiet.",
        "Say hello with an emoji.",
        "What is seven times eight?",
    )
]
LONG = Sampling(max_tokens=48, ignore_eos=True)


def at_once(server: Server, prompts: list[Prompt], sampling: Sampling = LONG) -> list[Completion]:
    """Ask as many prompts at a time as there are slots."""
    return all_at_once(server, [server.render(prompt) for prompt in prompts], sampling, SLOTS)


@pytest.mark.parametrize("speculation", [None, "draft-simple", "ngram-simple"])
def test_every_answer_is_whole_and_has_its_own_ledger(
    speculation: str | None, start_server: StartServer, tiny_pair: ResolvedPair
) -> None:
    keys: dict[str, Any] = {"size_n": 2, "size_m": 4} if speculation == "ngram-simple" else {}
    arm = arm_of(speculation, **keys).model_copy(update={"concurrency": SLOTS})
    server = start_server(arm, tiny_pair)
    server.attest(None)
    answers = at_once(server, ASKED)
    for prompt, answer in zip(ASKED, answers, strict=True):
        assert answer.n_predicted == 48
        ids = answer.token_ids or server.recover_token_ids(server.render(prompt), LONG, answer)
        assert ids is None or len(ids) == 48
        assert answer.text
    with_ids = [answer for answer in answers if answer.token_ids is not None]
    assert len(with_ids) >= len(answers) - 1, "ids are missing only where a character came in several tokens"
    result = server.attest(None)
    compared = [line for line in result.evidence if line.startswith("GET /metrics over all answers")]
    if speculation is None:
        assert result.state == "off"
        assert {answer.ledger.drafted for answer in answers} == {None}
        assert not compared
    else:
        assert result.state == ("active" if sum(answer.ledger.drafted or 0 for answer in answers) else "idle")
        assert all(answer.ledger.drafted is not None for answer in answers), "0 where nothing was drafted"
        assert {answer.ledger.rounds for answer in answers} == {None}, "the engine counts them over all answers"
        assert len(compared) == 1
        assert "contradiction" not in compared[0]
    assert any(f"total_slots = {SLOTS}" in line for line in result.evidence)


def test_a_slot_has_the_whole_context_and_its_own_cache(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    arm = arm_of("draft-simple", max=2).model_copy(update={"concurrency": SLOTS})
    server = start_server(arm, tiny_pair, context=512)
    assert isinstance(server, LlamaServer)
    slots = server.http.get("/slots").json()
    assert [slot["n_ctx"] for slot in slots] == [512] * SLOTS
    assert any("kv_unified = 'false'" in line for line in server.log_tail(2000))
    long = Prompt(prompt="one two three four five " * 60)
    answers = at_once(server, [long] * SLOTS, Sampling(max_tokens=120, ignore_eos=True))
    assert [answer.n_predicted for answer in answers] == [120] * SLOTS, "all slots at once reach far into their context"


def test_requests_that_overlap_in_one_slot_have_their_own_ledger(
    start_server: StartServer, tiny_pair: ResolvedPair
) -> None:
    arm = arm_of("draft-simple", max=4)
    single = at_once(start_server(arm, tiny_pair), ASKED[:1])[0]
    server = start_server(arm.model_copy(update={"rate": 50.0}), tiny_pair)
    server.attest(None)
    answers = at_once(server, ASKED)
    assert answers[0].token_ids == single.token_ids, "one slot answers one after the other, as if alone"
    assert answers[0].ledger.drafted == single.ledger.drafted
    assert not any("contradiction" in line for line in server.attest(None).evidence)


@pytest.mark.slow
def test_stopping_ends_what_is_in_flight_and_what_waits(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    server = start_server(arm_of().model_copy(update={"concurrency": 2}), tiny_pair, context=8192)
    prompt = server.render(ASKED[0])
    endless = Sampling(max_tokens=8000, ignore_eos=True)
    assert len(stopped_in_flight(server, prompt, endless, SLOTS)) == SLOTS
    assert not server.alive()


def test_a_missing_slot_fails_the_attestation(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    def with_three(argv: tuple[str, ...]) -> tuple[str, ...]:
        return (*argv, "--parallel", "3")

    server = start_server(arm_of().model_copy(update={"concurrency": SLOTS}), tiny_pair, argv=with_three)
    result = server.attest(None)
    assert result.state == "failed"
    assert result.reason == "The server's slots are 3, and 4 are requested."
