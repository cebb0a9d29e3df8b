"""What the adapter makes of the answers of every kind of server."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from benchctl.engines.base import Ledger
from benchctl.engines.common.completion_stream import CompletionReader
from benchctl.engines.openai.adapter import OpenAiSpec
from benchctl.engines.openai.engine import OpenAiEngine
from benchctl.errors import EngineError
from benchctl.measurement.recording import measured_fields
from benchctl.prompts.suite import Message, Prompt
from benchctl.recipes.schema import Sampling
from tests.engines.cells import at_once, complete, read
from tests.engines.cells import read as read_stream
from tests.engines.openai.conftest import SPECULATION, Ask
from tests.engines.openai.fake_endpoint import Script

Endpoint = Callable[..., Script]
RAW = Prompt(prompt="count")
CHAT = Prompt(messages=(Message(role="user", content="count"),))
GREEDY = Sampling(max_tokens=4)
SLOTS = {"/props": {"build_info": "b1", "total_slots": 1}, "/slots": [{"speculative": True}]}
VLLM_METRICS = """vllm:generation_tokens_total{engine="0",model_name="m"} %d.0
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} %d.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e9
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} %d.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} %d.0
"""


BEFORE, AFTER = (100, 5, 20, 9), (104, 6, 24, 11)


class Computed(dict[str, str]):
    """Pages of an endpoint whose text is made at every reading."""

    def __init__(self, read: Callable[[], str]) -> None:
        super().__init__({"/metrics": ""})
        self._read = read

    def __getitem__(self, path: str) -> str:
        return self._read()


@pytest.mark.parametrize("prompt", [RAW, CHAT])
def test_tokens_are_counted_by_usage_and_never_by_events(endpoint: Endpoint, ask: Ask, prompt: Prompt) -> None:
    script = endpoint(words=["one two", " three four"])
    server = ask(script)
    counts: list[int] = []
    answer = complete(server, server.render(prompt), GREEDY, counts.append)
    assert (answer.text, answer.n_predicted, answer.prompt_tokens) == ("one two three four", 2, 3)
    assert (answer.token_ids, answer.token_gap) == (None, "the endpoint returned 0 of 2 token ids")
    assert answer.ledger == Ledger()
    assert (answer.engine_decode_s, answer.engine_prompt_s) == (None, None)
    assert 0 < answer.ttft_s <= answer.ttft_s + answer.decode_s <= answer.e2e_s
    assert counts == sorted(counts)


def test_a_byte_order_mark_costs_no_token(endpoint: Endpoint, ask: Ask) -> None:
    server = ask(endpoint(fault="byte-order-mark"))
    answer = complete(server, server.render(RAW), GREEDY)
    assert (answer.text, answer.text_events) == ("one two three four", 4)  # however many came in a read


def test_an_unknown_server_gets_standard_fields_only(endpoint: Endpoint, ask: Ask) -> None:
    script = endpoint()
    server = ask(script)
    complete(server, server.render(RAW), GREEDY)
    (body,) = script.requests
    assert body == {
        "model": "m",
        "prompt": "count",
        "max_tokens": 4,
        "temperature": 0.0,
        "top_p": 1.0,
        "seed": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_without_usage_the_token_count_is_unknown(endpoint: Endpoint, ask: Ask) -> None:
    server = ask(endpoint(usage=False))
    with pytest.raises(EngineError, match="how many tokens") as caught:
        complete(server, server.render(RAW), GREEDY)
    assert caught.value.kind == "protocol"
    assert "include_usage" in str(caught.value.fix)


def test_ids_of_vllm_and_its_own_metrics(endpoint: Endpoint, ask: Ask) -> None:
    figures = {
        "num_spec_steps": 2,
        "num_draft_tokens": 8,
        "num_accepted_draft_tokens": 3,
        "acceptance_histogram": [1, 0, 0, 1],
    }
    script = endpoint(ids=True, pages={"/metrics": VLLM_METRICS % (100, 5, 20, 9), "/version": {"version": "0.32.0"}})
    script.extra = {
        "metrics": {"time_to_first_token_ms": 50.0, "generation_time_ms": 30.0, "speculative_decoding": figures}
    }
    server = ask(script, speculation=SPECULATION)
    answer = complete(server, server.render(RAW), GREEDY)
    assert (answer.token_ids, answer.token_gap) == ((1, 2, 3, 4), None)
    assert answer.ledger == Ledger(drafted=8, accepted=3, rounds=2, accepted_by_position=(1, 1, 1))
    assert (answer.engine_prompt_s, answer.engine_decode_s) == (0.05, 0.03)
    assert script.requests[0]["return_token_ids"] is True
    assert server.attest(8).state == "active"


SHAPES = [
    (
        {"timings": {"draft_n": 2, "draft_n_accepted": 1}},
        Ledger(drafted=2, accepted=1),
        "`timings` (llama.cpp's shape)",
    ),
    (
        {
            "metrics": {
                "speculative_decoding": {"num_spec_steps": 1, "num_draft_tokens": 4, "num_accepted_draft_tokens": 2}
            }
        },
        Ledger(drafted=4, accepted=2, rounds=1),
        "`metrics.speculative_decoding` (vLLM's shape)",
    ),
]


@pytest.mark.parametrize(("extra", "ledger", "shape"), SHAPES)
def test_drafts_of_an_unknown_server_are_read_by_shape(
    endpoint: Endpoint, ask: Ask, extra: dict[str, object], ledger: Ledger, shape: str
) -> None:
    script = endpoint()
    script.extra = extra
    server = ask(script, speculation=SPECULATION)
    assert complete(server, server.render(RAW), GREEDY).ledger == ledger
    result = server.attest(None)
    assert result.state == "active"
    assert f"drafts read from {shape}" in result.evidence


def test_lm_studio_is_read_by_its_own_route(endpoint: Endpoint, ask: Ask) -> None:
    """Its counts need not add up: what was ignored may be absent."""
    script = endpoint(api="/api/v0", routes=("chat/completions",))
    script.url += "/api/v0"
    script.extra = {
        "stats": {
            "draft_model": "d",
            "total_draft_tokens_count": 4,
            "accepted_draft_tokens_count": 2,
            "rejected_draft_tokens_count": 1,
        }
    }
    server = ask(script, speculation=SPECULATION)
    assert complete(server, server.render(CHAT), GREEDY).ledger == Ledger(drafted=4, accepted=2)
    result = server.attest(None)
    assert result.state == "active"
    assert not any("contradiction" in line for line in result.evidence)


def test_what_tensorrt_llm_counts_stands_in_the_choice(endpoint: Endpoint, ask: Ask) -> None:
    counts = {"total_draft_tokens": 4, "total_accepted_draft_tokens": 2, "num_spec_steps": 1}
    figures = counts | {"acceptance_rate": 0.5, "acceptance_histogram": [0, 0, 1, 0, 0], "num_spec_tokens": 4}
    script = endpoint(choice_fields={"speculative_decoding": figures, "avg_decoded_tokens_per_iter": 3.0})
    server = ask(script, speculation=SPECULATION)
    ledger = Ledger(drafted=4, accepted=2, rounds=1, accepted_by_position=(1, 1, 0, 0))
    assert complete(server, server.render(RAW), GREEDY).ledger == ledger
    assert server.attest(None).state == "active"


def test_a_mean_alone_shows_that_it_drafted_and_gives_no_counts(endpoint: Endpoint, ask: Ask) -> None:
    """TensorRT-LLM's stands in the choice."""
    script = endpoint(choice_fields={"avg_decoded_tokens_per_iter": 2.5})
    server = ask(script, speculation=SPECULATION)
    assert complete(server, server.render(RAW), GREEDY).ledger == Ledger()
    result = server.attest(None)
    assert result.state == "active"
    assert any("in 1 answers; no counts" in line for line in result.evidence)
    answer = ask(script)
    complete(answer, answer.render(RAW), GREEDY)
    assert answer.attest(None).state == "failed"


