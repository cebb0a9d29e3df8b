"""The body of a request to vLLM, with everything that the model's own generation settings would fill in written out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchctl.engines.vllm.command import MODEL_NAME
from benchctl.recipes.schema import Sampling


def completion_body(token_ids: Sequence[int], sampling: Sampling) -> dict[str, Any]:
    """Return the JSON of one streamed `/v1/completions` request.

    The prompt goes as token ids: nothing is tokenized or templated while the clock runs. What is left out here vLLM
    takes from the model's `generation_config.json`, penalties included.
    """
    return {
        "model": MODEL_NAME,
        "prompt": list(token_ids),
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": sampling.seed,
        "ignore_eos": sampling.ignore_eos,
        "return_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def scoring_body(token_ids: Sequence[int], *, tokens: int, top: int) -> dict[str, Any]:
    """Return the JSON of a request for `tokens` greedy tokens, and at each the `top` likeliest with their logprobs.

    Logprobs are of the raw logits, before anything of the sampler; tokens are told by id, for several spell the same.
    """
    return {
        "model": MODEL_NAME,
        "prompt": list(token_ids),
        "max_tokens": tokens,
        "temperature": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "ignore_eos": True,
        "logprobs": top,
        "return_tokens_as_token_ids": True,
        "return_token_ids": True,
        "stream": False,
    }
