"""One real vLLM on the CPU, started once: what it answers, what it counts, how it dies."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchctl.engines.vllm.adapter import VllmSpec
from benchctl.engines.vllm.attest import plain_steps
from benchctl.engines.vllm.engine import VllmEngine
from benchctl.engines.vllm.issue import FORM
from benchctl.engines.vllm.server import VllmServer
from benchctl.errors import EngineError
from benchctl.models.files import ResolvedModel, ResolvedPair
from benchctl.prompts.suite import Message, Prompt
from benchctl.recipes.schema import Arm, Sampling
from benchctl.recipes.speculation import Speculation
from tests.engines.cells import complete, outsider
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.vllm

GREEDY = Sampling(max_tokens=48, ignore_eos=True)
CHAT = Prompt(messages=(Message(role="user", content="Write a Python function that adds two numbers."),))
COUNTING = Prompt(prompt="one two three four one two three four one two three four one two")


@pytest.fixture(scope="module")
def engine(vllm_program: Path) -> VllmEngine:
    spec = VllmSpec(kind="vllm", context=512, dtype="float32", env={"VLLM_CPU_KVCACHE_SPACE": "1"})
    return VllmEngine(spec, binary=str(vllm_program))


@pytest.fixture(scope="module")
def server(
    engine: VllmEngine,
    tiny_transformer: ResolvedModel,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[VllmServer]:
    """The bundled transformer with n-gram drafts; the last test of this file kills it."""
    arm = Arm(name="ngram", speculation=Speculation(type="ngram-simple", max=4, size_n=2))
    launch = engine.launch(arm, ResolvedPair(tiny_transformer, None))
    started = engine.start(launch, tmp_path_factory.mktemp("vllm") / "server.log")
    yield started
    started.stop()


def test_the_package_is_probed(engine: VllmEngine) -> None:
    result = engine.probe()
    assert {"ngram-simple", "draft-simple", "draft-mtp", "suffix", "medusa"} <= set(result.speculation_types)
    assert result.details["platform"] == "cpu"
    assert "--max-num-seqs" in str(result.details["flags"])


def test_a_chat_is_rendered_with_the_models_template(server: VllmServer) -> None:
    rendered = server.render(CHAT)
    assert rendered.text.startswith("<|im_start|>user\nWrite a Python function")
    assert rendered.text.endswith("<|im_start|>assistant\n")
    assert len(rendered.token_ids) == 18
    raw = server.render(COUNTING)
    assert raw.text == COUNTING.prompt


def test_answers_are_reproducible_and_their_figures_agree(server: VllmServer) -> None:
    prompt, received = server.render(COUNTING), list[int]()
    first = complete(server, prompt, GREEDY, received.append)
    second = complete(server, prompt, GREEDY)
    assert (first.text, first.token_ids) == (second.text, second.token_ids)
    assert first.token_ids is not None
    assert (first.n_predicted, len(first.token_ids), first.finish_reason) == (48, 48, "length")
    assert received[-1] == 48
    assert received == sorted(received)
    assert first.ledger == second.ledger  # nothing of the first answer is left for the second
    assert (first.ledger.rounds or 0) > 0
    assert first.ledger.plain_steps is not None
    assert (first.ledger.rounds or 0) + first.ledger.plain_steps + (first.ledger.accepted or 0) >= 47
    assert first.engine_decode_s is not None
    assert 0 < first.ttft_s <= first.ttft_s + first.decode_s <= first.e2e_s
    counted = server.counted()
    assert counted.keys() == {"cached tokens", "preemptions", "rounds", "drafted", "accepted", "running"}
    assert counted["preemptions"] == 0
    assert counted["rounds"] >= (first.ledger.rounds or 0)  # counters lag, those of the first answer have had the time
    result = server.attest(None)
    assert result.state == "active"
    assert not [line for line in result.evidence if "contradiction" in line]
    assert any(line.startswith("acceptance length as vLLM defines it") for line in result.evidence)
    assert any(line.startswith("steps without a draft: ") and "not reported" not in line for line in result.evidence)


def test_a_request_of_the_bug_form_gets_the_measured_tokens(server: VllmServer) -> None:
    for prompt in (CHAT, COUNTING):
        path, body = FORM.request(prompt, GREEDY, False)
        (choice,) = server.http.post(path, body)["choices"]
        assert choice["token_ids"] == list(complete(server, server.render(prompt), GREEDY).token_ids or ())


def test_requests_without_the_key_are_refused(server: VllmServer) -> None:
    assert server.access is not None
    with outsider(server) as client:  # it would first need to be the same user
        assert client.get("/v1/models").status_code == 401
        assert client.post("/v1/completions", json={"model": "benchctl", "prompt": "a"}).status_code == 401
    key, log = server.access.key, server.log_path.read_text("utf-8", "replace")
    assert key not in log
    assert key not in " ".join(psutil.Process(server.pid).cmdline())
    assert f"unix:{server.access.socket_path}" in log


def test_an_answer_ends_with_its_token(server: VllmServer) -> None:
    done = complete(server, server.render(CHAT), Sampling(max_tokens=200))
    assert done.finish_reason == "stop"
    assert done.token_ids is not None
    assert done.token_ids[-1] == 2  # <|im_end|>
    assert done.n_predicted == len(done.token_ids)
    assert plain_steps(done.ledger, done.n_predicted, None) is None


def test_a_prompt_that_is_too_long_costs_one_request(server: VllmServer) -> None:
    long = Prompt(prompt="word " * 600)
    with pytest.raises(EngineError, match="HTTP 400") as caught:
        complete(server, server.render(long), GREEDY)
    assert caught.value.kind == "http"
    assert "engine.context (now 512)" in (caught.value.fix or "")
    assert server.alive()
    assert complete(server, server.render(CHAT), GREEDY).n_predicted == 48


def test_a_dead_worker_is_a_failure_although_the_exit_status_is_0(server: VllmServer) -> None:
    family = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
    (worker,) = [member for member in family if "Worker" in " ".join(member.cmdline())]
    maps = [Path(f"/proc/{member.pid}/maps").read_text().split() for member in family]
    files = {Path(word) for words in maps for word in words if word.startswith("/dev/shm/psm_")}
    open_sockets = [str(connection.laddr) for connection in family[0].net_connections("unix")]
    sockets = {Path(name) for name in open_sockets if name.startswith("/")}
    assert files
    assert server.access is not None
    assert {file.parent for file in sockets} == {server.access.folder}
    rendered = server.render(CHAT)
    worker.kill()
    deadline = time.monotonic() + LIMIT_S
    with pytest.raises(EngineError) as caught:
        while time.monotonic() < deadline:  # the first requests after it may still be answered
            complete(server, rendered, GREEDY)
    assert caught.value.kind == "crash"
    assert "worker process" in caught.value.what
    with pytest.raises(EngineError):
        server.attest(None)
    assert server.stop() == 0
    assert not [member for member in family if member.is_running() and member.status() != psutil.STATUS_ZOMBIE]
    assert not [file for file in files | sockets if file.exists()]
