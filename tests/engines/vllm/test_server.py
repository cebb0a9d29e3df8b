"""What a vLLM's server makes of answers and counters, and how it ends: against a scripted endpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from benchctl.engines.base import Ledger, Rendered
from benchctl.engines.common.process import EngineProcess
from benchctl.engines.vllm.adapter import VllmSpec
from benchctl.engines.vllm.server import VllmServer, answer_settings, completion_body
from benchctl.errors import EngineError
from benchctl.prompts.suite import Message, Prompt
from benchctl.recipes.schema import Sampling
from tests.engines.cells import at_once, complete, stopped_in_flight
from tests.engines.openai.fake_endpoint import Script, serving

ONCE = {
    "num_spec_steps": 1,
    "num_draft_tokens": 4,
    "num_accepted_draft_tokens": 1,
    "acceptance_histogram": [0, 1, 0, 0, 0],
    "num_spec_tokens": 4,
}
"""One round of four draft tokens, one of them accepted: four tokens with the first, and one plain step."""
GREEDY = Sampling(max_tokens=4)
PROMPT = Rendered("count", (1, 2, 3))
LOG = "INFO Chunked prefill is enabled with max_num_batched_tokens={}.\n"


class Process:
    """A process that is said to be alive or dead, and remembers how long it was waited for."""

    pid = 1
    log_path: Path
    access = None

    def __init__(self, status: int | None = None) -> None:
        self.status = status
        self.waits: list[float] = []

    def wait(self, timeout: float = 0.0) -> bool:
        self.waits.append(timeout)
        return self.status is not None

    def stop(self, **_: float) -> int | None:
        return self.status


class Counting(dict[str, Any]):
    """Pages whose counters move by one answer's figures after every answer, or so many readings later."""

    def __init__(self, answers: Callable[[], int], lag: int = 0, **pages: Any) -> None:
        super().__init__(**{"/metrics": "", "/health": "", "/v1/models": {"data": [{"root": "/m"}]}})
        self.answers, self.lag, self.counted, self.readings = answers, lag, 0, 0

    def __getitem__(self, path: str) -> Any:
        if path != "/metrics":
            return super().__getitem__(path)
        if self.answers() > self.counted:
            self.readings += 1
            if self.readings > self.lag:
                self.counted, self.readings = self.answers(), 0
        n = self.counted
        per = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        lines = [f'{per}{{position="{position}"}} {n * (position == 0)}' for position in range(4)]
        lines += [f"vllm:spec_decode_num_drafts_total {n}", f"vllm:spec_decode_num_draft_tokens_total {4 * n}"]
        lines += [f"vllm:spec_decode_num_accepted_tokens_total {n}", f"vllm:iteration_tokens_total_count {3 * n}"]
        return "\n".join(lines) + "\n"


