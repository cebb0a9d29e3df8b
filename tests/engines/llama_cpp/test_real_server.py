"""The adapter on the real llama-server with the bundled pair."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from benchctl.data.cell import UNCHECKED_ACCEPTANCE
from benchctl.data.record import sha256_text
from benchctl.engines.base import Completion
from benchctl.engines.llama_cpp.adapter import LlamaCppSpec
from benchctl.engines.llama_cpp.engine import LlamaCppEngine
from benchctl.engines.llama_cpp.issue import FORM
from benchctl.engines.llama_cpp.rounds import read_rounds
from benchctl.engines.llama_cpp.server import LlamaServer
from benchctl.errors import EngineError, UsageError
from benchctl.models.files import ResolvedPair
from benchctl.prompts.suite import Message, Prompt
from benchctl.recipes.schema import Arm, Sampling
from tests.engines.cells import arm_of, complete, outsider, recipe_of, resolved
from tests.engines.conftest import StartServer
from tests.waiting import has_ended, wait_for

pytestmark = pytest.mark.engine

CHAT = Prompt(messages=(Message(role="user", content="Write a function that adds two numbers."),))
RAW = Prompt(prompt="def add(a, b):")


def test_a_chat_prompt_is_rendered_with_the_models_template(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    server = start_server(arm_of(), tiny_pair)
    chat, raw = server.render(CHAT), server.render(RAW)
    assert "<|im_start|>user\nWrite a function" in chat.text
    assert chat.text.endswith("assistant\n")
    assert len(chat.token_ids) < len(chat.text)
    assert raw.text == "def add(a, b):"


def test_a_request_of_the_bug_form_gets_the_measured_answer(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    server = start_server(arm_of("draft-simple", max=4), tiny_pair)
    assert isinstance(server, LlamaServer)
    sampling = Sampling(max_tokens=24)
    for prompt in (CHAT, RAW):
        measured = complete(server, server.render(prompt), sampling)
        path, body = FORM.request(prompt, sampling, False)
        answer = server.http.post(path, body)
        text = answer["choices"][0]["message"]["content"] if prompt.messages else answer["content"]
        assert text == measured.text
        assert answer["timings"]["predicted_n"] == measured.n_predicted


PLACE = {
    "type": "object",
    "properties": {"place": {"$ref": "#/$defs/place"}},
    "required": ["place"],
    "additionalProperties": False,
    "$defs": {"place": {"const": "Xanadu"}},
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": PLACE}}


def test_a_schema_holds_the_answer(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    server = start_server(arm_of(), tiny_pair)
    schema = {"type": "object", "properties": {"sum": {"enum": [7]}}, "required": ["sum"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    plain, with_schema = server.render(CHAT), server.render(CHAT.model_copy(update={"response_format": form}))
    answer = complete(server, with_schema, Sampling(max_tokens=40))
    assert json.loads(answer.text) == {"sum": 7}, "the tiny model alone writes no JSON"
    recovered = server.recover_token_ids(with_schema, Sampling(max_tokens=40), replace(answer, token_ids=None))
    assert recovered == answer.token_ids
    assert plain.sha256 == sha256_text(plain.text) != with_schema.sha256

    def answered(**fields: Any) -> Completion:
        return complete(server, server.render(CHAT.model_copy(update=fields)), Sampling(max_tokens=80))

    assert answered(choice=("red", "deep blue")).text in ("red", "deep blue")
    free = answered(logprobs=True)
    assert free.logprobs is not None and len(free.logprobs) == free.n_predicted and None not in free.logprobs
    stop = free.text[5:9]
    assert answered(stop=(stop, "never")).text == free.text[: free.text.find(stop)]
    forced = json.loads(answered(tools=(WEATHER,), tool_choice="required").text)
    assert forced == {"name": "weather", "arguments": {"place": "Xanadu"}}, "the template has no tools, the schema has"


def test_a_template_that_leaves_tools_out_is_an_error(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    server = start_server(arm_of(), tiny_pair)
    with pytest.raises(EngineError, match="'weather'") as caught:
        server.render(CHAT.model_copy(update={"tools": (WEATHER,), "tool_choice": "auto"}))
    assert caught.value.kind == "http"


def test_a_template_that_leaves_an_earlier_call_out_is_an_error(
    start_server: StartServer, tiny_pair: ResolvedPair
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Xanadu"}'}}
    turns = [*(CHAT.messages or ()), Message(role="assistant", tool_calls=(call,))]
    prompt = Prompt(messages=(*turns, Message(role="tool", content="sunny", tool_call_id="c1")))
    with pytest.raises(EngineError, match="'weather'"):
        start_server(arm_of(), tiny_pair).render(prompt)


def test_the_target_alone(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    server = start_server(arm_of(), tiny_pair)
    assert server.attest(None).state == "off"
    prompt = server.render(CHAT)
    counts: list[int] = []
    sampling = Sampling(max_tokens=48, ignore_eos=True)
    answer = complete(server, prompt, sampling, counts.append)
    assert (answer.n_predicted, answer.finish_reason) == (48, "length")
    assert answer.prompt_tokens == len(prompt.token_ids)
    assert counts[-1] <= 48
    assert counts == sorted(counts)
    assert 0 < answer.ttft_s <= answer.ttft_s + answer.decode_s <= answer.e2e_s
    assert answer.engine_decode_s is not None
    assert answer.engine_prompt_s is not None
    assert answer.ledger.drafted is None
    second = complete(server, prompt, sampling)
    assert (second.text, second.token_ids) == (answer.text, answer.token_ids)
    assert server.attest(None).state == "off"
    assert server.stop() == 0
    assert not server.alive()


JAPANESE = Prompt(prompt="日本の首都は")
"""Its answers have characters of several tokens, of which the stream shows the last alone."""
DRAFTS = arm_of("draft-simple", max=4)
ENDS_EARLY = arm_of("draft-simple", max=4, p_min=0.5)
LOOKS_UP = arm_of("ngram-simple", size_n=2, size_m=4)
SPECULATING = [
    (DRAFTS, "tiny-hybrid"),
    (ENDS_EARLY, "tiny-hybrid"),
    (LOOKS_UP, "tiny-hybrid"),
    (LOOKS_UP, "tiny-transformer"),
]


@pytest.mark.parametrize(("arm", "target"), SPECULATING)
@pytest.mark.parametrize("ignore_eos", [True, False])
def test_steps_add_up_to_the_counters_and_the_tokens(
    start_server: StartServer, tiny_pair: ResolvedPair, arm: Arm, target: str, ignore_eos: bool
) -> None:
    server = start_server(arm, replace(tiny_pair, target=resolved(tiny_pair.target.path.with_stem(target))))
    server.attest(None)
    drafted, without_draft = 0, 0
    for prompt in (RAW, CHAT, JAPANESE) if arm is DRAFTS else (RAW, CHAT):
        answer = complete(server, server.render(prompt), Sampling(max_tokens=48, ignore_eos=ignore_eos))
        counters = answer.ledger
        assert counters.target_steps is not None and counters.drafted is not None
        rounds = [step for step in counters.target_steps if step[0]]
        assert len(rounds) == counters.rounds
        assert sum(drafted for drafted, *_ in rounds) == counters.drafted
        assert sum(accepted for _, accepted, *_ in rounds) == counters.accepted
        brought = 1 + sum(step[-1] + 1 for step in counters.target_steps)
        assert brought - counters.target_steps[-1][-1] <= answer.n_predicted <= brought
        assert brought == answer.n_predicted or answer.finish_reason == "stop"
        reread = [step for step in rounds if len(step) == 3]
        assert reread == ([step for step in rounds if step[1] < step[0]] if target == "tiny-hybrid" else [])
        if rounds:
            assert counters.drafted_by_position is not None and counters.accepted_by_length is not None
            assert sum(counters.drafted_by_position) == counters.drafted
            assert sum(counters.accepted_by_length) == counters.accepted
            assert len(counters.accepted_by_length) == len(counters.drafted_by_position) <= 4
        drafted, without_draft = drafted + counters.drafted, without_draft + counters.target_steps.count((0, 0))
    assert drafted > 0
    assert without_draft or arm is DRAFTS
    evidence = server.attest(drafted).evidence
    assert any("agree with their counters" in line for line in evidence)
    assert not any(UNCHECKED_ACCEPTANCE in line for line in evidence)


def test_rounds_in_the_log_that_contradict_the_counters_are_not_used(
    start_server: StartServer, tiny_pair: ResolvedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server(DRAFTS, tiny_pair)
    server.attest(None)
    prompt, sampling = server.render(RAW), Sampling(max_tokens=48, ignore_eos=True)
    assert complete(server, prompt, sampling).ledger.target_steps is not None
    monkeypatch.setattr("benchctl.engines.llama_cpp.server.read_rounds", lambda log: read_rounds(log)[1:])
    ledger = complete(server, prompt, sampling).ledger
    assert ledger.target_steps is None and ledger.drafted_by_position is None
    evidence = server.attest(ledger.drafted).evidence
    assert any(f"rounds, and its counters {ledger.rounds}" in line for line in evidence)
    assert any(UNCHECKED_ACCEPTANCE in line for line in evidence), "the target evaluates accepted tokens again"


def test_a_build_that_logs_no_rounds_has_no_steps(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    server = start_server(DRAFTS, tiny_pair, env={"LLAMA_TRACE": "0"})
    ledger = complete(server, server.render(RAW), Sampling(max_tokens=48, ignore_eos=True)).ledger
    assert ledger.drafted and ledger.target_steps is None
    assert any(UNCHECKED_ACCEPTANCE in line for line in server.attest(ledger.drafted).evidence)


def test_requests_without_the_key_are_refused(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    server = start_server(arm_of(), tiny_pair)
    assert isinstance(server, LlamaServer)
    page = {"Origin": "https://a.page.example"}
    body = {"prompt": "hello", "n_predict": 1}
    for headers in ({}, page, {"Authorization": "Bearer guessed"}):
        with outsider(server, headers) as client:
            for path in ("/props", "/slots", "/metrics"):
                assert client.get(path).status_code == 401
            assert client.post("/completion", json=body).status_code == 401
    assert server.access is not None
    with outsider(server, server.access.headers) as client:
        assert client.get("/props").status_code == 200
    assert [connection for connection in psutil.Process(server.pid).net_connections() if connection.laddr] == [], (
        "no port is open"
    )
    key = server.access.key
    assert len(key) >= 32
    assert key not in " ".join(psutil.Process(server.pid).cmdline())
    assert key not in server.log_path.read_text("utf-8", "replace")
    server.stop()
    assert not server.access.folder.exists()


def test_a_build_without_sockets_is_reached_by_a_port_with_a_key(
    start_server: StartServer, tiny_pair: ResolvedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchctl.engines.common.process._takes_sockets", lambda path: False)
    server = start_server(arm_of(), tiny_pair)
    assert isinstance(server, LlamaServer)
    (address,) = {
        connection.laddr for connection in psutil.Process(server.pid).net_connections() if connection.status == "LISTEN"
    }
    assert address[0] == "127.0.0.1"
    for path in ("/props", "/slots", "/metrics"):
        assert httpx.get(f"http://127.0.0.1:{address[1]}{path}", trust_env=False).status_code == 401
    assert complete(server, server.render(CHAT), Sampling(max_tokens=8, ignore_eos=True)).n_predicted == 8


def test_a_draft_model(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    server = start_server(arm_of("draft-simple", max=4, min=1), tiny_pair)
    assert server.attest(None).state == "idle"
    answer = complete(server, server.render(CHAT), Sampling(max_tokens=64, ignore_eos=True))
    ledger = answer.ledger
    assert ledger.drafted is not None
    assert ledger.accepted is not None
    assert ledger.rounds is not None
    assert ledger.accepted_by_position is not None
    assert ledger.drafted > ledger.rounds > 0
    assert len(ledger.accepted_by_position) == 4
    assert sum(ledger.accepted_by_position) == ledger.accepted <= ledger.drafted
    assert list(ledger.accepted_by_position) == sorted(ledger.accepted_by_position, reverse=True)
    attestation = server.attest(ledger.drafted)
    assert attestation.state == "active"
    assert any("n_max=4, n_min=1" in line for line in attestation.evidence)


@pytest.mark.parametrize("name", ["ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"])
def test_every_ngram_type_starts(start_server: StartServer, tiny_pair: ResolvedPair, name: str) -> None:
    server = start_server(arm_of(name), tiny_pair)
    answer = complete(server, server.render(RAW), Sampling(max_tokens=24))
    assert answer.ledger.drafted is not None
    assert server.attest(answer.ledger.drafted).state == ("active" if answer.ledger.drafted else "idle")


def test_a_lookup_that_fires(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    # A grammar that repeats itself makes the text repeat itself; a long period leaves enough to copy.
    grammar = 'root ::= "the quick brown fox jumps over the lazy dog and away again. " root'
    server = start_server(arm_of("ngram-simple", max=4, size_n=3), tiny_pair, args=["--grammar", grammar])
    answer = complete(server, server.render(RAW), Sampling(max_tokens=120, ignore_eos=True))
    assert answer.ledger.accepted
    assert server.attest(answer.ledger.drafted).state == "active"


def test_a_head_that_the_target_lacks(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    with pytest.raises(EngineError, match="MTP head") as caught:
        start_server(arm_of("draft-mtp"), ResolvedPair(tiny_pair.target, None))
    assert caught.value.kind == "launch"


def test_the_end_of_the_answer_is_a_token_too(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    server = start_server(arm_of(), tiny_pair, args=["--grammar", 'root ::= "ab"'])
    answer = complete(server, server.render(RAW), Sampling(max_tokens=24))
    assert (answer.text, answer.finish_reason) == ("ab", "stop")
    assert answer.token_ids is not None
    assert len(answer.token_ids) == answer.n_predicted
    end = server.render(Prompt(prompt="<|endoftext|>")).token_ids
    assert answer.token_ids[-1:] == end


def test_one_token(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    server = start_server(arm_of("draft-simple"), tiny_pair)
    answer = complete(server, server.render(RAW), Sampling(max_tokens=1))
    assert (answer.n_predicted, answer.decode_s, answer.engine_decode_s) == (1, 0.0, None)
    assert server.attest(answer.ledger.drafted).state == "idle"


def test_a_prompt_that_is_too_long(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    server = start_server(arm_of(), tiny_pair, context=256)
    long = server.render(Prompt(prompt="x y z " * 400))
    with pytest.raises(EngineError, match="context size") as caught:
        complete(server, long, Sampling())
    assert caught.value.kind == "http"
    assert "engine.context (now 256)" in str(caught.value.fix)
    assert complete(server, server.render(RAW), Sampling(max_tokens=2)).n_predicted == 2


def test_many_requests_on_one_server(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    # llama-server drops connections after streamed answers; a client that reuses them fails within a few requests.
    server = start_server(arm_of(), tiny_pair)
    prompt = server.render(RAW)
    texts = {complete(server, prompt, Sampling(max_tokens=12)).text for _ in range(40)}
    assert len(texts) == 1


def test_a_killed_server_costs_its_request_only(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    server = start_server(arm_of(), tiny_pair)
    assert isinstance(server, LlamaServer)
    prompt = server.render(RAW)
    with pytest.raises(EngineError, match="signal SIGKILL") as caught:
        complete(server, prompt, Sampling(max_tokens=900, ignore_eos=True), lambda _: psutil.Process(server.pid).kill())
    assert caught.value.kind == "crash"
    assert caught.value.log_tail
    with pytest.raises(EngineError) as second_error:
        complete(server, prompt, Sampling())
    assert second_error.value.kind == "crash"


@pytest.mark.parametrize("content", [None, b"", b"this is no model at all, just text", "truncated"])
def test_a_model_that_cannot_be_loaded(
    start_server: StartServer, tiny_target: Path, tmp_path: Path, content: bytes | str | None
) -> None:
    path = tmp_path / "model.gguf"
    if content == "truncated":
        path.write_bytes(tiny_target.read_bytes()[:-1_000_000])
    elif isinstance(content, bytes):
        path.write_bytes(content)
    with pytest.raises(EngineError, match="could not be loaded") as caught:
        start_server(arm_of(), ResolvedPair(resolved(path), None))
    assert caught.value.kind == "launch"
    assert caught.value.fix
    assert caught.value.log_tail


def test_a_draft_that_is_not_there(start_server: StartServer, tiny_pair: ResolvedPair, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"The (draft model|model file) .*no\.gguf") as caught:
        start_server(arm_of("draft-simple"), ResolvedPair(tiny_pair.target, resolved(tmp_path / "no.gguf")))
    assert caught.value.kind == "launch"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds a process to its address space")
def test_a_context_that_does_not_fit_into_memory(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    import resource

    args = ["--override-kv", "falcon-h1.context_length=int:10000000", "-ctk", "f32", "-ctv", "f32"]
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (24 * 2**30, hard))  # The cache asks for 38 GiB, on whatever machine.
    try:
        with pytest.raises(EngineError, match="out of memory") as caught:
            start_server(arm_of(), tiny_pair, context=10_000_000, args=args)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert caught.value.kind == "launch"


ORPHAN = """
import sys, time
from pathlib import Path
from typing import Any
from benchctl.engines.base import Completion
from benchctl.engines.llama_cpp.adapter import LlamaCppSpec
from benchctl.engines.registry import make_engine
from benchctl.models.files import ModelFile, ResolvedModel, ResolvedPair
from benchctl.recipes.schema import Arm
engine = make_engine(LlamaCppSpec(binary={binary!r}, device="cpu", threads=1, context=512))
target = ResolvedModel("t", (ModelFile(Path({target!r}), 0, ""),))
server = engine.start(engine.launch(Arm(name="baseline"), ResolvedPair(target, None)), Path({log!r}))
print(server.pid, flush=True)
time.sleep(120)
"""


def test_a_killed_benchctl_leaves_no_server(llama_server: Path, tiny_target: Path, tmp_path: Path) -> None:
    script = ORPHAN.format(binary=str(llama_server), target=str(tiny_target), log=str(tmp_path / "log"))
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    server = psutil.Process(int(parent.stdout.readline()))
    assert server.is_running()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: has_ended(server.pid), "the server's end")


def test_the_check_refuses_everything_at_once(llama_server: Path, tiny_pair: ResolvedPair) -> None:
    spec = LlamaCppSpec(binary=str(llama_server), args=["--draft-max", "4"], env={"HF_TOKEN": "x"}, device="cuda")
    arm = arm_of("ngram-cache", max=3, args=["--port", "1"])
    engine = LlamaCppEngine(spec)
    with pytest.raises(UsageError) as caught:
        engine.check(recipe_of(arm, engine=spec), tiny_pair)
    for message in ("--draft-max was removed", "HF_TOKEN", "engine.device", "`max` has no effect", "--port"):
        assert message in str(caught.value)


def test_the_check_needs_a_draft_model_and_a_batch_that_holds_a_round(
    llama_server: Path, tiny_pair: ResolvedPair
) -> None:
    engine = LlamaCppEngine(LlamaCppSpec(binary=str(llama_server)))
    target_only = ResolvedPair(tiny_pair.target, None)
    with pytest.raises(UsageError, match=r"name one in models\.draft"):
        engine.check(recipe_of(arm_of("draft-simple"), draft=False), target_only)
    with pytest.raises(UsageError, match="needs a batch of 601"):
        engine.check(recipe_of(arm_of("ngram-map-k", size_m=600), draft=False), target_only)
    with pytest.raises(UsageError, match="-b is 4"):
        engine.check(recipe_of(arm_of("draft-simple", max=4, args=["-b", "4"])), tiny_pair)


def test_the_check_warns_and_lets_through(llama_server: Path, tiny_pair: ResolvedPair) -> None:
    engine = LlamaCppEngine(LlamaCppSpec(binary=str(llama_server)))
    assert engine.check(recipe_of(arm_of(), arm_of("draft-simple", max=16)), tiny_pair) == []
    assert engine.check(recipe_of(arm_of("draft-simple", args=["--spec-synth-len", "2"])), tiny_pair) == []


def test_companions_are_found_beside_the_server(llama_server: Path) -> None:
    engine = LlamaCppEngine(LlamaCppSpec(binary=str(llama_server)))
    assert re.fullmatch("llama-quantize", engine.tool("llama-quantize").name)