def test_counters_of_a_server_of_another_name_count_where_they_moved_by_this_answer(
    endpoint: Endpoint, ask: Ask
) -> None:
    text, moved = ((VLLM_METRICS % counts).replace("vllm:", "other:") for counts in (BEFORE, AFTER))
    script = endpoint(pages={"/metrics": text})
    server = ask(script, speculation=SPECULATION)
    script.pages = Computed(lambda: moved if script.requests else text)
    assert complete(server, server.render(RAW), GREEDY).ledger == Ledger(drafted=4, accepted=2, rounds=1)
    assert server.attest(None).state == "active"


def test_what_a_server_counts_wrongly_is_named(endpoint: Endpoint, ask: Ask) -> None:
    script = endpoint()
    script.extra = {"timings": {"draft_n": 2, "draft_n_accepted": 3}}
    server = ask(script, speculation=SPECULATION)
    complete(server, server.render(RAW), GREEDY)
    evidence = server.attest(None).evidence
    assert any("3 of 2 draft tokens accepted" in line for line in evidence), evidence


def test_shared_counters_speak_only_where_they_moved_by_this_answer(endpoint: Endpoint, ask: Ask) -> None:
    script = endpoint(pages={"/metrics": VLLM_METRICS % BEFORE})
    server = ask(script, speculation=SPECULATION)
    tokens = itertools.chain((100, 104), itertools.count(200, 40))
    script.pages = Computed(lambda: VLLM_METRICS % ((now := next(tokens)), now // 4, now, now // 2))
    assert complete(server, server.render(RAW), GREEDY).ledger == Ledger(drafted=4, accepted=2, rounds=1)
    assert complete(server, server.render(RAW), GREEDY).ledger == Ledger()
    assert any("1 of 2 answers" in line for line in server.attest(4).evidence)


def test_counters_that_lag_are_waited_for(endpoint: Endpoint, ask: Ask) -> None:
    script = endpoint(pages={"/metrics": VLLM_METRICS % BEFORE})
    server = ask(script, speculation=SPECULATION)
    readings = itertools.chain([BEFORE] * 2, itertools.repeat(AFTER))  # the answer shows at the third reading after it
    script.pages = Computed(lambda: VLLM_METRICS % (next(readings) if script.requests else BEFORE))
    assert complete(server, server.render(RAW), GREEDY).ledger == Ledger(drafted=4, accepted=2, rounds=1)
    assert not [line for line in server.attest(4).evidence if "shared the endpoint" in line]


def test_tokens_that_came_together_at_first_took_no_time(endpoint: Endpoint, ask: Ask) -> None:
    first, later = (json.dumps({"choices": [{"text": "w", "token_ids": ids}]}) for ids in ([1, 2, 3], [4]))
    end = json.dumps({"choices": [{"text": "", "finish_reason": "length"}], "usage": {"completion_tokens": 4}})
    chunks = [f"data: {event}\n\n".encode() for event in (first, later, end)]
    times = iter([1.0, 3.0, 3.0])
    answer = read(CompletionReader(), chunks, times=times)
    assert answer is not None
    assert (answer.ttft_s, answer.decode_s, answer.first_tokens) == (1.0, 2.0, 3)
    server = ask(endpoint())
    done = replace(complete(server, server.render(RAW), GREEDY), first_tokens=3, decode_s=2.0)
    assert measured_fields(done)["client_tok_per_sec"] == 0.5
    assert measured_fields(replace(done, first_tokens=4))["client_tok_per_sec"] is None


WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
REQUEST = {
    "tools": [WEATHER],
    "tool_choice": "required",
    "response_format": {"type": "json_object"},
    "chat_template_kwargs": {"enable_thinking": False},
}


def test_what_a_prompt_has_beside_its_messages_is_sent(endpoint: Endpoint, ask: Ask) -> None:
    script = endpoint(pages=SLOTS)
    server = ask(script)
    prompt = Prompt.model_validate(CHAT.model_dump() | REQUEST, strict=False)
    rendered = server.render(prompt)
    complete(server, rendered, GREEDY)
    assert {key: script.requests[0].get(key) for key in REQUEST} == REQUEST
    assert rendered.sha256 != server.render(CHAT).sha256
    stopping = server.render(CHAT.model_copy(update={"stop": ("x",), "logprobs": True}))
    complete(server, stopping, GREEDY)
    assert {key: script.requests[-1].get(key) for key in ("stop", "logprobs")} == {"stop": ["x"], "logprobs": True}
    with pytest.raises(EngineError, match="repeat_penalty is not part of the OpenAI API"):
        ask(endpoint()).render(CHAT.model_copy(update={"repeat_penalty": 1.2}))
    assert json.loads(server.render(CHAT).text) == [{"role": "user", "content": "count"}]


def test_images_are_sent_where_they_stand_in_the_turn(endpoint: Endpoint, ask: Ask) -> None:
    script = endpoint()
    server = ask(script)
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORzE="}}
    content = [{"type": "text", "text": "a"}, image, {"type": "text", "text": "b"}]
    prompt = Prompt.model_validate({"messages": [{"role": "user", "content": content}]}, strict=False)
    assert complete(server, server.render(prompt), GREEDY).text == "one two three four"
    assert script.requests[0]["messages"] == [{"role": "user", "content": content}]
    assert prompt.constraint(frozenset()) == "image_url", "no scorer reads it"


def test_a_server_that_is_not_recognised_is_not_sent_variables_of_its_template(endpoint: Endpoint, ask: Ask) -> None:
    server = ask(endpoint())
    with pytest.raises(EngineError, match="chat_template_kwargs"):
        server.render(CHAT.model_copy(update={"chat_template_kwargs": {"a": 1}}))


def test_what_an_endpoint_takes_depends_on_its_server(endpoint: Endpoint) -> None:
    def fields(script: Script) -> frozenset[str]:
        return OpenAiEngine(OpenAiSpec.model_validate({"kind": "openai", "url": script.url})).probe().request_fields

    standard = REQUEST.keys() | {"stop", "logprobs", "image_url"}
    assert fields(endpoint()) == standard - {"chat_template_kwargs"}
    assert fields(endpoint(pages=SLOTS)) == standard


def test_calls_of_tools_are_part_of_the_answer() -> None:
    calls = [
        {"delta": {"content": "Let me see."}},
        {"delta": {"tool_calls": [{"index": 0, "id": "x1", "function": {"name": "weather", "arguments": ""}}]}},
        {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": "Oslo"}'}}]}},
        {"delta": {}, "finish_reason": "tool_calls"},
    ]
    chunks = [b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n" for choice in calls]
    answer = read(CompletionReader(), chunks, times=iter([1.0, 2.0, 3.0, 4.0]))
    assert answer is not None
    assert (answer.text, answer.finish_reason) == ('Let me see.weather{"city": "Oslo"}', "stop")


FOUR_AT_FIRST = ["one two three four", *[" more"] * 12]
"""Of a server that sends four tokens in its first event, then a token every 5 ms: 200 a second."""


def test_what_the_first_event_holds_is_not_timed_where_it_is_not_known(endpoint: Endpoint, ask: Ask) -> None:
    server = ask(endpoint(words=FOUR_AT_FIRST, first=4, pace_s=0.005))
    answer = complete(server, server.render(RAW), Sampling(max_tokens=16))
    fields = measured_fields(answer)
    assert (answer.n_predicted, answer.first_tokens, fields["client_tok_per_sec"]) == (16, None, None)
    assert fields["client_tok_per_sec_least"] == 12 / answer.decode_s, "each later event has a token at least"


def test_what_the_first_event_holds_is_counted_by_the_servers_tokenizer(endpoint: Endpoint, ask: Ask) -> None:
    server = ask(endpoint(words=FOUR_AT_FIRST, first=4, pace_s=0.005, tokenizes=True))
    answer = complete(server, server.render(RAW), Sampling(max_tokens=16))
    fields = measured_fields(answer)
    assert answer.first_tokens == 4
    assert fields["client_tok_per_sec"] == 12 / answer.decode_s
    assert fields["client_tok_per_sec_least"] is None


@pytest.mark.parametrize("finish", ["length", "stop"])
def test_pieces_that_can_only_be_single_tokens_are_timed(endpoint: Endpoint, ask: Ask, finish: str) -> None:
    # The token that ends an answer is counted, and has no text.
    script = endpoint(
        words=["one", " two", " three"], first=2 if finish == "stop" else 1, finish=finish, pace_s=0.05
    )  # slow enough that a busy machine does not read two at once
    server = ask(script)
    answer = complete(server, server.render(RAW), GREEDY)
    assert answer.first_tokens == 1
    assert measured_fields(answer)["client_tok_per_sec"] == (answer.n_predicted - 1) / answer.decode_s


def test_pieces_that_are_less_than_tokens_say_nothing_of_the_rate(endpoint: Endpoint, ask: Ask) -> None:
    server = ask(endpoint(words=["o", "n", "e", " two"], first=-1, pace_s=0.002))
    fields = measured_fields(complete(server, server.render(RAW), GREEDY))
    assert (fields["n_predicted"], fields["client_tok_per_sec"], fields["client_tok_per_sec_least"]) == (2, None, None)


def test_counters_are_not_used_for_one_of_several_answers(endpoint: Endpoint, ask: Ask) -> None:
    script = endpoint(pages={"/metrics": VLLM_METRICS % (100, 5, 20, 9)})
    server = ask(script, speculation=SPECULATION, concurrency=4)
    prompt = server.render(RAW)
    answers = at_once(server, [prompt] * 8, GREEDY, 4)
    assert {answer.text for answer in answers} == {"one two three four"}
    assert {answer.ledger for answer in answers} == {Ledger()}
    assert server.attest(None).state == "unverified"


@pytest.mark.parametrize(
    ("algorithm", "drafted"), [("EAGLE3", 6), ("NGRAM", None)], ids=["a count", "a nominal number"]
)
def test_sglang_reports_in_its_extension(endpoint: Endpoint, ask: Ask, algorithm: str, drafted: int | None) -> None:
    script = endpoint(ids=True, pages={"/server_info": {"speculative_algorithm": algorithm, "version": "0.5.23"}})
    figures = {"spec_verify_ct": 2, "spec_num_correct_drafts": 3, "spec_num_proposed_drafts": 6}
    script.extra = {"sglext": {"spec_tokens_details": figures | {"spec_correct_drafts_histogram": [0, 1, 1, 0]}}}
    server = ask(script, speculation=SPECULATION)
    answer = complete(server, server.render(RAW), GREEDY)
    assert answer.ledger == Ledger(drafted=drafted, accepted=3, rounds=2, accepted_by_position=(2, 1, 0))
    result = server.attest(drafted)
    assert result.state == "active"
    assert any("drafted tokens" in line for line in result.evidence) == (drafted is None)


def test_sglangs_chat_route_returns_ids_afterwards(endpoint: Endpoint, ask: Ask) -> None:
    # As the real SGLang 0.5.23 answers.
    pages = {"/server_info": {"speculative_algorithm": None, "version": "0.5.23"}}
    server = ask(endpoint(fault="chats-as-sglang", pages=pages))
    prompt = server.render(CHAT)
    answer = complete(server, prompt, GREEDY)
    assert (answer.token_ids, answer.token_gap) == (None, "the endpoint returned 0 of 4 token ids")
    assert server.recover_token_ids(prompt, GREEDY, answer) == (1, 2, 3, 4)


def test_a_server_that_is_not_recognised_may_return_ids_afterwards(endpoint: Endpoint, ask: Ask) -> None:
    script = endpoint(fault="returns-ids")
    server = ask(script)
    prompt = server.render(RAW)
    answer = complete(server, prompt, GREEDY)
    assert answer.token_ids is None
    assert server.recover_token_ids(prompt, GREEDY, answer) == (1, 2, 3, 4)
    assert "return_token_ids" not in script.requests[0], "nothing that it may not know while it is measured"
    assert server.recover_token_ids(prompt, GREEDY, replace(answer, text="another")) is None


def test_a_server_without_ids_is_tried_once(endpoint: Endpoint, ask: Ask) -> None:
    script = endpoint()
    server = ask(script)
    prompt = server.render(RAW)
    answer = complete(server, prompt, GREEDY)
    assert [server.recover_token_ids(prompt, GREEDY, answer) for _ in range(3)] == [None] * 3
    assert len(script.requests) == 2


def test_llama_servers_timings_speak_without_counters(endpoint: Endpoint, ask: Ask) -> None:
    script = endpoint(pages=SLOTS)
    script.extra = {"timings": {"prompt_ms": 2.0, "predicted_ms": 6.0, "draft_n": 3, "draft_n_accepted": 2}}
    server = ask(script, speculation=SPECULATION)
    assert server.attest(None).state == "idle"
    answer = complete(server, server.render(RAW), GREEDY)
    assert answer.ledger == Ledger(drafted=3, accepted=2, verified=3)
    assert (answer.engine_prompt_s, answer.engine_decode_s) == (0.002, 0.006)
    assert script.requests[0]["cache_prompt"] is False


def test_what_the_shape_shows_is_added_to_what_a_recognised_server_tells(endpoint: Endpoint, ask: Ask) -> None:
    """ik_llama.cpp is recognised as a llama.cpp, whose adapter reads no rows by depth."""
    script = endpoint(pages=SLOTS)
    depths = [{"depth": 1, "draft_n": 2, "draft_n_accepted": 2}, {"depth": 2, "draft_n": 1, "draft_n_accepted": 0}]
    script.extra = {"timings": {"draft_n": 3, "draft_n_accepted": 2, "draft_by_depth": depths}}
    server = ask(script, speculation=SPECULATION)
    ledger = complete(server, server.render(RAW), GREEDY).ledger
    assert ledger == Ledger(3, 2, 2, drafted_by_position=(2, 1), accepted_by_position=(2, 0), verified=3)
    script.extra = {"timings": {"predicted_n": 4}}
    assert complete(server, server.render(RAW), GREEDY).ledger == Ledger(drafted=0, accepted=0), "it drafted before"


def test_a_prompt_from_a_cache_is_reported(endpoint: Endpoint, ask: Ask) -> None:
    script = endpoint(pages=SLOTS, cached=2)
    script.extra = {"timings": {"prompt_ms": 2.0, "predicted_ms": 6.0}}
    server = ask(script)
    assert complete(server, server.render(RAW), GREEDY).engine_prompt_s is None
    assert any("partly taken from a cache" in line for line in server.attest(None).evidence)


def test_thoughts_are_part_of_the_answer(endpoint: Endpoint, ask: Ask) -> None:
    events = [
        b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":null}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]}\n\n',
        b'data: {"choices":[{"index":1,"delta":{"content":"other"}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":"yes"},"finish_reason":"stop"}]}\n\n',
        b'data: {"choices":[],"usage":{"completion_tokens":3}}\n\n',
    ]
    times = iter([1.0, 2.0, 3.0, 4.0, 5.0])
    answer = read(CompletionReader(), events, times=times, started=0.5)
    assert answer is not None
    assert (answer.text, answer.ttft_s, answer.decode_s) == ("hmyes", 1.5, 2.0)
    assert answer.completion_tokens == 3
    assert (answer.reasoned, answer.thought) == (2, None), "without ids its tokens are not known"


def test_the_end_of_thinking_is_known_to_the_event_and_log_probabilities_are_kept() -> None:
    pieces = [("<think>", [1], [-0.5]), ("a</think>b", [2, 3, 4], [0.0, None, -1]), ("c", [5], [-2.0])]
    events = [
        {"index": 0, "text": text, "token_ids": ids, "logprobs": {"token_logprobs": values}}
        for text, ids, values in pieces
    ]
    events.append({"index": 0, "text": "", "finish_reason": "stop"})
    chunks = [b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n" for choice in events]
    answer = read(CompletionReader(), chunks, times=iter([1.0, 2.0, 3.0, 4.0]), started=0.5)
    assert answer is not None
    assert (answer.thought, answer.logprobs) == ((4, 1.0), (-0.5, 0.0, None, -1.0, -2.0))


def test_the_token_that_ends_an_answer_takes_time_too() -> None:
    def read(finish: bytes) -> float:
        last = b'data: {"choices":[{"index":0,"text":"","finish_reason":"%s"}]}\n\n' % finish
        times = iter([1.0, 3.0])
        answer = read_stream(CompletionReader(), [b'data: {"choices":[{"index":0,"text":"a"}]}\n\n', last], times=times)
        assert answer is not None
        return answer.decode_s

    assert read(b"stop") == 2.0
    assert read(b"length") == 0.0
