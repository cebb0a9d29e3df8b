"""An audit on one real vLLM on the CPU: answers by prompt log-probabilities, noise between prefill and decode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchctl.data.record import sha256_tokens
from benchctl.data.scores import TargetScores
from benchctl.engines.base import Rendered
from benchctl.engines.common.http import HttpClient
from benchctl.engines.openai.adapter import OpenAiSpec
from benchctl.engines.openai.engine import EchoScorer, OpenAiEngine
from benchctl.engines.vllm.adapter import VllmSpec
from benchctl.engines.vllm.engine import VllmEngine, VllmScorer
from benchctl.engines.vllm.server import VllmServer
from benchctl.errors import EngineError
from benchctl.lossless.judge.audit import audit_parts
from benchctl.lossless.judge.selection import Answer, ArmAnswers, Selection
from benchctl.lossless.score.reading import read_by_decoding, score
from benchctl.models.files import ResolvedModel, ResolvedPair
from benchctl.prompts.suite import Message, Prompt
from benchctl.recipes.schema import Arm, Sampling
from tests.engines.cells import complete
from tests.engines.scripted import ScriptedHandler, listening

pytestmark = pytest.mark.vllm
TOKENS, PROMPTS = 100, 11


@pytest.fixture(scope="module")
def scorer(
    vllm_program: Path, tiny_transformer: ResolvedModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmScorer]:
    spec = VllmSpec(kind="vllm", context=512, dtype="float32", env={"VLLM_CPU_KVCACHE_SPACE": "1"})
    engine = VllmEngine(spec, binary=str(vllm_program))
    launch = engine.launch(Arm(name="baseline"), ResolvedPair(tiny_transformer, None))
    started = engine.start_scorer(launch, tmp_path_factory.mktemp("vllm") / "audit.log")
    yield started
    started.stop()


def decoded(scorer: VllmScorer, prompt: Rendered, tokens: int = TOKENS) -> tuple[int, ...]:
    """The target's own answer."""
    assert isinstance(scorer._server, VllmServer)
    answer = complete(scorer._server, prompt, Sampling(max_tokens=tokens, ignore_eos=True))
    return tuple(answer.token_ids or ())


def test_sound_answers_are_consistent_and_a_token_of_another_is_not(scorer: VllmScorer) -> None:
    answers, passes, scored = [], [], []
    for number in range(PROMPTS):
        rendered = scorer.render(Prompt(prompt=f"{number} boats lay in the harbour, and"))
        prompt, ids = rendered.token_ids, decoded(scorer, rendered)
        target_answer = Answer("code", number, "sha", len(prompt), ids, sha256_tokens(list(ids)))
        reading = score(scorer, prompt, target_answer)
        assert len(reading.scored.margins) == TOKENS
        answers.append(target_answer)
        scored.append(reading.scored)
        passes.append(read_by_decoding(scorer, reading))
        if not number:
            changed_ids = (*ids[:50], (ids[50] + 1) % 4000, *ids[51:])
            forged = Answer("code", number, "sha", len(prompt), changed_ids, sha256_tokens(list(changed_ids)))
            scored.append(score(scorer, prompt, forged).scored)
    assert sum(len(scored_pass.places) for scored_pass in passes) >= 1_000
    audit = TargetScores.model_construct(shape="prefill", answers=scored, passes=passes)
    result = audit_parts([(audit, Selection((_arm("sound", answers), _arm("wrong", [forged, *answers[1:]]))))])
    assert result["sound"].by_prefill
    assert (result["sound"].lacking, result["sound"].violates) == (None, False)
    assert result["wrong"].lacking is None
    assert result["wrong"].violates


@contextmanager
def gateway(vllm: HttpClient) -> Iterator[str]:
    """What a gateway passes on of a vLLM: its OpenAI routes alone, so that it is not recognised."""

    class Handler(ScriptedHandler):
        def do_GET(self) -> None:
            public = self.path.startswith("/v1/")
            self.reply(200 if public else 404, vllm.get_json(self.path) if public else {})

        def do_POST(self) -> None:
            body = self.body()
            try:
                self.reply(200, vllm.post(self.path, body, timeout_s=120))
            except EngineError as error:
                self.reply(400, {"error": {"message": error.what, "code": 400}})

    with listening(Handler) as url:
        yield f"{url}/v1"


def test_behind_a_gateway_it_is_scored_by_echo_and_gives_the_same(scorer: VllmScorer, tmp_path: Path) -> None:
    text = Prompt(prompt="The old harbour was quiet, and")
    messages = Prompt(messages=(Message(role="user", content="Where do the boats lie?"),))
    prompt = scorer.render(text)
    answer = decoded(scorer, prompt, 40)
    forged = (*answer[:20], (answer[20] + 1) % 4000, *answer[21:])
    with gateway(scorer._server.http) as url:
        engine = OpenAiEngine(OpenAiSpec.model_validate({"kind": "openai", "url": url}))
        served = ResolvedPair(ResolvedModel("served:", ()), None)
        echo = engine.start_scorer(engine.launch(Arm(name="baseline"), served), tmp_path / "echo.log")
        assert isinstance(echo, EchoScorer)
        assert echo.render(text).token_ids == prompt.token_ids
        assert echo.render(messages).token_ids == scorer.render(messages).token_ids
        for ids in (answer, forged):
            for ours, theirs in zip(
                echo.score_answer(prompt.token_ids, ids, 20),
                scorer.score_answer(prompt.token_ids, ids, 20),
                strict=True,
            ):
                assert ours.logprobs == pytest.approx(dict(theirs.logprobs), abs=1e-4)
        assert decoded_until(echo, prompt.token_ids, len(answer)) == answer
        echo.stop()


def decoded_until(scorer: EchoScorer, prompt: Sequence[int], count: int) -> tuple[int, ...]:
    answer = [scorer.read_prompt(prompt, 5).likeliest]
    while len(answer) < count:
        scores = scorer.read_on([*prompt, *answer], 5)
        assert scores.evaluated == 1
        answer.append(scores.likeliest)
    return tuple(answer)


def _arm(name: str, answers: list[Answer]) -> ArmAnswers:
    return ArmAnswers(
        name, (5,), tuple(answers), {answer.key: len(answer.token_ids) for answer in answers}, overlapping=False
    )
