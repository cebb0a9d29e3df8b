"""What engines send and log, with other bytes and other values: streams, counters, logs, and what servers tell.

A stream is an answer or an EngineError; counters, logs and facts are read as far as they go, and never raise.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchctl.engines.base import Ledger
from benchctl.engines.common.completion_stream import CompletionReader
from benchctl.engines.common.drafts import Tally, counted_since, read_counters, read_total
from benchctl.engines.common.drafts import step_ledger as vllm_ledger
from benchctl.engines.common.drafts import verified_ledger as sglang_ledger
from benchctl.engines.common.http import HttpClient, Reply
from benchctl.engines.common.log import first_cause
from benchctl.engines.common.wire import decode
from benchctl.engines.llama_cpp import causes as llama_causes
from benchctl.engines.llama_cpp.attest import LlamaObserved, attest, contradiction, read_counts
from benchctl.engines.llama_cpp.attest import make_ledger as llama_ledger
from benchctl.engines.llama_cpp.probe import parse_help
from benchctl.engines.llama_cpp.score import likeliest
from benchctl.engines.llama_cpp.spec_flags import RequestedSpeculation
from benchctl.engines.llama_cpp.stream import LlamaReader
from benchctl.engines.openai.discovery import discover, engine_times, parse_address
from benchctl.engines.openai.engine import _places as echo_places
from benchctl.engines.scoring import Scores
from benchctl.engines.sglang import server as sglang_server
from benchctl.engines.sglang.server import GenerateReader
from benchctl.engines.transformers import server as transformers_server
from benchctl.engines.transformers.server import _ledger as transformers_ledger
from benchctl.engines.vllm import server as vllm_server
from benchctl.engines.vllm.attest import contradictions, tokens_a_step
from benchctl.engines.vllm.engine import VllmScorer
from benchctl.errors import EngineError
from tests.engines.cells import read
from tests.fuzz import SEEN, VALUES, changed, fuzzed, mistaken, outcome, places, spoilt, told

pytestmark = pytest.mark.usefixtures(told.__name__)

TIMINGS = {"prompt_ms": 4.0, "predicted_ms": 9.0, "predicted_n": 3, "draft_n": 4, "draft_n_accepted": 1}
METRICS = {
    "time_to_first_token_ms": 4.0,
    "generation_time_ms": 9.0,
    "speculative_decoding": {
        "num_spec_steps": 1,
        "num_draft_tokens": 4,
        "num_accepted_draft_tokens": 1,
        "num_spec_tokens": 4,
        "acceptance_histogram": [0, 1, 0, 0, 0],
        "per_step_accepted": [1],
        "per_step_drafted": [4],
    },
}
LEDGER = {
    "drafted": 4,
    "accepted": 1,
    "rounds": 1,
    "plain_steps": 0,
    "drafted_by_position": [1, 1, 1, 1],
    "accepted_by_position": [1, 0, 0, 0],
}
STREAMS: dict[str, list[dict[str, Any]]] = {
    "llama.cpp": [
        {"content": "a", "tokens": [1], "stop": False, "tokens_predicted": 1, "tokens_evaluated": 3},
        {"content": "bc", "tokens": [2, 3], "stop": False, "tokens_predicted": 3, "tokens_evaluated": 3},
        {
            "content": "",
            "tokens": [],
            "stop": True,
            "stop_type": "limit",
            "tokens_predicted": 3,
            "tokens_evaluated": 3,
            "timings": TIMINGS,
            "generation_settings": {"temperature": 0.0},
        },
    ],
    "completion": [
        {"choices": [{"index": 0, "text": "a", "token_ids": [1], "logprobs": {"token_ids": [1]}}]},
        {
            "choices": [
                {
                    "index": 0,
                    "delta": {"content": "b"},
                    "token_ids": [2, 3],
                    "finish_reason": "length",
                    "speculative_decoding": {
                        "total_draft_tokens": 4,
                        "total_accepted_draft_tokens": 1,
                        "num_spec_steps": 1,
                        "acceptance_histogram": [0, 1, 0, 0, 0],
                    },
                }
            ]
        },
        {
            "choices": [],
            "usage": {"prompt_tokens": 3, "completion_tokens": 3},
            "metrics": METRICS,
            "timings": TIMINGS,
            "ledger": LEDGER,
            "phases": {"prompt": 0.1},
        },
    ],
    "sglang": [
        {
            "text": "a",
            "output_ids": [1],
            "meta_info": {"prompt_tokens": 3, "completion_tokens": 1, "finish_reason": None},
        },
        {
            "text": "abc",
            "output_ids": [1, 2, 3],
            "meta_info": {
                "prompt_tokens": 3,
                "completion_tokens": 3,
                "cached_tokens": 0,
                "finish_reason": {"type": "length", "length": 3},
                "spec_verify_ct": 1,
                "spec_num_correct_drafts": 1,
                "spec_num_proposed_drafts": 4,
                "spec_correct_drafts_histogram": [0, 1],
            },
        },
    ],
}


def read_llama(chunks: list[bytes]) -> None:
    answer = read(LlamaReader(64), chunks)
    if answer is not None:
        assert 0 <= answer.n_predicted <= 2**31
        llama_ledger(Ledger(), Ledger(), answer.timings, speculating=True)


def read_completion(chunks: list[bytes]) -> None:
    answer = read(CompletionReader(), chunks)
    if answer is None:
        return
    received = sum(map(len, chunks))
    assert answer.completion_tokens is None or answer.completion_tokens <= received
    metrics = answer.extra.get("metrics")
    result = vllm_ledger(metrics if isinstance(metrics, dict) else {})
    contradictions(result, len(answer.ids))
    engine_times(answer.extra)
    transformers_ledger(answer)


def read_sglang(chunks: list[bytes]) -> None:
    answer = read(GenerateReader(), chunks)
    if answer is not None:
        assert len(answer.ids) <= sum(map(len, chunks))
        sglang_ledger(answer.extra, counted=True)


READERS: dict[str, Callable[[list[bytes]], None]] = {
    "llama.cpp": read_llama,
    "completion": read_completion,
    "sglang": read_sglang,
}


def as_stream(events: list[bytes]) -> bytes:
    return b"".join(b"data: " + event + b"\n\n" for event in events)


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_an_answer_or_an_error(name: str) -> None:
    sound = [json.dumps(event).encode() for event in STREAMS[name]]
    end = b"" if name == "llama.cpp" else b"data: [DONE]\n\n"
    READERS[name]([as_stream(sound) + end])

    @fuzzed
    @given(st.data())
    def one(data: st.DataObject) -> None:
        events = list(sound)
        if data.draw(st.booleans()):
            index = data.draw(st.integers(0, len(events) - 1))
            events[index] = data.draw(mistaken(STREAMS[name][index])).replace(b"\n", b"")
            stream = as_stream(events) + end
        else:
            stream = data.draw(spoilt(as_stream(events) + end))
        size = data.draw(st.sampled_from([1, 7, 100_000]))
        chunks = [stream[start : start + size] for start in range(0, len(stream), size)]
        outcome(f"stream of {name}", lambda: READERS[name](chunks), codes=(3,))

    one()


COUNTED = b"""# HELP vllm:spec_decode_num_drafts_total Rounds
vllm:spec_decode_num_drafts_total{engine="0"} 3.0
vllm:spec_decode_num_draft_tokens_total{engine="0"} 12.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 5.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 3.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 2.0
vllm:generation_tokens_total 40
"""


def test_counters_are_read_as_far_as_they_go() -> None:
    sound = read_counters(COUNTED.decode(), "vllm")
    assert sound == Ledger(12, 5, 3, accepted_by_position=(3, 2))

    @fuzzed
    @given(spoilt(COUNTED))
    def one(content: bytes) -> None:
        text = content.decode("utf-8", "replace")
        counters = read_counters(text, "vllm")
        for counted in (counters.rounds, counters.drafted, counters.accepted, *(counters.accepted_by_position or ())):
            assert counted is None or 0 <= counted <= 6 * 2**53
        counted_since(sound, counters)
        counted_since(counters, sound)
        read_total(text, "vllm:generation_tokens_total")
        SEEN["counters: read"] += 1

    one()


LOG = b"""0.00.100.000 I load_tensors: AMX model buffer size = 1.00 MiB
main: server is listening on http://127.0.0.1:8080 - starting
E gguf_init_from_file: failed to read magic
error while handling argument "--ctx-size": invalid
slot print: statistics draft-simple: #calls(b,g,a) = 1 3 3, #gen drafts = 3, #acc drafts = 2, #gen tokens = 12
(EngineCore pid=3) ERROR 11-22 05:00:00 [core.py:1] ValueError: Available memory on node 0 is less than desired
pydantic_core.ValidationError: 1 validation error for SpeculativeConfig
vllm serve: error: argument --speculative-config/-sc: Value {method:ngram} cannot be converted
INFO 11-22 [core.py:2] Chunked prefill is enabled with max_num_batched_tokens=2048.
RuntimeError: cancelled
[2026-11-21 10:00:00] Received sigquit from a child process. It usually means the child failed.
benchctl-serve: error: no such model | name another
ModuleNotFoundError: No module named 'sgl_kernel.speculative'
signal SIGSEGV
"""


def test_a_log_is_read_as_far_as_it_goes() -> None:
    @fuzzed
    @given(spoilt(LOG), st.permutations(range(LOG.count(b"\n"))))
    def one(content: bytes, order: list[int]) -> None:
        lines = content.decode("utf-8", "replace").split("\n")
        shuffled = [lines[number] for number in order if number < len(lines)]
        for log in (lines, shuffled, shuffled[:3]):
            for causes in (llama_causes, vllm_server, sglang_server, transformers_server):
                cause = causes.launch_cause(log)
                assert cause is None or all(isinstance(part, str) for part in cause)
            first_cause(log, llama_causes.NOT_SPECULATING)
            contradiction(read_counts(log), Ledger(), None)
            tokens_a_step("\n".join(log))
            attest(LlamaObserved(RequestedSpeculation(("draft-simple",), False), None, 1, "/m", "/m", 0, 9, log))
        SEEN["log: read"] += 1

    one()


PAGES: dict[str, Any] = {
    "/v1/models": {"data": [{"id": "m", "max_model_len": 4096, "root": "/m"}]},
    "/props": {
        "total_slots": 1,
        "model_path": "/m",
        "build_info": "b1-abc",
        "default_generation_settings": {"n_ctx": 4096},
    },
    "/slots": [{"id": 0, "speculative": True, "n_ctx": 4096}],
    "/version": {"version": "0.32.0"},
    "/server_info": {
        "version": "0.5.23",
        "model_path": "/m",
        "speculative_algorithm": "EAGLE",
        "speculative_num_draft_tokens": 4,
        "disable_radix_cache": True,
        "internal_states": [{"avg_spec_accept_length": 1.5}],
    },
    "/info": {"model": "/m", "dtype": "float32", "self_test": {}, "speculation": {"type": "self-ssm", "depth": 4}},
}


class Told:
    """A client of a server that tells what a test wants."""

    def __init__(self, pages: Mapping[str, bytes]) -> None:
        self._pages = pages

    def get(self, path: str, timeout_s: float = 0.0) -> Reply:
        del timeout_s
        result = next((body for name, body in self._pages.items() if path.endswith(name)), None)
        return Reply(404 if result is None else 200, {}, result or b"")

    def get_json(self, path: str) -> object:
        reply = self.get(path)
        try:
            return reply.json() if reply.status_code == 200 else None
        except (ValueError, RecursionError):
            return None

    def redact(self, text: str) -> str:
        return text


@pytest.mark.parametrize("absent", ["", "/props", "/server_info"])
def test_an_endpoint_that_reports_nonsense_is_inspected(absent: str) -> None:
    address = parse_address("http://127.0.0.1:8000/v1", "engine.url")

    @fuzzed
    @given(st.data())
    def one(data: st.DataObject) -> None:
        pages = {path: json.dumps(page).encode() for path, page in PAGES.items() if path != absent} | {
            "/metrics": COUNTED
        }
        path = data.draw(st.sampled_from(sorted(pages)))
        unbroken = data.draw(st.booleans()) and path in PAGES and isinstance(PAGES[path], dict)
        pages[path] = data.draw(mistaken(PAGES[path]) if unbroken else spoilt(pages[path]))
        outcome("endpoint", lambda: discover(cast("HttpClient", Told(pages)), address), codes=(3,))

    one()


def test_facts_of_a_server_are_assessed_whatever_they_are() -> None:
    @fuzzed
    @given(st.data())
    def one(data: st.DataObject) -> None:
        for path in ("/server_info", "/info", "/props"):
            way = data.draw(st.sampled_from(places(PAGES[path])[1:]))
            info = changed(PAGES[path], way, data.draw(VALUES), drop=data.draw(st.booleans()))
            if path == "/server_info":
                requested = {"speculative_algorithm": "EAGLE", "model_path": "/m", "speculative_num_draft_tokens": "4"}
                tally = Tally(1, 9, 8, 9, 1, 4, 1)
                sglang_server.attest(requested, info, tally, drafted=4, caching=False, cached=0)
            elif path == "/info":
                asking = {"type": "self-ssm", "max": 4, "options": {}}
                transformers_server.attest(info, Tally(), None, model="/m", dtype="float32", speculation=asking)
            else:
                slots = tuple(data.draw(st.lists(st.one_of(st.none(), st.booleans()), max_size=2)))
                requested_of = RequestedSpeculation(("draft-simple",), False)
                attest(
                    LlamaObserved(requested_of, slots, info.get("total_slots"), info.get("model_path"), "/m", 0, 9, [])
                )
        SEEN["facts: judged"] += 1

    one()


SCORED: dict[str, dict[str, Any]] = {
    "llama.cpp": {"completion_probabilities": [{"top_logprobs": [{"id": 3, "logprob": -0.5}]}]},
    "vllm": {"choices": [{"token_ids": [3], "logprobs": {"top_logprobs": [{"token_id:3": -0.5, "token_id:4": -1.5}]}}]},
    "openai": {
        "choices": [
            {
                "logprobs": {
                    "tokens": ["token_id:3"],
                    "token_logprobs": [-0.5],
                    "top_logprobs": [{"token_id:4": -1.5}],
                }
            }
        ]
    },
}


def vllm_scores(answer: Any) -> Scores:
    """What a scorer makes of an answer that is this one whatever was asked."""
    http = SimpleNamespace(post=lambda *_, **__: answer)
    server: Any = SimpleNamespace(http=http, model="m", context=9, timeout_s=1.0)
    return VllmScorer(server, (), 20).read_whole((1,), 1)


SCORES: dict[str, Callable[[Any], list[Mapping[int, float]]]] = {
    "llama.cpp": lambda answer: [likeliest(answer)],
    "vllm": lambda answer: [vllm_scores(answer).logprobs],
    "openai": lambda answer: [scores.logprobs for _, scores in echo_places(answer, 1) if scores is not None],
}


@pytest.mark.parametrize("name", SCORED)
def test_scores_are_log_probabilities_of_tokens_or_none(name: str) -> None:
    assert SCORES[name](decode(json.dumps(SCORED[name]).encode()))[0]

    @fuzzed
    @given(st.data())
    def one(data: st.DataObject) -> None:
        try:
            answer = decode(data.draw(mistaken(SCORED[name])))
        except ValueError:
            return
        tables: list[Mapping[int, float]] = []
        with suppress(EngineError):
            tables = SCORES[name](answer) if isinstance(answer, dict) else []
        for logprobs in tables:
            for token, value in logprobs.items():
                assert type(token) is int
                assert 0 <= token < 2**31
                assert -1e39 < value <= 0.01
        SEEN["scores: read"] += 1

    one()


def test_a_json_text_is_a_value_that_can_be_stored() -> None:
    @fuzzed
    @given(st.data())
    def one(data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(PAGES)))
        sound = json.dumps(PAGES[page]).encode()
        content = data.draw(mistaken(PAGES[page]) if isinstance(PAGES[page], dict) else spoilt(sound))
        try:
            value = decode(content)
        except ValueError:
            return
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        SEEN["json: read"] += 1

    one()


def test_a_help_text_is_read_as_far_as_it_goes() -> None:
    sound = (Path(__file__).parent / "data" / "help_current.txt").read_bytes()

    @fuzzed
    @given(spoilt(sound))
    def one(content: bytes) -> None:
        flags = parse_help(content.decode("utf-8", "replace"))
        flags.speculation_names()
        for flag in flags.all:
            assert flag.default is None or isinstance(flag.default, int)
        SEEN["help: read"] += 1

    one()
