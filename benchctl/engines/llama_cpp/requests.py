"""The requests that llama-server is sent, and whether it reports the settings that they ask for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from benchctl.engines.common.endpoint import EndpointTarget
from benchctl.engines.common.http import HttpClient
from benchctl.engines.common.wire import prompt_ids, protocol_error
from benchctl.errors import EngineError
from benchctl.prompts.suite import Prompt
from benchctl.recipes.schema import PENALTIES, Sampling
from benchctl.text import one_line

LAST_TOKENS = 64
"""How many tokens, of prompt and answer together, penalties look back on."""
REQUEST_FIELDS = frozenset({"tools", "response_format", "chat_template_kwargs", "stop", "choice", "logprobs"})
"""What a prompt may have beside its text."""


def completion_body(
    token_ids: Sequence[int], sampling: Sampling, *, stream: bool, cached: bool = False
) -> dict[str, Any]:
    """Return the JSON of a `/completion` request: explicit sampler chain, fixed seed; `cached`: from the cache."""
    return {
        "prompt": list(token_ids),
        "n_predict": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "samplers": sampling.chain,
        "ignore_eos": sampling.ignore_eos,
        **constraints(sampling),
        "cache_prompt": cached,
        "return_tokens": True,
        "stream": stream,
    }


def constraints(sampling: Sampling) -> dict[str, Any]:
    """Return the recipe's penalties, biases and grammar by llama-server's names; what is not set is left out."""
    settings = sampling.constraints
    if sampling.penalised:
        settings |= {key: getattr(sampling, key) for key in PENALTIES} | {"repeat_last_n": LAST_TOKENS}
    if "logit_bias" in settings:
        settings["logit_bias"] = [[token, bias] for token, bias in sampling.logit_bias.items()]
    return settings


def prompt_text(http: HttpClient, prompt: Prompt) -> str:
    """Return a prompt as llama-server's chat template renders it; a raw prompt stays as it is. Raises EngineError."""
    if prompt.prompt is not None:
        return prompt.prompt
    chat = EndpointTarget.chat(prompt)
    if prompt.forces_call:
        del chat["tool_choice"]
    text = http.post("/apply-template", chat).get("prompt")
    if not isinstance(text, str):
        raise protocol_error("The engine did not return the prompt's text.")
    return text


def tokenize(http: HttpClient, text: str, *, special: bool) -> tuple[int, ...]:
    """Return the ids of `text`; `special`: with the tokens that begin a prompt, and special ones parsed."""
    body = {"content": text, "add_special": special, "parse_special": special}
    return prompt_ids(http.post("/tokenize", body))


def answer_settings(prompt: Prompt) -> dict[str, Any]:
    """Return what `/completion` is sent of a prompt beside its text, as llama-server's chat route reads it."""
    settings: dict[str, Any] = {}
    if prompt.response_format is not None:
        settings["json_schema"] = prompt.response_format.get("json_schema", {}).get("schema", {})
    elif prompt.call_schema is not None:
        settings["json_schema"] = prompt.call_schema
    if prompt.choice is not None:  # literals of GBNF are written as JSON's
        settings["grammar"] = f"root ::= {' | '.join(json.dumps(text, ensure_ascii=False) for text in prompt.choice)}"
    if prompt.stop is not None:
        settings["stop"] = list(prompt.stop)
    return settings | ({"n_probs": 1} if prompt.logprobs else {})


def scoring_body(prefix: list[int] | list[list[int]], *, top: int, cached: bool, forced: int) -> dict[str, Any]:
    """Return the JSON of a `/completion` request for the `top` likeliest tokens after a prefix or each of several.

    llama-server returns logits only with a token that it generates, and only once that token's text is whole UTF-8, so
    `forced`, a token of plain text, is forced; the logits that it returns are from before that.
    """
    return {
        "prompt": prefix,
        "n_predict": 1,
        "temperature": 0,
        "top_k": 1,
        "samplers": ["top_k", "temperature"],
        "logit_bias": [[forced, 1e6]],
        "n_probs": top,
        "cache_prompt": cached,
        "return_tokens": True,
        "stream": False,
    }


def check_echo(body: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Compare the settings that the engine reports with the request.

    llama-server takes an unknown sampler name for an empty chain and then samples at random even at temperature 0.
    Raises EngineError (`attestation`).
    """
    if not {"json_schema", "grammar"}.isdisjoint(body) and not settings.get("grammar"):
        raise EngineError(
            "The engine answered without the grammar, or that of the schema, that was requested.",
            kind="attestation",
            fix="Use a llama-server that takes grammars, or leave grammar and response_format out.",
        )
    optional = [key for key in (*PENALTIES, "stop", "n_probs") if key in body]
    for name in ("samplers", "temperature", "top_k", "top_p", "seed", *optional):
        requested, used = body[name], settings.get(name)
        if isinstance(used, bool) or not (used == requested or _is_rounded(used, requested)):
            raise EngineError(
                f"The engine sampled with {name} = {one_line(repr(used), 80)}; {requested!r} was requested.",
                kind="attestation",
                fix="Its answers are not comparable; use a llama-server that takes these settings.",
            )


def _is_rounded(used: object, requested: object) -> bool:
    """Whether a number is the requested number in a lower precision."""
    return isinstance(requested, float) and isinstance(used, float) and abs(requested - used) < 1e-5
