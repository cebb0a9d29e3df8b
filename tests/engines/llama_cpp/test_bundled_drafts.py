"""The bundled sequential model with its own trained head and with its EAGLE-3 draft."""

from __future__ import annotations

from typing import Any

import pytest

from benchctl.engines.base import Completion, Server
from benchctl.engines.llama_cpp.server import LlamaServer
from benchctl.models.files import ResolvedPair
from benchctl.models.shipped import bundled_models
from benchctl.prompts.suite import Message, Prompt
from benchctl.recipes.schema import Sampling
from tests.conversion.prompts import chat_prompts
from tests.engines.cells import arm_of, complete, resolved
from tests.engines.conftest import StartServer

pytestmark = pytest.mark.engine

DEPTH = 2
LENGTH = 64
FEWEST = 100
"""Drafted tokens of all prompts: a share of fewer says little."""

BETTER_THAN_CHANCE = 0.5
"""Chance would accept one token in thousands. Measured on all of `tiny.json` at this depth: 0.97 and 0.82."""


@pytest.fixture(scope="module", params=["draft-mtp", "draft-eagle3"])
def speculation(request: pytest.FixtureRequest) -> tuple[str, ResolvedPair]:
    """A kind of speculation with the files that it needs."""
    path = {model.name: model.path for model in bundled_models()}
    target = resolved(path["tiny-sequential"])
    draft = resolved(path["tiny-sequential-eagle3"]) if request.param == "draft-eagle3" else None
    return request.param, ResolvedPair(target, draft)


def answers(server: Server) -> list[Completion]:
    prompts = [Prompt(messages=tuple(Message.model_validate(turn) for turn in turns)) for turns in chat_prompts()]
    return [complete(server, server.render(prompt), Sampling(max_tokens=LENGTH)) for prompt in prompts]


def first_logprobs(server: Server) -> list[Any]:
    """The likeliest tokens after each prompt, with their log-probabilities, of answers that go on with drafts."""
    assert isinstance(server, LlamaServer)
    body = {"n_predict": 8, "n_probs": 20, "temperature": 0, "cache_prompt": False}
    prompts = [server.render(Prompt(messages=tuple(map(Message.model_validate, turns)))) for turns in chat_prompts()]
    answers = [
        server.http.post("/completion", body | {"prompt": list(prompt.token_ids)}, timeout_s=60) for prompt in prompts
    ]
    return [answer["completion_probabilities"][0]["top_logprobs"] for answer in answers]


def test_no_draft_changes_the_reading_of_the_prompt(
    start_server: StartServer, speculation: tuple[str, ResolvedPair]
) -> None:
    """To the last bit, although these heads have the target put out the hidden states of every token: so a round's
    noise explains no other first token."""
    kind, models = speculation
    plain, drafting = start_server(arm_of(), models), start_server(arm_of(kind, max=DEPTH), models)
    assert first_logprobs(plain) == first_logprobs(drafting)


def test_drafts_are_accepted_and_change_nothing(
    start_server: StartServer, speculation: tuple[str, ResolvedPair]
) -> None:
    kind, models = speculation
    plain, server = start_server(arm_of(), models), start_server(arm_of(kind, max=DEPTH), models)
    plain_answers, drafted_answers = answers(plain), answers(server)
    assert [(answer.text, answer.token_ids) for answer in drafted_answers] == [
        (answer.text, answer.token_ids) for answer in plain_answers
    ]
    drafted = sum(answer.ledger.drafted or 0 for answer in drafted_answers)
    accepted = sum(answer.ledger.accepted or 0 for answer in drafted_answers)
    assert drafted > FEWEST
    assert accepted > BETTER_THAN_CHANCE * drafted
    assert server.attest(drafted).state == "active"
    assert all(answer.ledger.drafted is None for answer in plain_answers)
