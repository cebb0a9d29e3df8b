"""Faults that a real llama-server cannot be asked for, from a scripted one."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import psutil
import pytest

from benchctl.engines.base import Completion, Server
from benchctl.engines.common.process import EngineProcess
from benchctl.errors import EngineError
from benchctl.models.files import ResolvedPair
from benchctl.prompts.suite import Message, Prompt
from benchctl.recipes.schema import Sampling
from tests.engines.cells import HERE, arm_of, complete, fault
from tests.engines.conftest import StartServer

pytestmark = pytest.mark.slow

PROMPT = Prompt(messages=(Message(role="user", content="hello"),))


def ask(server: Server) -> Completion:
    return complete(server, server.render(PROMPT), Sampling())


@pytest.fixture
def start_faulty(start_server: StartServer, fake_binary: Path) -> StartServer:
    return partial(start_server, binary=fake_binary)


def test_without_a_fault_it_answers(start_faulty: StartServer, any_pair: ResolvedPair) -> None:
    server = start_faulty(arm_of(), any_pair, env=dict(fault("")))
    answer = ask(server)
    assert (answer.text, answer.token_ids, answer.n_predicted) == ("one two three four", (1, 2, 3, 4), 4)
    assert answer.engine_decode_s == 0.003
    assert answer.ledger.drafted is None
    assert server.attest(None).state == "off"
    assert server.stop() == server.stop()


def test_a_binary_of_the_old_dialect_is_driven(start_faulty: StartServer, any_pair: ResolvedPair) -> None:
    env = dict(fault("", FAKE_HELP=str(HERE / "data" / "help_legacy.txt")))
    server = start_faulty(arm_of("draft-simple", max=4), any_pair, env=env)
    assert ask(server).n_predicted == 4
    assert server.attest(None).state == "idle"


@pytest.mark.parametrize(("kind", "drafted"), [("counts-by-round", 4), ("counts-by-round-checkpoints", None)])
def test_builds_that_count_past_the_end_are_counted_by_what_they_list(
    start_faulty: StartServer, any_pair: ResolvedPair, kind: str, drafted: int | None
) -> None:
    env = dict(fault(kind, FAKE_HELP=str(HERE / "data" / "help_early_2026.txt")))
    server = start_faulty(arm_of("draft-simple", max=4), any_pair, env=env)
    server.attest(None)
    answer = ask(server)
    assert (answer.n_predicted, answer.token_ids, answer.ledger.drafted) == (4, (1, 2, 3, 4), drafted)
    server.stop()


def test_an_answer_that_cannot_be_counted_fails(start_faulty: StartServer, tiny_pair: ResolvedPair) -> None:
    env = dict(fault("counts-by-round-otherwise", FAKE_HELP=str(HERE / "data" / "help_early_2026.txt")))
    server = start_faulty(arm_of("draft-simple", max=4), tiny_pair, env=env)
    with pytest.raises(EngineError, match="past the end") as caught:
        ask(server)
    assert caught.value.kind == "protocol"
    server.stop()


def test_it_exits_at_once(start_faulty: StartServer, any_pair: ResolvedPair) -> None:
    began = time.monotonic()
    with pytest.raises(EngineError, match="status 3") as caught:
        start_faulty(arm_of(), any_pair, env=dict(fault("exits-at-once")))
    assert caught.value.kind == "launch"
    assert caught.value.log_tail == ("error: something broke",)
    assert time.monotonic() - began < 200  # Long before the time limit of 240 s: an early exit is noticed.


def test_it_never_gets_healthy(
    start_faulty: StartServer, any_pair: ResolvedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    real = EngineProcess.stop

    def stop(process: EngineProcess, grace_s: float) -> int | None:
        started.append(process.pid)
        return real(process, grace_s)

    monkeypatch.setattr(EngineProcess, "stop", stop)
    with pytest.raises(EngineError, match=r"not healthy after 1\.5 s") as caught:
        start_faulty(arm_of(), any_pair, env=dict(fault("never-healthy")), health_timeout_s=1.5)
    assert caught.value.kind == "health"
    assert started
    assert not psutil.pid_exists(started[0])


def test_a_taken_port_is_reported(start_faulty: StartServer, any_pair: ResolvedPair) -> None:
    with pytest.raises(EngineError, match="port is taken") as caught:
        start_faulty(arm_of(), any_pair, env=dict(fault("port-taken")))
    assert caught.value.kind == "launch"


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("dies-mid-answer", "crash", r"signal SIGABRT. llama-server failed an assertion of its own: ctx != nullptr"),
        ("hangs-up", "protocol", "still runs"),
        ("cut-off", "protocol", "ended in its middle, but the engine still runs"),
        ("malformed-json", "protocol", "JSONDecodeError"),
        ("invalid-utf8", "protocol", "UnicodeDecodeError"),
        ("not-an-object", "protocol", "TypeError"),
        ("unknown-stop", "protocol", "unknown reason: sulk"),
        ("error-event", "http", "Compute error"),
        ("error-field", "http", "Compute error"),
        ("http-500", "http", r"HTTP 500: out of luck <script>"),
        ("http-500-text", "http", r"HTTP 500: .*Internal error"),
        ("no-tokens", "http", "no tokens"),
        ("ignores-samplers", "attestation", r"samplers = \[\]"),
    ],
)
def test_a_broken_answer(start_faulty: StartServer, any_pair: ResolvedPair, name: str, kind: str, message: str) -> None:
    server = start_faulty(arm_of(), any_pair, env=dict(fault(name)))
    with pytest.raises(EngineError, match=message) as caught:
        ask(server)
    assert caught.value.kind == kind
    assert not any(ord(c) < 32 and c not in "\n\t" for c in str(caught.value))
    assert server.alive() == (name != "dies-mid-answer")


@pytest.mark.parametrize("name", ["stalls", "pings"])
def test_a_stream_that_falls_silent(start_faulty: StartServer, any_pair: ResolvedPair, name: str) -> None:
    server = start_faulty(arm_of(), any_pair, env=dict(fault(name)), stall_timeout_s=0.5)
    with pytest.raises(EngineError, match=r"sent nothing for 0\.5 s") as caught:
        ask(server)
    assert caught.value.kind == "timeout"
    assert "reading of the prompt" in str(caught.value.fix)
    assert str(server.log_path) in str(caught.value.fix)


def test_an_answer_without_end(start_faulty: StartServer, any_pair: ResolvedPair) -> None:
    server = start_faulty(arm_of(), any_pair, env=dict(fault("endless")), request_timeout_s=0.7)
    with pytest.raises(EngineError, match=r"longer than 0\.7 s") as caught:
        ask(server)
    assert caught.value.kind == "timeout"


def test_hostile_text_comes_through_as_it_is(start_faulty: StartServer, any_pair: ResolvedPair) -> None:
    answer = ask(start_faulty(arm_of(), any_pair, env=dict(fault("hostile-text"))))
    assert answer.text.startswith("\x1b[2J\x1b]0;owned\x07<script>alert(1)</script>\x00")
    assert "\ufffdone" in answer.text  # a lone surrogate is no text
    assert answer.n_predicted == 6


@pytest.mark.parametrize(
    ("name", "message"),
    [("four-slots", "slots are 4"), ("other-server", "/other.gguf"), ("config-file", "/etc/llama.cpp/config.ini")],
)
def test_a_server_other_than_requested(
    start_faulty: StartServer, any_pair: ResolvedPair, name: str, message: str
) -> None:
    attestation = start_faulty(arm_of(), any_pair, env=dict(fault(name))).attest(None)
    assert attestation.state == "failed"
    assert message in str(attestation.reason)


def test_a_program_that_dies_between_requests(start_faulty: StartServer, any_pair: ResolvedPair) -> None:
    server = start_faulty(arm_of(), any_pair, env=dict(fault("")))
    server.stop()
    assert not server.alive()


def test_the_log_is_cleaned(start_faulty: StartServer, any_pair: ResolvedPair) -> None:
    server = start_faulty(arm_of(), any_pair, env=dict(fault("")))
    assert any("listening on" in line for line in server.log_tail())
    assert server.log_path.exists()
