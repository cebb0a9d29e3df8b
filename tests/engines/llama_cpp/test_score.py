"""Scoring on the real engine: the same prefix in several shapes, on the bundled hybrid."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from benchctl.engines.llama_cpp.adapter import LlamaCppSpec
from benchctl.engines.llama_cpp.command import with_one_slot
from benchctl.engines.llama_cpp.engine import LlamaCppEngine
from benchctl.engines.llama_cpp.probe import parse_help
from benchctl.engines.llama_cpp.score import LlamaScorer, split_batch, unsplit
from benchctl.engines.llama_cpp.server import LlamaServer
from benchctl.engines.scoring import ScoringEngine
from benchctl.models.files import ResolvedPair
from benchctl.prompts.suite import Prompt
from benchctl.recipes.schema import Sampling
from tests.engines.cells import arm_of, complete

HELP = """
-m,    --model FNAME                    model path
-ub,   --ubatch-size N                  physical maximum batch size (default: 512)
-ctxcp, --ctx-checkpoints, --swa-checkpoints N
                                        max number of context checkpoints (default: 32)
"""
PROMPT = Prompt(prompt="The harbour was quiet that morning, and the boats lay still. One, two, three, four,")
TOKENS = 24


@pytest.fixture(scope="module")
def engine(llama_server: Path) -> LlamaCppEngine:
    spec = LlamaCppSpec(binary=str(llama_server), device="cpu", context=1024, threads=1)
    return LlamaCppEngine(spec)


@pytest.fixture(scope="module")
def scorer(
    engine: LlamaCppEngine, tiny_pair: ResolvedPair, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LlamaScorer]:
    log = tmp_path_factory.mktemp("scorer") / "replay.log"
    result = engine.start_scorer(engine.launch(arm_of(), tiny_pair), log, Sampling(ignore_eos=True))
    yield result
    result.stop()


@pytest.fixture(scope="module")
def answered(
    engine: LlamaCppEngine, tiny_pair: ResolvedPair, tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, ...]:
    """What a measured baseline answers."""
    server = engine.start(engine.launch(arm_of(), tiny_pair), tmp_path_factory.mktemp("server") / "server.log")
    try:
        ids = complete(server, server.render(PROMPT), Sampling(max_tokens=TOKENS, ignore_eos=True)).token_ids
    finally:
        server.stop()
    assert ids is not None and len(ids) == TOKENS
    return ids


@pytest.mark.engine
def test_the_adapter_scores(engine: LlamaCppEngine) -> None:
    assert isinstance(engine, ScoringEngine)


@pytest.mark.engine
def test_token_by_token_it_repeats_the_baselines_answer(scorer: LlamaScorer, answered: tuple[int, ...]) -> None:
    prompt = scorer.render(PROMPT).token_ids
    expected = [scorer.read_prompt(prompt, 3).likeliest]
    for position in range(1, TOKENS):
        scores = scorer.read_on([*prompt, *answered[:position]], 3)
        assert scores.evaluated == 1
        assert list(scores.logprobs.values()) == sorted(scores.logprobs.values(), reverse=True)
        expected.append(scores.likeliest)
    assert tuple(expected) == answered  # past its end, too: the tokens that end an answer are left out


@pytest.mark.engine
@pytest.mark.parametrize("width", [2, 5, 9])
def test_a_recurrent_model_reads_on_in_batches_of_any_width(
    scorer: LlamaScorer, answered: tuple[int, ...], width: int
) -> None:
    prompt = scorer.render(PROMPT).token_ids
    runs = []
    for _ in range(2):
        scorer.read_prompt(prompt, 1)
        runs.append([scorer.read_on([*prompt, *answered[:end]], 5) for end in range(width, TOKENS, width)])
    assert [scores.evaluated for scores in runs[0]] == [width] * len(runs[0])
    assert runs[0] == runs[1]  # the same shape gives the same bits


@pytest.mark.engine
def test_several_slots_read_on_in_one_batch(
    engine: LlamaCppEngine, scorer: LlamaScorer, tiny_pair: ResolvedPair, answered: tuple[int, ...], tmp_path: Path
) -> None:
    slot_scorer = engine.start_slot_scorer(
        engine.launch(arm_of().model_copy(update={"concurrency": 3}), tiny_pair), tmp_path / "slots.log"
    )
    try:
        prompts = [[*slot_scorer.render(PROMPT).token_ids][:length] for length in (16, 14, 12)]
        for places, new in ((0, None), (5, 5), (10, 5)):
            before = _decodes(slot_scorer)
            prefixes = [[*prompt, *answered[:places]] for prompt in prompts]
            scores = slot_scorer.read_together(prefixes, 5)
            assert new is None or [score.evaluated for score in scores] == [new] * 3
            assert _decodes(slot_scorer) == before + 1
        single = scorer.read_whole(prefixes[1], 5)
        for token in single.logprobs.keys() & scores[1].logprobs.keys():
            assert scores[1].logprobs[token] == pytest.approx(single.logprobs[token], abs=0.1)
    finally:
        slot_scorer.stop()


def _decodes(scorer: LlamaScorer) -> int:
    """How many batches the target has evaluated."""
    lines = cast(LlamaServer, scorer._server).http.get("/metrics").text.splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("llamacpp:n_decode_total"))


@pytest.mark.engine
def test_every_shape_is_about_the_same_prefix(scorer: LlamaScorer, answered: tuple[int, ...]) -> None:
    prompt = scorer.render(PROMPT).token_ids
    prefix = [*prompt, *answered[:12]]
    at_once = scorer.read_whole(prefix, 5)
    scorer.read_prompt(prompt, 1)
    pieces = scorer.read_on(prefix, 5)
    assert (at_once.evaluated, pieces.evaluated) == (len(prefix), 12)
    for token in at_once.logprobs.keys() & pieces.logprobs.keys():
        assert at_once.logprobs[token] == pytest.approx(pieces.logprobs[token], abs=0.1)


@pytest.mark.engine
def test_unlikely_tokens_are_returned_on_request(scorer: LlamaScorer) -> None:
    prompt = scorer.render(PROMPT).token_ids
    assert len(scorer.read_prompt(prompt, 2000).logprobs) == 2000


@pytest.mark.engine
def test_an_engine_that_is_gone_is_an_error_and_leaves_nothing(
    engine: LlamaCppEngine, tiny_pair: ResolvedPair, tmp_path: Path
) -> None:
    from benchctl.errors import EngineError

    result = engine.start_scorer(engine.launch(arm_of(), tiny_pair), tmp_path / "replay.log")
    prompt = result.render(PROMPT).token_ids
    cast(LlamaServer, result._server)._process.stop()
    with pytest.raises(EngineError):
        result.read_prompt(prompt, 1)
    assert result.stop() is not None


def test_checkpoints_are_off_while_scoring() -> None:
    flags = parse_help(HELP)
    assert unsplit(with_one_slot(("server", "-m", "x")), flags) == ("server", "-m", "x", "--ctx-checkpoints", "0")
    slots = ("server", "-np", "4", "-c", "8192")
    assert unsplit(with_one_slot(slots), flags) == (*slots, "-np", "1", "-c", "2048", "--ctx-checkpoints", "0")
    assert unsplit(("server", "-m", "x"), parse_help("-m, --model FNAME  path")) == ("server", "-m", "x")


def test_prompts_are_split_only_for_models_that_cannot_go_back(tiny_target: Path) -> None:
    flags, model = parse_help(HELP), str(tiny_target)
    assert split_batch(("server", "-m", model), flags) == 512
    assert split_batch(("server", "-m", model, "-ub", "64"), flags) == 64
    assert split_batch(("server", "-m", model, "--swa-checkpoints", "0"), flags) is None
    assert split_batch(("server", "-m", model), parse_help("-m, --model FNAME  path")) is None
