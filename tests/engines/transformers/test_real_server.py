"""One real server, started as the runner starts it: what it answers, scores and counts, and how it ends."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

pytest.importorskip("torch")

from benchctl.data.store import open_run
from benchctl.engines.transformers.adapter import TransformersSpec
from benchctl.engines.transformers.engine import TransformersEngine
from benchctl.engines.transformers.server import SERVER, TransformersServer
from benchctl.errors import EngineError
from benchctl.measurement.prepare import prepare
from benchctl.measurement.progress import RunProgress
from benchctl.measurement.run import start_run
from benchctl.models.files import ResolvedModel, ResolvedPair
from benchctl.prompts.suite import Message, Prompt
from benchctl.recipes.schema import Arm, Recipe, Sampling
from tests.engines.cells import arm_of, complete, outsider
from tests.engines.transformers.tiny_models import DECLARED, byte_tokenizer, loaded

pytestmark = pytest.mark.torch

GREEDY = Sampling(max_tokens=24, ignore_eos=True)
CHAT = Prompt(messages=(Message(role="user", content="料理のこつを教えてください。"),))


@pytest.fixture(scope="module")
def engine() -> TransformersEngine:
    spec = TransformersSpec(kind="transformers", device="cpu", dtype="float32", context=512, threads=1)
    return TransformersEngine(spec, binary=sys.executable)


@pytest.fixture(scope="module")
def start(
    engine: TransformersEngine, folder_of: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Arm], TransformersServer]]:
    """Start a server on the bundled hybrid; it stops at the end."""
    folder, logs = folder_of("tiny-hybrid"), tmp_path_factory.mktemp("logs")
    started: list[TransformersServer] = []

    def start(arm: Arm) -> TransformersServer:
        models = ResolvedPair(ResolvedModel(str(folder), (), folder=folder), None)
        started.append(engine.start(engine.launch(arm, models), logs / f"{len(started)}.log"))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="module")
def target_alone(start: Callable[[Arm], TransformersServer]) -> TransformersServer:
    return start(arm_of())


@pytest.fixture(scope="module")
def speculating(start: Callable[[Arm], TransformersServer]) -> TransformersServer:
    return start(arm_of("self-ssm", max=4))


def test_probing_a_python(engine: TransformersEngine) -> None:
    result = engine.probe()
    assert str(result.version).startswith("transformers ")
    assert "self-ssm" in result.speculation_types
    assert result.details["sha256"]


def test_tools_and_variables_reach_the_template(target_alone: TransformersServer) -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
    with_tools = CHAT.model_copy(update={"tools": (tool,)})
    with pytest.raises(EngineError, match="'weather'"):
        target_alone.render(with_tools)
    template = "{{ tools[0].function.name }}, {{ mood }}: {{ messages[0].content }}"
    variables = {"chat_template": template, "mood": "calm", "tokenize": True}
    rendered = target_alone.render(with_tools.model_copy(update={"chat_template_kwargs": variables}))
    assert rendered.text == f"weather, calm: {CHAT.messages[0].content}"  # type: ignore[index]


def test_the_arguments_of_a_call_reach_the_template_as_values(target_alone: TransformersServer) -> None:
    call = {"type": "function", "function": {"name": "weather", "arguments": '{"city": "X"}'}}
    template = "{{ messages[1].content is none }} {{ messages[1].tool_calls[0].function.arguments.city }}"
    turns = (*(CHAT.messages or ()), Message(role="assistant", tool_calls=(call,)), Message(role="tool", content="x"))
    prompt = Prompt(messages=turns, chat_template_kwargs={"chat_template": template + " weather"})
    assert target_alone.render(prompt).text == "True X weather"
    with pytest.raises(EngineError, match="'weather'"):
        target_alone.render(prompt.model_copy(update={"chat_template_kwargs": {"chat_template": template}}))


def test_requests_without_the_key_are_refused(start: Callable[[Arm], TransformersServer]) -> None:
    server = start(arm_of())
    assert server.access is not None
    for headers in ({}, {"Authorization": "Bearer guessed"}, {"Authorization": "Bearer \u00e4"}):
        with outsider(server, headers) as client:
            for path in ("/health", "/info"):
                assert client.get(path).status_code == 401
            for path in ("/render", "/score", "/v1/completions"):
                assert client.post(path, json={"text": "a"}).status_code == 401
    with outsider(server, server.access.headers) as client:
        assert client.get("/info").status_code == 200
    process = psutil.Process(server.pid)
    assert process.net_connections() == [], "no port is open"
    assert server.access.key not in " ".join(process.cmdline())
    assert server.access.key not in server.log_path.read_text("utf-8")
    server.stop()
    assert not server.access.folder.exists()


def test_a_request_is_refused_for_what_is_no_number_and_costs_nothing_else(target_alone: TransformersServer) -> None:
    assert target_alone.access is not None
    sound = b'{"prompt": [1, 2], "max_tokens": 2, "temperature": 0.5, "seed": 1}'
    bodies = [
        sound.replace(b"[1, 2]", ids) for ids in (b"[true, 2]", b"[1.0]", b"[-1]", b"[]", b"[NaN]", b"[1e400]", b'"1"')
    ]
    bodies += [
        sound.replace(b'"max_tokens": 2', b'"max_tokens": ' + count) for count in (b"true", b"2.5", b"-1", b'"2"')
    ]
    bodies += [sound.replace(b"0.5", number) for number in (b"NaN", b"Infinity", b"-1", b"true", b"1e400")]
    bodies += [sound.replace(b'"seed": 1', b'"seed": ' + b"9" * 30), b"[1]", b"{", b"[" * 100_000, b'{"a": ' * 100_000]
    with outsider(target_alone, target_alone.access.headers) as client:
        for body in bodies:
            reply = client.post("/v1/completions", content=body)
            assert (body, reply.status_code) == (body, 400)
            assert reply.json()["error"]["message"]
        assert client.post("/v1/completions", content=sound).text.endswith("data: [DONE]\n\n")
    assert "Traceback" not in target_alone.log_path.read_text("utf-8")


def test_without_sockets_it_listens_on_a_port_and_wants_the_key(
    start: Callable[[Arm], TransformersServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchctl.engines.common.process._takes_sockets", lambda path: False)
    server = start(arm_of())
    assert httpx.get(f"{server.http._base}/info", trust_env=False).status_code == 401
    assert complete(server, server.render(CHAT), GREEDY).n_predicted == 24


def test_a_cell_from_start_to_end(target_alone: TransformersServer, speculating: TransformersServer) -> None:
    assert target_alone.attest(None).state == "off"
    assert speculating.attest(None).state == "idle"
    prompt = target_alone.render(CHAT)
    assert prompt.text.startswith("<|im_start|>user\n料理")
    assert prompt.token_ids == speculating.render(CHAT).token_ids
    counts: list[int] = []
    plain, drafted = complete(target_alone, prompt, GREEDY), complete(speculating, prompt, GREEDY, counts.append)
    assert plain.ledger.target_steps is None
    assert drafted.ledger.target_steps is not None
    assert 1 + sum(step[-1] + 1 for step in drafted.ledger.target_steps) == drafted.n_predicted
    assert drafted.token_ids == plain.token_ids
    assert drafted.text == plain.text != ""
    assert counts[-1] == plain.n_predicted == 24
    assert plain.finish_reason == "length"
    assert plain.ledger.plain_steps == 23
    assert plain.ledger.drafted == 0
    ledger = drafted.ledger
    assert (ledger.accepted or 0) + (ledger.rounds or 0) + (ledger.plain_steps or 0) == 23
    assert 0 < (ledger.accepted or 0) <= (ledger.drafted or 0)
    assert drafted.engine_prompt_s is not None
    assert 0 < drafted.engine_prompt_s < drafted.e2e_s
    assert target_alone.attest(None).state == "off"
    assert speculating.attest(None).state == "active"
    sampled = Sampling(temperature=0.8, top_k=0, max_tokens=8, seed=3)
    assert complete(speculating, prompt, sampled).token_ids == complete(speculating, prompt, sampled).token_ids
    with pytest.raises(EngineError, match="the context holds 512") as refused:
        target_alone.http.post("/v1/completions", {"prompt": [5] * 512, "max_tokens": 4})
    assert refused.value.kind == "http"
    assert complete(target_alone, prompt, GREEDY).token_ids == plain.token_ids


def test_what_every_round_did_is_written_as_documented(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    spec = TransformersSpec(kind="transformers", device="cpu", dtype="float32", context=512, threads=1, trace=True)
    engine, folder = TransformersEngine(spec, binary=sys.executable), folder_of("tiny-hybrid")
    models = ResolvedPair(ResolvedModel(str(folder), (), folder=folder), None)
    server = engine.start(engine.launch(arm_of("self-ssm", max=4), models), tmp_path / "cell.log")
    try:
        prompt = server.render(CHAT)
        _, done = complete(server, prompt, GREEDY), complete(server, prompt, GREEDY)
    finally:
        server.stop()
    lines = [json.loads(line) for line in (tmp_path / "cell.rounds.jsonl").read_text("utf-8").splitlines()]
    page = (Path(__file__).parents[3] / "docs" / "self-speculation.md").read_text("utf-8")
    table = re.search(r"\| key \| means \|\n\|[- |]+\n((?:\|.*\n)+)", page)
    assert table is not None
    documented = [name for row in table[1].splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert all(sorted(line) == sorted(documented) for line in lines)
    steps, ledger = [line for line in lines if line["answer"] == 1], done.ledger
    assert [step["step"] for step in steps] == list(range(len(steps)))
    assert [token for step in steps for token in step["tokens"]] == list(done.token_ids or ())
    for name, total in (("drafted", ledger.drafted), ("accepted", ledger.accepted)):
        assert sum(step[name] for step in steps) == total
    assert [step["context"] for step in steps[:2]] == [len(prompt.token_ids), len(prompt.token_ids) + 1]
    assert all(
        step["left_out"] == ["0.attention", "1.attention", "2.attention", "3.attention"]
        for step in steps
        if step["drafted"]
    )
    drafting = sum(step["seconds"].get("draft", 0) for step in steps)
    assert done.phase_s is not None
    assert drafting == pytest.approx(done.phase_s["draft"], abs=1e-4)


def test_a_penalty_and_biases_hold_for_every_arm_for_scores_and_in_replay(
    engine: TransformersEngine, target_alone: TransformersServer, speculating: TransformersServer, tmp_path: Path
) -> None:
    prompt = target_alone.render(CHAT)
    plain = complete(target_alone, prompt, GREEDY).token_ids or ()
    sampling = Sampling(max_tokens=24, ignore_eos=True, repeat_penalty=1.4, logit_bias={plain[2]: -100})
    answer = complete(target_alone, prompt, sampling).token_ids or ()
    speculated = complete(speculating, prompt, sampling)
    assert answer == speculated.token_ids
    assert answer[:2] == plain[:2] and answer[2] != plain[2]
    folder = Path(target_alone._requested["model"])
    models = ResolvedPair(ResolvedModel(str(folder), (), folder=folder), None)
    replay_launch = engine.replay_launch(engine.launch(arm_of("self-ssm", max=4), models))
    assert replay_launch.argv == engine.launch(arm_of(), models).argv
    scorer = engine.start_replayer(replay_launch, tmp_path / "log", sampling)
    try:
        for position, token in enumerate(answer):
            assert scorer.read_on([*prompt.token_ids, *answer[:position]], 3).likeliest == token
        steps = speculated.ledger.target_steps or ()
        assert scorer.replay(prompt, answer, steps) == []
        (deviation,) = scorer.replay(prompt, [*answer[:-1], plain[2]], steps)
        assert (deviation.index, deviation.likeliest) == (23, answer[-1])
        assert deviation.gap and deviation.gap > 0
        with pytest.raises(EngineError, match="do not make the answer"):
            scorer.replay(prompt, answer, steps[1:])
    finally:
        scorer.stop()
    for settings in ({"repetition_penalty": 0}, {"logit_bias": {"x": 1}}, {"logit_bias": {"70000": 1}}):
        with pytest.raises(EngineError) as refused:
            target_alone.http.post("/v1/completions", {"prompt": [5], "max_tokens": 4, **settings})
        assert refused.value.kind == "http"


def test_prefixes_are_scored_in_any_batch(
    engine: TransformersEngine, target_alone: TransformersServer, tmp_path: Path
) -> None:
    prompt = target_alone.render(CHAT)
    answer = complete(target_alone, prompt, GREEDY).token_ids or ()
    folder = Path(target_alone._requested["model"])
    models = ResolvedPair(ResolvedModel(str(folder), (), folder=folder), None)
    scorer = engine.start_scorer(engine.launch(arm_of(), models), tmp_path / "log", Sampling(ignore_eos=True))
    try:
        assert scorer.read_prompt(prompt.token_ids, 3).likeliest == answer[0]
        step = scorer.read_on([*prompt.token_ids, answer[0]], 3)
        assert (step.evaluated, step.likeliest) == (1, answer[1])
        batch = scorer.read_on([*prompt.token_ids, *answer[:6]], 3)
        assert (batch.evaluated, batch.likeliest) == (5, answer[6])
        scores = scorer.read_whole([*prompt.token_ids, *answer[:6]], 3)
        assert scores.evaluated == len(prompt.token_ids) + 6
        assert scores.logprobs[answer[6]] == pytest.approx(batch.logprobs[answer[6]], abs=1e-4)
    finally:
        pid = scorer._server.pid
        scorer.stop()
    assert not psutil.pid_exists(pid)


def test_problems_are_reported_before_weights_are_read(engine: TransformersEngine, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "novel"}')
    models = ResolvedPair(ResolvedModel(str(tmp_path), (), folder=tmp_path), None)
    with pytest.raises(EngineError, match="cannot run the model") as caught:
        engine.start(engine.launch(arm_of(), models), tmp_path / "log")
    assert caught.value.kind == "launch"


def test_the_server_imports_nothing_else_of_benchctl() -> None:
    allowed = ("benchctl.engines.transformers.serving", "benchctl.engines.transformers.methods")
    for file in SERVER.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("benchctl"):
                assert str(node.module).startswith((*allowed, "benchctl.engines.transformers.methods")), file


@pytest.mark.slow
def test_a_run_leaves_out_the_first_attention(tmp_path: Path) -> None:
    kind, changed = DECLARED["qwen3, window"]
    loaded(kind, **{**changed, "vocab_size": 300}).model.save_pretrained(tmp_path / "model")
    byte_tokenizer(300).save_pretrained(tmp_path / "model")
    facts = {"schema": 1, "name": "raw", "kind": "raw", "licence": "MIT", "source": "this test"}
    suite = facts | {"tasks": {"code": [{"prompt": "the cat sat on the mat and the dog sat on"}]}}
    (tmp_path / "prompts.json").write_text(json.dumps(suite))
    recipe = {
        "name": "first",
        "engine": {"kind": "transformers", "binary": sys.executable, "device": "cpu", "context": 256, "threads": 1},
        "models": {"target": {"source": "model"}},
        "prompts": {"suite": "prompts.json"},
        "sampling": {"max_tokens": 24, "ignore_eos": True},
        "blocks": 1,
        "preflight": "off",
        "arms": [
            {"name": "baseline"},
            {"name": "first", "speculation": {"type": "self-skip", "max": 2, "options": {"attention": [0]}}},
        ],
    }
    prepared = prepare(Recipe.model_validate(recipe), recipe_folder=tmp_path)
    run = open_run(start_run(prepared, tmp_path / "results", RunProgress(), []))
    baseline, first = (
        next(row for row in run.records if row.label == label and row.phase == "measure")
        for label in ("baseline", "first")
    )
    assert first.error is None and first.draft_n
    assert first.token_ids == baseline.token_ids
