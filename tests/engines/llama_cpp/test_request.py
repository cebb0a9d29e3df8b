from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from benchctl.engines.llama_cpp.requests import answer_settings, check_echo, completion_body
from benchctl.errors import EngineError
from benchctl.prompts.suite import Message, Prompt
from benchctl.recipes.schema import Sampling


def test_greedy_is_set_in_every_way() -> None:
    assert completion_body((5, 6), Sampling(max_tokens=9), stream=True) == {
        "prompt": [5, 6],
        "n_predict": 9,
        "temperature": 0.0,
        "top_k": 1,
        "top_p": 1.0,
        "seed": 1,
        "samplers": ["top_k", "temperature"],
        "ignore_eos": False,
        "cache_prompt": False,
        "return_tokens": True,
        "stream": True,
    }


def test_random_sampling_has_its_chain() -> None:
    body = completion_body((1,), Sampling(temperature=0.7, top_k=0, top_p=0.9, ignore_eos=True), stream=False)
    assert body["samplers"] == ["top_k", "top_p", "temperature"]
    assert body["ignore_eos"] is True


@pytest.mark.parametrize(
    ("form", "schema"),
    [
        ({"type": "json_object"}, {}),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "null"}}}, {"type": "null"}),
    ],
)
def test_a_format_of_the_answer_is_a_schema_that_the_engine_must_have_used(form: Any, schema: Any) -> None:
    prompt = Prompt(messages=(Message(role="user", content="x"),), response_format=form)
    body = completion_body((1,), Sampling(), stream=True) | answer_settings(prompt)
    assert body["json_schema"] == schema
    check_echo(body, body | {"grammar": "root ::= …"})
    with pytest.raises(EngineError, match="without the grammar") as caught:
        check_echo(body, body | {"grammar": ""})
    assert caught.value.kind == "attestation"
    assert answer_settings(Prompt(prompt="x")) == {}


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ({"stop": ("a", "b")}, {"stop": ["a", "b"]}),
        ({"choice": ('a"', "é")}, {"grammar": 'root ::= "a\\"" | "é"'}),
        ({"logprobs": True}, {"n_probs": 1}),
        ({"grammar": "root ::= [a]", "regex": "a", "seed": 2}, {}),  # which the sampling of the request has
        ({"tools": (TOOL,), "tool_choice": "auto"}, {}),
    ],
)
def test_what_a_prompt_asks_of_its_answer_is_sent_beside_it(fields: Any, settings: Any) -> None:
    assert answer_settings(Prompt(messages=(Message(role="user", content="x"),), **fields)) == settings


def test_a_call_that_is_forced_is_sent_as_its_schema_with_the_parts_of_every_tool() -> None:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": {
            "properties": {"x": {"$ref": "#/$defs/X"}}, "$defs": {"X": {"const": value}}}}}
        for name, value in (("f", 1), ("g", "one"))
    ]  # fmt: skip
    prompt = Prompt(messages=(Message(role="user", content="x"),), tools=tuple(tools), tool_choice="required")
    schema = answer_settings(prompt)["json_schema"]
    assert prompt.rules is not None
    for name, value, status in (("f", 1, "valid"), ("g", "one", "valid"), ("f", "one", "invalid"), ("g", 1, "invalid")):
        call = {"name": name, "arguments": {"x": value}}
        assert Draft202012Validator(schema).is_valid(call) == (status == "valid")
        assert prompt.rules.kept(json.dumps(call), cut=False).status == status
    assert prompt.constraint(frozenset()) == "tools"


@pytest.mark.parametrize(
    ("name", "used"),
    [
        *[("samplers", []), ("samplers", None), ("temperature", 0.8), ("seed", 4294967295), ("top_k", 40)],
        *[("top_p", "1"), ("stop", []), ("n_probs", None)],
    ],
)
def test_settings_that_the_engine_did_not_use(name: str, used: object) -> None:
    body = completion_body((1,), Sampling(temperature=0.7), stream=True) | {"stop": ["x"], "n_probs": 1}
    check_echo(body, body | {"temperature": 0.699999988079071})
    with pytest.raises(EngineError, match=name) as caught:
        check_echo(body, body | {name: used})
    assert caught.value.kind == "attestation"
