"""llama-server on a bundled file says what transformers says in float32 on the folder derived from it.

The server's answer is read by transformers in one pass: at each position the server's token must be the likeliest, or
so close to it that rounding decides. Prefixes are the server's own, so that each position is judged by itself and a
tie hides nothing after it; with no tie, both greedy answers are the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchctl.models.shipped import BundledModel
from tests.conversion.conftest import InTransformers, StartServer, Stored
from tests.conversion.prompts import chat_prompts, raw_prompts

pytestmark = [pytest.mark.engine, pytest.mark.torch]

LENGTH = 48
FEWEST_TOKENS = 200
"""All answers together; a model that ends at once would be compared on nothing."""

EXACT = ("-ctk", "f32", "-ctv", "f32", "-fa", "off")
"""Nothing of the server's is rounded to less than float32; by default its KV cache is f16."""

TIE = {"f32": 1e-3, "bf16": 0.1}
"""Nats. ggml multiplies bf16 matrices by activations rounded to bf16 as well; in f32 only the order of sums differs."""

CLOSE = 2e-4
"""Nats, for log-probabilities in f32; measured: 3e-5."""


def prompts_of(reference: InTransformers) -> list[list[int]]:
    rendered = [
        reference.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        for messages in chat_prompts()
    ]
    return [reference.tokens(text) for text in [*raw_prompts(), *rendered]]


def shortfalls(reference: InTransformers, prompt: list[int], answer: list[int]) -> list[float]:
    """By how many nats each token of an answer falls behind the likeliest one; 0 where it is that one."""
    import torch

    with torch.no_grad():
        logits: Any = reference.model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
    found: list[float] = (logits.max(dim=1).values - chosen).tolist()
    return found


@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_greedy_tokens_are_those_of_transformers(
    kind: str, bundled: BundledModel, reference: InTransformers, start: StartServer, stored_as: Stored
) -> None:
    server = start(stored_as(bundled, kind), *(EXACT if kind == "f32" else ()))
    compared, behind = 0, []
    for prompt in prompts_of(reference):
        answer = server.complete(prompt, LENGTH)["tokens"]
        compared += len(answer)
        behind += [gap for gap in shortfalls(reference, prompt, answer) if gap > 0]
    assert compared >= FEWEST_TOKENS
    assert max(behind, default=0.0) < TIE[kind], sorted(behind)
    assert len(behind) <= compared // 100, "ties are rare: this many are a systematic difference"


def test_log_probabilities_are_those_of_transformers(
    bundled: BundledModel, reference: InTransformers, start: StartServer, stored_as: Stored
) -> None:
    """Of the ten likeliest first tokens: a wrong constant shows here before it tips one."""
    import torch

    server = start(stored_as(bundled, "f32"), *EXACT)
    # An end or half a character comes without probabilities, so a letter is forced; they are those of before that.
    said = reference.tokens("a")[0]
    for prompt in prompts_of(reference):
        answer = server.complete(prompt, 1, n_probs=10, logit_bias=[[said, 1e9]])
        (first,) = answer["completion_probabilities"]
        with torch.no_grad():
            expected = reference.model(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
        theirs = {item["id"]: item["logprob"] for item in first["top_logprobs"]}
        assert len(theirs) == 10
        assert theirs == pytest.approx({token: expected[token].item() for token in theirs}, abs=CLOSE)


def test_the_server_renders_the_chat_template_as_transformers_does(
    bundled: BundledModel, reference: InTransformers, start: StartServer
) -> None:
    server = start(bundled.path)
    for messages in chat_prompts():
        theirs = server.post("/apply-template", {"messages": messages})["prompt"]
        ours = reference.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert theirs == ours


def test_the_derived_folder_ends_answers_where_the_server_does(
    bundled: BundledModel, reference: InTransformers, start: StartServer, tmp_path: Path
) -> None:
    """Each end that the folder names, and no other special token, ends the server's answer before its limit."""
    ends = reference.model.generation_config.eos_token_id
    server = start(bundled.path)
    for token in reference.tokenizer.all_special_ids:
        only = [[other, False] for other in range(64) if other != token]
        answer = server.complete(reference.tokens("def f():\n"), 3, logit_bias=[[token, 1e9], *only])
        assert answer["tokens"][:1] == [token]
        assert (answer["stop_type"] == "eos") == (token in ends)
