"""The body of a request, reproducible by construction, and the check that the engine used it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchctl.errors import EngineError
from benchctl.recipes.schema import Sampling


def completion_body(token_ids: Sequence[int], sampling: Sampling, *, stream: bool) -> dict[str, Any]:
    """Return the JSON of one `/completion` request: explicit sampler chain, fixed seed, no prompt cache."""
    greedy = sampling.temperature == 0
    return {
        "prompt": list(token_ids),
        "n_predict": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "samplers": ["top_k", "temperature"] if greedy else ["top_k", "top_p", "temperature"],
        "ignore_eos": sampling.ignore_eos,
        "cache_prompt": False,
        "return_tokens": True,
        "stream": stream,
    }


def scoring_body(prefix: Sequence[int], *, top: int, cached: bool, spoken: int) -> dict[str, Any]:
    """Return the JSON of a `/completion` request for the `top` likeliest tokens after `prefix`.

    llama-server tells logits only with a token that it generates, and only once that token's text is whole UTF-8, so
    `spoken`, a token of plain text, is forced; what it tells of the logits is from before that.
    """
    return {
        "prompt": list(prefix),
        "n_predict": 1,
        "temperature": 0,
        "top_k": 1,
        "samplers": ["top_k", "temperature"],
        "logit_bias": [[spoken, 1e6]],
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
    for name in ("samplers", "temperature", "top_k", "top_p", "seed"):
        asked, used = body[name], settings.get(name)
        equal = (
            abs(asked - used) < 1e-5 if isinstance(asked, float) and isinstance(used, int | float) else asked == used
        )
        if not equal:
            raise EngineError(
                f"The engine sampled with {name} = {used!r}; {asked!r} was asked for.",
                kind="attestation",
                fix="Nothing that it answers is comparable; use a llama-server that takes these settings.",
            )
