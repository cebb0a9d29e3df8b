"""Penalties, biases and grammars of a whole recipe reach the real engine, with and without a draft, and its scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchctl.engines.llama_cpp.adapter import LlamaCppSpec
from benchctl.engines.llama_cpp.engine import LlamaCppEngine
from benchctl.engines.llama_cpp.score import LogitShift
from benchctl.engines.llama_cpp.server import LlamaServer
from benchctl.errors import EngineError
from benchctl.models.files import ResolvedPair
from benchctl.prompts.suite import Prompt
from benchctl.recipes.schema import Sampling
from tests.engines.cells import arm_of, complete

PROMPT = Prompt(prompt="One, two, three, one, two, three, one, two,")
TOKENS = 40
Answers = Callable[[Sampling], tuple[int, ...]]


@pytest.fixture(scope="module")
def engine(llama_server: Path) -> LlamaCppEngine:
    return LlamaCppEngine(LlamaCppSpec(binary=str(llama_server), device="cpu", context=1024, threads=1))


@pytest.fixture(scope="module")
def servers(
    engine: LlamaCppEngine, tiny_pair: ResolvedPair, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[LlamaServer]]:
    """The target alone, and with a draft."""
    logs = tmp_path_factory.mktemp("constraints")
    arms = {"alone": arm_of(), "drafted": arm_of("draft-simple", max=4)}
    started = [engine.start(engine.launch(arm, tiny_pair), logs / f"{name}.log") for name, arm in arms.items()]
    yield started
    for server in started:
        server.stop()


def both(servers: list[LlamaServer], sampling: Sampling) -> list[tuple[int, ...]]:
    answers = [complete(server, server.render(PROMPT), sampling).token_ids for server in servers]
    return [answer or () for answer in answers]


def sampling(**settings: object) -> Sampling:
    return Sampling.model_validate({"max_tokens": TOKENS, "ignore_eos": True, **settings})


@pytest.mark.engine
@pytest.mark.parametrize("setting", [{"presence_penalty": 1.5, "frequency_penalty": 0.7}, {"repeat_penalty": 1.5}])
def test_penalties_change_the_answer_and_a_draft_does_not(
    servers: list[LlamaServer], setting: dict[str, object]
) -> None:
    plain, _ = both(servers, sampling())
    undrafted, drafted = both(servers, sampling(**setting))
    assert undrafted != plain, "the penalty must have been sent"
    assert undrafted == drafted


@pytest.mark.engine
def test_a_forbidden_token_does_not_come(servers: list[LlamaServer]) -> None:
    plain, _ = both(servers, sampling())
    undrafted, drafted = both(servers, sampling(logit_bias={plain[3]: -100}))
    assert plain[3] not in undrafted
    assert undrafted == drafted


@pytest.mark.engine
def test_a_grammar_holds(servers: list[LlamaServer]) -> None:
    undrafted, drafted = both(servers, Sampling(max_tokens=TOKENS, grammar='root ::= "yes" | "no"'))
    assert undrafted == drafted
    text = complete(servers[0], servers[0].render(PROMPT), Sampling(max_tokens=TOKENS, grammar='root ::= "yes" | "no"'))
    assert text.text in {"yes", "no"}


@pytest.mark.engine
def test_scores_are_those_with_the_penalties(
    engine: LlamaCppEngine, servers: list[LlamaServer], tiny_pair: ResolvedPair, tmp_path: Path
) -> None:
    """Read token by token, the target's likeliest is the answer's own token only where the shift is applied."""
    plain, _ = both(servers, sampling())
    requested = sampling(presence_penalty=1.5, frequency_penalty=0.7, logit_bias={plain[3]: -100, plain[5]: 2.0})
    answer, _ = both(servers, requested)
    for setting in (requested, sampling()):
        scorer = engine.start_scorer(engine.launch(arm_of(), tiny_pair), tmp_path / "scoring.log", setting)
        try:
            prompt = scorer.render(PROMPT).token_ids
            likeliest = [scorer.read_prompt(prompt, 2).likeliest]
            likeliest += [scorer.read_on([*prompt, *answer[:position]], 2).likeliest for position in range(1, TOKENS)]
        finally:
            scorer.stop()
        assert (tuple(likeliest) == answer) == (setting is requested)


def test_a_token_that_was_not_read_may_be_the_likeliest() -> None:
    shift = LogitShift(Sampling(logit_bias={9: 5.0}))
    assert shift.more == 200
    assert list(shift.apply({1: -0.1, 2: -4.0, 3: -9.5, 9: -9.6}, [])) == [1, 2, 9, 3]
    with pytest.raises(EngineError, match="may be the likeliest"):
        shift.apply({1: -0.1, 2: -4.0, 3: -8.5}, [])


def test_what_is_not_set_changes_nothing() -> None:
    values = {1: -0.1, 2: -4.0}
    assert LogitShift(Sampling()).more == 0
    assert LogitShift(Sampling(repeat_penalty=1.3)).apply(values, [1, 1]) == values