Start = Callable[..., tuple[VllmServer, Script]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a server of a scripted vLLM that answers with the figures of `ONCE`."""
    with ExitStack() as stack:

        def begin(
            *, overlapping: bool = False, batch: int = 1024, lag: int = 0, process: Process | None = None, **script: Any
        ) -> tuple[VllmServer, Script]:
            fault = script.pop("fault", "no-list")
            endpoint = stack.enter_context(serving(Script(ids=True, fault=fault, routes=("completions",), **script)))
            endpoint.extra = {"metrics": {"generation_time_ms": 30.0, "speculative_decoding": ONCE}}
            endpoint.pages = Counting(lambda: len(endpoint.requests), lag)
            process = process or Process()
            process.log_path = tmp_path / "server.log"
            process.log_path.write_text(LOG.format(batch))
            spec, scripted = VllmSpec(kind="vllm"), cast("EngineProcess", process)
            server = VllmServer(scripted, endpoint.url, spec, model="/m", method="ngram", overlapping=overlapping)
            stack.callback(server.http.close)
            return server, endpoint

        yield begin


def test_an_answer_alone_is_compared_with_the_counters(start: Start) -> None:
    server, _ = start()
    done = complete(server, PROMPT, GREEDY)
    assert done.ledger == Ledger(4, 1, 1, None, (1, 0, 0, 0), plain_steps=1, verified=4)
    assert server.attest(None).state == "active"


def test_what_a_prompt_has_beside_its_messages_is_sent(start: Start) -> None:
    server, script = start(tokenizes=True)
    weather = {"type": "function", "function": {"name": "weather"}}
    form, variables = {"type": "json_object"}, {"enable_thinking": False}
    chat = Prompt(messages=(Message(role="user", content="count"),), tools=(weather,), chat_template_kwargs=variables)
    with_schema = server.render(chat.model_copy(update={"response_format": form}))
    assert {key: script.tokenized[0][key] for key in ("tools", "chat_template_kwargs")} == chat.request
    assert "response_format" not in script.tokenized[0]
    complete(server, replace(with_schema, token_ids=PROMPT.token_ids), GREEDY)
    assert script.requests[0]["response_format"] == form
    assert with_schema.sha256 != server.render(chat).sha256


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ({"stop": ("a", "b"), "logprobs": True}, {"stop": ["a", "b"], "logprobs": 1}),
        ({"choice": ("yes", "no")}, {"structured_outputs": {"choice": ["yes", "no"]}}),
        ({"regex": "[ab]"}, {"structured_outputs": {"regex": "[ab]"}}),
        ({"regex": "[ab]", "grammar": "root ::= [ab]"}, {}),  # the grammar is a setting of the sampling
    ],
)
def test_what_a_prompt_asks_of_its_answer_is_sent_beside_it(fields: dict[str, Any], settings: dict[str, Any]) -> None:
    prompt = Prompt(prompt="x", **fields)
    assert answer_settings(prompt) == settings
    body = completion_body((1,), GREEDY.model_copy(update=prompt.sampling))
    assert body.get("structured_outputs") == ({"grammar": "root ::= [ab]"} if "grammar" in fields else None)


def test_counters_that_lag_are_waited_for(start: Start) -> None:
    server, _ = start(lag=2)
    assert complete(server, PROMPT, GREEDY).ledger.plain_steps == 1
    overlapping_server, _ = start(lag=2, overlapping=True)
    complete(overlapping_server, PROMPT, GREEDY)
    assert overlapping_server.attest(None).state == "active"


def test_a_prompt_that_is_read_in_several_steps_hides_how_many_were_plain(start: Start) -> None:
    server, _ = start(batch=2)
    assert complete(server, PROMPT, GREEDY).ledger.plain_steps is None


def test_of_overlapping_answers_each_counts_its_own(start: Start) -> None:
    # As with `rate` at concurrency 1: the server takes one at a time, and the client sends on.
    server, _ = start(overlapping=True)
    answers = at_once(server, [PROMPT] * 8, GREEDY, 4)
    assert {answer.ledger for answer in answers} == {Ledger(4, 1, 1, None, (1, 0, 0, 0), verified=4)}
    result = server.attest(None)
    assert (result.state, result.reason) == ("active", None)


def test_stopping_wakes_every_request_and_waits_for_none(start: Start) -> None:
    process = Process()
    server, _ = start(overlapping=True, fault="stalls", process=process)
    assert stopped_in_flight(server, PROMPT, GREEDY, 4) == ["protocol"] * 4
    assert not any(process.waits)  # each wait would hold up the SIGTERM


def test_an_engine_that_reports_its_death_is_dead(start: Start) -> None:
    # A model that the CPU's attention cannot run: /health is 200, and the first request kills the engine.
    server, _ = start(process=Process(status=0))
    with server.log_path.open("a") as log:
        log.write("(Worker pid=7) ERROR RuntimeError: Unsupported CPU attention configuration: head_dim=16\n")
        log.write("RuntimeError: Worker failed with error, please check the stack trace above for the root cause\n")
    gave_up = EngineError("HTTP 500: EngineCore encountered an issue. See stack trace (above)", kind="http")
    error = server._dead_or_refused(gave_up)
    assert error.kind == "crash"
    assert "head_dim=16" in error.what
    assert "ended with status 0" in error.what


def test_what_broke_off_because_of_a_death_is_not_its_reason(start: Start) -> None:
    # Under load the server's own RuntimeError is in the log before the line about the worker.
    server, _ = start(process=Process(status=0))
    with server.log_path.open("a") as log:
        log.write("RuntimeError: cancelled\n")

    def later() -> None:
        with server.log_path.open("a") as log:
            log.write("ERROR [multiproc_executor.py:250] Worker proc VllmWorker-0 died unexpectedly (exit code: -9)\n")

    timer = threading.Timer(0.5, later)
    timer.start()
    error = server._broken_off("The connection to the engine broke")
    timer.join()
    assert "exit code -9" in error.what
    assert "cancelled" not in error.what


def test_a_line_of_the_log_kills_no_engine_that_is_healthy(start: Start) -> None:
    server, script = start(fault="cut-off")
    script.pages["/v1/models"] = {"data": [{"root": "/m"}]}
    with server.log_path.open("a") as log:
        log.write("ImportError: an optional package is not there\n")
    with pytest.raises(EngineError, match="but the engine still runs") as caught:
        complete(server, PROMPT, GREEDY)
    assert caught.value.kind == "protocol"
