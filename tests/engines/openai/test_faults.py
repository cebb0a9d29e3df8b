"""What goes wrong at endpoints, and that the key stays where it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchctl.engines.common.connection import Connection, connect
from benchctl.engines.common.http import HttpClient, Reply
from benchctl.engines.openai.adapter import OpenAiSpec
from benchctl.engines.openai.discovery import ApiKey
from benchctl.engines.openai.engine import OpenAiEngine
from benchctl.errors import EngineError, UsageError
from benchctl.prompts.suite import Message, Prompt
from benchctl.recipes.schema import Arm, Sampling
from tests.engines.cells import complete, stopped_in_flight
from tests.engines.openai.conftest import SPECULATION, Ask, served
from tests.engines.openai.fake_endpoint import Script

Endpoint = Callable[..., Script]
RAW = Prompt(prompt="count")
CHAT = Prompt(messages=(Message(role="user", content="count"),))
GREEDY = Sampling(max_tokens=4)
METRICS = "vllm:generation_tokens_total 4"
KEYED = {"api_key_env": "BENCH_TEST_KEY"}
SECRET = "sk-a-very-secret-key-0123456789"


ESCAPED = 'sk-"quoted"\\and\\escaped-0123456789'
"""A key whose characters JSON and Python write otherwise."""


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("BENCH_TEST_KEY", SECRET)
    return SECRET


@pytest.mark.parametrize(
    ("fault", "kind", "expected"),
    [
        ("status-500", "http", "HTTP 500: no: Bearer"),
        ("status-404", "http", "HTTP 404"),
        ("status-429", "http", "HTTP 429"),
        ("status-307", "http", "HTTP 307"),
        ("cut-off", "protocol", "ended in its middle, but the endpoint still accepts"),
        ("hangs-up", "protocol", "connection to the engine broke, but"),
        ("error-in-200", "http", "HTTP 200: model overloaded"),
        ("web-page", "protocol", "no stream of events, but text/html: '<html><title>Sign in"),
        ("ignores-stream", "protocol", "no stream of events, but application/json: .*one two"),
        ("no-finish", "protocol", "none of its events has a finish_reason"),
        ("malformed-json", "protocol", "cannot be read"),
        ("not-an-object", "protocol", "cannot be read"),
        ("bad-choices", "protocol", "cannot be read"),
        ("bad-text", "protocol", "cannot be read"),
        ("error-event", "http", "aborted the answer: out of memory"),
        ("stalls", "timeout", "sent nothing for 1 s"),
        ("endless", "timeout", "took longer than 1 s"),
    ],
)
def test_every_failure_has_its_kind_and_keeps_the_key(
    endpoint: Endpoint, ask: Ask, key: str, fault: str, kind: str, expected: str
) -> None:
    script = endpoint(key=key, fault=fault)
    limited = {"stalls": "stall_timeout_s", "endless": "request_timeout_s", "status-429": "request_timeout_s"}
    limit: dict[str, Any] = {limited[fault]: 1.0} if fault in limited else {}
    server = ask(script, api_key_env="BENCH_TEST_KEY", **limit)
    with pytest.raises(EngineError, match=expected) as caught:
        complete(server, server.render(RAW), GREEDY)
    assert caught.value.kind == kind
    assert "\x1b" not in caught.value.what
    assert server.alive()
    output = f"{caught.value} {caught.value!r} {server.log_path.read_text()} {server.log_tail()}"
    assert key not in output
    assert f"Bearer {key}" in script.keys


def test_a_key_that_is_written_otherwise_or_cut_is_kept_too(
    endpoint: Endpoint, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCH_TEST_KEY", SECRET)
    script = endpoint(key=SECRET, pages={"/version": {"version": f"9 {SECRET}"}, "/metrics": METRICS})
    engine = OpenAiEngine(OpenAiSpec.model_validate({"kind": "openai", "url": script.url} | KEYED))
    assert SECRET not in repr(engine.probe())
    client = HttpClient("http://127.0.0.1:9", redact=ApiKey(SECRET).redact)
    half = Reply(500, {}, b"x" * 485 + SECRET.encode())  # the message is cut in its middle
    assert SECRET[:8] not in client.refused(half).what
    client = HttpClient("http://127.0.0.1:9", redact=ApiKey(ESCAPED).redact)
    reply = Reply(500, {}, f"no {ESCAPED}".encode())
    assert "quoted" not in client.refused(reply).what


def test_an_odd_endpoint_is_looked_at_without_harm(endpoint: Endpoint) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    script = endpoint(pages={"/props": deep, "/server_info": {"internal_states": 7}, "/metrics": "x{ 1 2 3"})
    result = OpenAiEngine(OpenAiSpec(kind="openai", url=script.url)).probe()
    assert result.details["server"] == "sglang"


def test_no_gateway_may_compress_what_is_read_as_it_comes() -> None:
    with httpx.Client() as ours:
        assert "gzip" in ours.headers["Accept-Encoding"]  # as httpx would
    assert HttpClient("http://127.0.0.1:9")._headers["Accept-Encoding"] == "identity"


def test_a_busy_endpoint_is_waited_for_and_the_wait_is_in_no_figure(
    endpoint: Endpoint, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = endpoint(busy=2, retry_after="0.4")
    server, requests_at_readings = ask(script), list[int]()
    monkeypatch.setattr(server, "_reading", lambda: requests_at_readings.append(len(script.requests)))
    began = time.monotonic()
    answer = complete(server, server.render(RAW), GREEDY)
    assert answer.text == "one two three four"
    assert answer.e2e_s < time.monotonic() - began - 0.8 + 0.1
    assert requests_at_readings == [0, 1, 2], "what others generated meanwhile is not counted as this answer's"
    assert len(script.requests) == 3
    assert any(line.startswith("2 requests were refused as busy") for line in server.attest(None).evidence)


@pytest.mark.parametrize(
    ("retry_after", "settings"),
    [
        ("7", {"request_timeout_s": 1.0}),
        ("Fri, 31 Dec 2100 23:59:59 GMT", {}),
        ("Mon, 01 Jan 99999999999 00:00:00 GMT", {}),
        ("soon", {}),
        ("1", {"concurrency": 2}),
    ],
    ids=["beyond the limit", "a date beyond the limit", "no date", "no time", "its wait would be measured"],
)
def test_a_busy_endpoint_is_not_waited_for(
    endpoint: Endpoint, ask: Ask, retry_after: str, settings: dict[str, Any]
) -> None:
    script = endpoint(busy=1, retry_after=retry_after)
    server = ask(script, **settings)
    with pytest.raises(EngineError, match="HTTP 503: Loading model") as caught:
        complete(server, server.render(RAW), GREEDY)
    assert f"Retry-After: {retry_after}" in str(caught.value.fix)
    assert len(script.requests) == 1


def test_an_engine_that_benchctl_started_has_no_limit_to_raise(tmp_path: Path) -> None:
    client = HttpClient("http://127.0.0.1:9", log_path=tmp_path / "engine.log")
    assert "endpoint" not in str(client.refused(Reply(503, {}, b"Loading model")).fix)


def test_no_redirect_is_followed(endpoint: Endpoint, ask: Ask, key: str) -> None:
    server = ask(endpoint(key=key, fault="status-307"), api_key_env="BENCH_TEST_KEY")
    with pytest.raises(EngineError, match="HTTP 307") as caught:
        complete(server, server.render(RAW), GREEDY)
    assert caught.value.fix == "No redirect is followed; write the address itself: http://127.0.0.1:9/?key=[API key]"


def test_a_key_in_an_answer_is_taken_out(endpoint: Endpoint, ask: Ask, key: str) -> None:
    server = ask(endpoint(key=key, fault="echoes-key"), api_key_env="BENCH_TEST_KEY")
    five = Sampling(max_tokens=5)
    assert complete(server, server.render(RAW), five).text == "[API key]one two three four"


def test_a_wrong_key(endpoint: Endpoint, ask: Ask, key: str) -> None:
    with pytest.raises(EngineError, match="HTTP 401") as caught:
        ask(endpoint(key="another one"), api_key_env="BENCH_TEST_KEY")
    assert key not in str(caught.value)
    assert "engine.api_key_env" in str(caught.value.fix)


@pytest.mark.parametrize("value", ["", "two words", "line\nbreak", "schlüssel"])
def test_a_key_that_is_none(endpoint: Endpoint, ask: Ask, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("BENCH_TEST_KEY", value)
    with pytest.raises(UsageError, match="BENCH_TEST_KEY") as caught:
        ask(endpoint(), api_key_env="BENCH_TEST_KEY")
    assert not value or value not in str(caught.value)


def test_no_answer() -> None:
    engine = OpenAiEngine(OpenAiSpec(kind="openai", url="http://127.0.0.1:9/v1"))
    with pytest.raises(EngineError, match="accepts no connections") as caught:
        engine.probe()
    assert caught.value.kind == "launch"


def test_gone_between_prompts(ask: Ask) -> None:
    from tests.engines.openai.fake_endpoint import serving

    with serving(Script()) as script:
        server = ask(script)
        complete(server, server.render(RAW), GREEDY)
    with pytest.raises(EngineError) as caught:
        complete(server, server.render(RAW), GREEDY)
    assert caught.value.kind == "crash"
    assert not server.alive()


def test_only_one_of_the_two_routes(endpoint: Endpoint, ask: Ask) -> None:
    raw = ask(endpoint(routes=("completions",)))
    with pytest.raises(EngineError, match="no /chat/completions") as caught:
        raw.render(CHAT)
    assert caught.value.kind == "http"
    script = endpoint(routes=("chat/completions",))
    chat = ask(script)
    assert complete(chat, chat.render(RAW), GREEDY).text == "one two three four"
    assert script.requests[0]["messages"] == [{"role": "user", "content": "count"}]
    assert any("raw prompts" in line for line in chat.attest(None).evidence)
    with pytest.raises(EngineError, match="neither"):
        ask(endpoint(routes=()))


def test_the_model_that_is_meant(endpoint: Endpoint) -> None:
    def model(script: Script, name: str) -> str:
        engine = OpenAiEngine(OpenAiSpec(kind="openai", url=script.url))
        launch = engine.launch(Arm(name="arm"), served(name))
        return launch.model  # type: ignore[attr-defined, no-any-return]

    many, unlisted = endpoint(models=["a", "b"]), endpoint(fault="no-list")
    assert model(many, "b") == "b"
    assert model(endpoint(models=["only"]), "") == "only"
    assert model(unlisted, "named") == "named"
    for script, name, expected in [(many, "", "a, b"), (many, "c", "a, b"), (unlisted, "", "served:NAME")]:
        with pytest.raises(UsageError) as caught:
            model(script, name)
        assert expected in str(caught.value.fix)


def test_stopping_ends_what_is_in_flight(endpoint: Endpoint, ask: Ask) -> None:
    server = ask(endpoint(fault="stalls"), concurrency=2)
    assert stopped_in_flight(server, server.render(RAW), GREEDY, 2) == ["protocol", "protocol"]


def test_a_connection_that_is_made_while_it_stops_is_closed_too(
    endpoint: Endpoint, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ask(endpoint(fault="stalls"))
    prompt, connected = server.render(RAW), list[Connection]()

    async def late(*where: Any) -> Connection:
        connected.append(await connect(*where))
        server.stop()
        return connected[-1]

    monkeypatch.setattr("benchctl.engines.common.http.connect", late)
    began = time.monotonic()
    with pytest.raises(EngineError):
        complete(server, prompt, GREEDY)
    assert connected
    assert connected[0].ended.done()
    assert time.monotonic() - began < 15  # the endpoint is silent for 20 s


def test_another_server_at_the_same_address(endpoint: Endpoint, ask: Ask) -> None:
    script = endpoint(pages={"/props": {"build_info": "b1", "total_slots": 1}})
    server = ask(script)
    script.pages["/props"]["build_info"] = "b2"
    result = server.attest(None)
    assert (result.state, result.reason) == (
        "failed",
        "A different server answers than at the start: llama.cpp b2, not llama.cpp b1.",
    )


@pytest.mark.parametrize(
    ("speculation", "pages", "drafted", "state"),
    [
        (None, {}, None, "unverified"),
        (None, {}, 3, "failed"),
        (None, {"/server_info": {"speculative_algorithm": None}}, None, "off"),
        (None, {"/server_info": {"speculative_algorithm": "EAGLE"}}, None, "failed"),
        (None, {"/metrics": "vllm:generation_tokens_total 4"}, None, "off"),
        (
            None,
            {"/props": {"build_info": "b", "total_slots": 2}, "/slots": [{}, {"speculative": True}]},
            None,
            "failed",
        ),
        (SPECULATION, {}, None, "unverified"),
        (SPECULATION, {}, 3, "active"),
        (SPECULATION, {"/metrics": "vllm:generation_tokens_total 4"}, None, "failed"),
        (SPECULATION, {"/server_info": {"speculative_algorithm": "EAGLE"}}, None, "idle"),
        (SPECULATION, {"/props": ["no object"], "/metrics": "nothing"}, None, "unverified"),
    ],
)
def test_attestation(
    endpoint: Endpoint, ask: Ask, speculation: object, pages: dict[str, object], drafted: int | None, state: str
) -> None:
    server = ask(endpoint(pages=pages), speculation=speculation)  # type: ignore[arg-type]
    result = server.attest(drafted)
    assert result.state == state, result
    assert (result.reason is None) == (state in ("off", "active", "idle"))
    assert result.evidence
