"""Each way in which llama-server is known to mislead a benchmark, on the real binary.

The tests show that the trap is there (so that it is noticed when a newer build has closed it) and that benchctl does
not fall into it.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchctl.engines.base import Server
from benchctl.engines.llama_cpp.adapter import LlamaCppSpec
from benchctl.engines.llama_cpp.engine import LlamaCppEngine
from benchctl.engines.llama_cpp.requests import check_echo, completion_body
from benchctl.engines.llama_cpp.server import LlamaServer
from benchctl.errors import EngineError
from benchctl.models.files import ResolvedPair
from benchctl.prompts.suite import Prompt
from benchctl.recipes.schema import Sampling
from benchctl.recipes.speculation import Speculation
from tests.engines.cells import arm_of, complete, outsider
from tests.engines.conftest import StartServer

pytestmark = pytest.mark.engine

RAW = Prompt(prompt="def add(a, b):")
GREEDY = Sampling(max_tokens=32, ignore_eos=True)
EMOJI = ["--grammar", 'root ::= "🦙🦕🦖" root']
"""Forces characters that the bundled vocabulary spells with four tokens each."""

Rewrite = Callable[[tuple[str, ...]], tuple[str, ...]]


def without(*flags: str) -> Rewrite:
    """Return a rewriting of a command line that leaves out flags and their values."""

    def rewrite(argv: tuple[str, ...]) -> tuple[str, ...]:
        drop = {i for flag in flags if flag in argv for i in (argv.index(flag), argv.index(flag) + 1)}
        return tuple(word for i, word in enumerate(argv) if i not in drop)

    return rewrite


def answer_of(server: Server, sampling: Sampling = GREEDY) -> Any:
    return complete(server, server.render(RAW), sampling)


def as_if_requested(server: Server, types: tuple[str, ...]) -> None:
    """Have the server judged as if its command line had asked for `types`."""
    assert isinstance(server, LlamaServer)
    server._requested = type(server._requested)(types, False)


def test_1_a_draft_model_alone_does_not_speculate(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    server = start_server(arm_of("draft-simple", max=4), tiny_pair, argv=without("--spec-type", "--spec-draft-n-max"))
    as_if_requested(server, ("draft-simple",))
    assert server.attest(None).state == "failed"
    assert not answer_of(server).ledger.drafted
    attestation = server.attest(0)
    assert attestation.state == "failed"
    assert "--spec-type" in str(attestation.remedy)


def test_2_a_draft_of_another_vocabulary_fails_silently(start_server: StartServer, foreign_pair: ResolvedPair) -> None:
    server = start_server(arm_of("draft-simple", max=4), foreign_pair)
    assert answer_of(server).n_predicted == 32  # Healthy, and answering.
    for drafted in (None, 0):
        attestation = server.attest(drafted)
        assert attestation.state == "failed"
        assert "vocabulary" in str(attestation.reason)
        assert "tokenizer" in str(attestation.remedy)


@pytest.mark.parametrize("name", ["draft-simple", "draft-eagle3", "draft-dflash"])
def test_2_a_missing_draft_model_fails_silently(start_server: StartServer, tiny_pair: ResolvedPair, name: str) -> None:
    server = start_server(arm_of(name), tiny_pair, argv=without("-md", "-ngld", "--spec-draft-device"))
    attestation = server.attest(None)
    assert attestation.state == "failed"
    assert "models.draft" in str(attestation.remedy)


def test_2_an_ordinary_draft_is_no_eagle(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    attestation = start_server(arm_of("draft-eagle3"), tiny_pair).attest(None)
    assert attestation.state == "failed"
    assert "EAGLE-3" in str(attestation.remedy)


def test_2_props_and_echo_are_no_evidence(start_server: StartServer, foreign_pair: ResolvedPair) -> None:
    server = start_server(arm_of("draft-simple"), foreign_pair)
    assert isinstance(server, LlamaServer)
    body = completion_body(server.render(RAW).token_ids, GREEDY, stream=False)
    echoed = server.http.post("/completion", body)["generation_settings"]["speculative.types"]
    assert "draft-simple" in echoed  # Although nothing speculates: why nobody asks this field.
    assert server.attest(None).state == "failed"


def test_3_nothing_drafted_is_zero_and_not_absent(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    server = start_server(arm_of("ngram-simple", size_n=200), tiny_pair)
    ledger = answer_of(server).ledger
    assert (ledger.drafted, ledger.accepted, ledger.rounds) == (0, 0, 0)
    assert server.attest(0).state == "idle"


def test_4_probabilities_of_drafted_tokens_are_worthless(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    server = start_server(arm_of("draft-simple", max=4), tiny_pair)
    assert isinstance(server, LlamaServer)
    body = completion_body(server.render(RAW).token_ids, GREEDY, stream=False)
    assert "n_probs" not in body  # benchctl never takes them from an answer that was drafted.
    probabilities = server.http.post("/completion", body | {"n_probs": 1})["completion_probabilities"]
    assert any(token["logprob"] == 0.0 and token["top_logprobs"] == [] for token in probabilities)


@pytest.mark.parametrize("max_tokens", [24, 23, 21])
@pytest.mark.parametrize("type_", [None, "draft-simple"])
def test_5_tokens_that_the_stream_withholds_are_not_lost(
    start_server: StartServer, tiny_pair: ResolvedPair, max_tokens: int, type_: str | None
) -> None:
    server = start_server(arm_of(type_), tiny_pair, args=EMOJI)
    assert isinstance(server, LlamaServer)
    prompt, sampling = server.render(RAW), Sampling(max_tokens=max_tokens)
    answer = complete(server, prompt, sampling)
    ids = tuple(server.http.post("/completion", completion_body(prompt.token_ids, sampling, stream=False))["tokens"])
    assert answer.n_predicted == max_tokens == len(ids)
    ends_on_character = max_tokens == 24
    assert answer.text == ("🦙🦕🦖🦙🦕🦖" if ends_on_character else "🦙🦕🦖🦙🦕")
    # What spells whole characters is filled in; the tokens of a character that the limit cut off spell nothing yet.
    assert answer.token_ids == (ids if ends_on_character else None)
    assert (answer.token_gap is None) == ends_on_character
    assert server.recover_token_ids(prompt, sampling, answer) == ids
    if not ends_on_character:
        assert "the stream lacks" in str(answer.token_gap)
        assert server.recover_token_ids(prompt, Sampling(max_tokens=max_tokens - 1), answer) is None


def test_5_other_text_is_not_taken_for_the_answer(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    server = start_server(arm_of(), tiny_pair, args=EMOJI)
    prompt, sampling = server.render(RAW), Sampling(max_tokens=7)
    answer = complete(server, prompt, sampling)
    assert server.recover_token_ids(prompt, sampling, replace(answer, text="🦖")) is None
    assert server.recover_token_ids(prompt, sampling, replace(answer, streamed_ids=((7, 1),))) is None  # type: ignore[call-arg]


def test_6_the_same_shapes_give_the_same_tokens(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    answers = set()
    for _ in range(2):
        server = start_server(arm_of(), tiny_pair)
        for _ in range(2):
            answers.add(answer_of(server).token_ids)
        server.stop()
    assert len(answers) == 1


def test_7_a_depth_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        Speculation(type="draft-simple", max=0)


def test_7_a_batch_smaller_than_a_round_kills_the_server(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    server = start_server(arm_of("draft-simple", max=4, args=["-b", "4", "-ub", "4"]), tiny_pair)
    with pytest.raises(EngineError, match="batch is smaller") as caught:
        answer_of(server)
    assert caught.value.kind == "crash"


def test_8_a_request_in_flight_does_not_hold_a_stop_up(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    server = start_server(arm_of(), tiny_pair, context=8192)
    assert isinstance(server, LlamaServer)
    body = completion_body(server.render(RAW).token_ids, Sampling(max_tokens=8000, ignore_eos=True), stream=True)
    assert server.access is not None
    with outsider(server, server.access.headers).stream("POST", "/completion", json=body) as response:
        chunks = response.iter_raw()  # kept: a discarded iterator closes the connection
        next(chunks)
        begun = time.monotonic()
        # It waits for its client (mostly: 2 of 40 stops ended by themselves, within 0.14 s); benchctl does not.
        assert server._process.stop(grace_s=0.3) in {-signal.SIGKILL, 0}
        assert time.monotonic() - begun < 10  # The engine alone was waited for in vain for 30 s.
    assert not psutil.pid_exists(server.pid)


def test_8_an_interrupt_leaves_no_request_behind(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    server = start_server(arm_of(), tiny_pair, context=8192)

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        complete(server, server.render(RAW), Sampling(max_tokens=8000, ignore_eos=True), interrupt)
    assert answer_of(server).n_predicted == 32  # Not queued behind the one that was given up.
    assert server.stop() == 0


def test_9_replays_of_a_hybrid_target_are_not_acceptances(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    server = start_server(arm_of("draft-simple", max=4), tiny_pair)
    answer = answer_of(server)
    counted = re.findall(r"statistics\s+draft-simple: .*#acc tokens =\s*(\d+)", server.log_path.read_text())
    assert int(counted[-1]) > answer.ledger.accepted  # What the log says.
    assert answer.ledger.accepted + answer.ledger.rounds < answer.n_predicted


def test_10_the_callers_settings_do_not_leak(
    start_server: StartServer, tiny_pair: ResolvedPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "llama.cpp").mkdir()
    (tmp_path / "llama.cpp" / "config.ini").write_text("spec-type = ngram-simple\n")
    for name, value in {
        "XDG_CONFIG_HOME": str(tmp_path),
        "LLAMA_ARG_SPEC_TYPE": "ngram-simple",
        "LLAMA_ARG_N_PARALLEL": "3",
        "LLAMA_ARG_DRAFT_MAX": "4",  # Alone enough to have this build refuse to start.
        "https_proxy": "http://127.0.0.1:9",
        "http_proxy": "http://127.0.0.1:9",
    }.items():
        monkeypatch.setenv(name, value)
    server = start_server(arm_of(), tiny_pair)
    assert answer_of(server).n_predicted == 32
    assert server.attest(None).state == "off"
    assert isinstance(server, LlamaServer)
    assert psutil.Process(server.pid).environ()["XDG_CONFIG_HOME"] == "/dev/null"


def test_10_a_config_file_would_be_noticed(llama_server: Path, tiny_pair: ResolvedPair, tmp_path: Path) -> None:
    (tmp_path / "llama.cpp").mkdir()
    (tmp_path / "llama.cpp" / "config.ini").write_text("spec-type = ngram-simple\n")
    engine = LlamaCppEngine(LlamaCppSpec(binary=str(llama_server), threads=1, device="cpu", context=512))
    launch = engine.launch(arm_of(), tiny_pair)
    leaky = replace(launch, env={**launch.env, "XDG_CONFIG_HOME": str(tmp_path)})
    server = engine.start(leaky, tmp_path / "log")
    try:
        attestation = server.attest(None)
    finally:
        server.stop()
    assert attestation.state == "failed"
    assert "config.ini" in str(attestation.reason)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads a process's environment through /proc")
def test_11_threads_wait_without_spinning(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    """Threads that spin while they wait made a busy two-core machine 17 times slower."""
    server = start_server(arm_of(), tiny_pair)
    assert isinstance(server, LlamaServer)
    settings = Path(f"/proc/{server.pid}/environ").read_bytes().split(b"\0")
    assert {b"OMP_WAIT_POLICY=passive", b"GOMP_SPINCOUNT=0"} <= set(settings)


def test_12_there_is_one_slot_and_no_router(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    server = start_server(arm_of(), tiny_pair)
    assert isinstance(server, LlamaServer)
    props = server.http.get_json("/props")
    assert isinstance(props, dict)
    assert props["total_slots"] == 1
    many = start_server(arm_of(), tiny_pair, argv=without("-np"))
    attestation = many.attest(None)
    assert attestation.state == "failed"
    assert "slots" in str(attestation.reason)


def test_13_an_unknown_sampler_is_caught(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    server = start_server(arm_of(), tiny_pair)
    assert isinstance(server, LlamaServer)
    body = completion_body(server.render(RAW).token_ids, GREEDY, stream=False)
    check_echo(body, server.http.post("/completion", body)["generation_settings"])
    body_sent = body | {"samplers": ["no_such_sampler"]}
    settings = server.http.post("/completion", body_sent)["generation_settings"]
    assert settings["samplers"] == []
    with pytest.raises(EngineError, match="samplers"):
        check_echo(body_sent, settings)


def test_a_baseline_that_speculates_is_failed(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    server = start_server(arm_of("draft-simple", max=4), tiny_pair)
    as_if_requested(server, ())
    assert server.attest(None).state == "failed"
    answer = answer_of(server)
    assert answer.ledger.drafted  # Told although nobody asked for it.
    assert "tokens were drafted" in str(server.attest(answer.ledger.drafted).reason)


def test_an_engine_is_killed_from_outside_while_it_idles(start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    server = start_server(arm_of(), tiny_pair)
    assert isinstance(server, LlamaServer)
    os.kill(server.pid, signal.SIGKILL)
    with pytest.raises(EngineError) as caught:
        server.attest(None)
    assert caught.value.kind == "crash"
    assert server.stop() == -signal.SIGKILL
