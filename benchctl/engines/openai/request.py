"""The body of a request to an endpoint: what every OpenAI-compatible server takes, and what single families take in
addition.

Servers ignore unknown fields without an error, so a setting is sent only where it is known to be supported; a recipe
that depends on an unsupported setting is refused.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchctl.engines.base import Rendered
from benchctl.engines.common.endpoint import as_sent
from benchctl.prompts.suite import Prompt
from benchctl.recipes.schema import Sampling


@dataclass(frozen=True)
class EndpointPrompt(Rendered):
    """A prompt on its way to an endpoint, which applies its own chat template: `text` is then the messages as JSON."""

    messages: tuple[Mapping[str, Any], ...] | None = None
    """`None` for a raw prompt, which is sent as it is."""
    request: Mapping[str, Any] = field(default_factory=dict)
    """What is sent beside them, `tools` for example; it is in `text`, too."""


def render(prompt: Prompt, *, only_chat: bool) -> EndpointPrompt:
    """Return what is sent. A raw prompt becomes a user message where the endpoint has only a chat route."""
    if prompt.prompt is not None and not only_chat:
        return EndpointPrompt(prompt.prompt, ())
    if prompt.prompt is not None:
        messages: list[dict[str, Any]] = [{"role": "user", "content": prompt.prompt}]
    else:
        messages = [message.model_dump() for message in prompt.messages or ()]
    return EndpointPrompt(as_sent(prompt, only_chat=only_chat), (), messages=tuple(messages), request=prompt.request)


def unsupported(sampling: Sampling, family: str | None) -> list[str]:
    """Return a sentence for every setting of a recipe that this server is not known to support."""
    if "grammar" in sampling.constraints and family != "llama.cpp":
        return ["grammar is a setting of llama-server, and this server is not known to support it."]
    if family is not None:
        return []
    problems = []
    if "repeat_penalty" in sampling.constraints:
        problems.append("repeat_penalty is not part of the OpenAI API, and this server is not known to support it.")
    if sampling.ignore_eos:
        problems.append("ignore_eos is not part of the OpenAI API, and this server is not known to support it.")
    if sampling.temperature > 0 and sampling.top_k != 0:
        problems.append(
            "top_k is not part of the OpenAI API, and this server is not known to support it; write top_k: 0."
        )
    return problems


def request_body(
    prompt: Rendered, model: str, sampling: Sampling, family: str | None, *, stream: bool
) -> dict[str, Any]:
    """Return the JSON of a request, greedy at temperature 0, without reuse of earlier prompts where that is known."""
    messages, request = (prompt.messages, prompt.request) if isinstance(prompt, EndpointPrompt) else (None, {})
    body: dict[str, Any] = {
        **request,
        "model": model,
        **({"prompt": prompt.text} if messages is None else {"messages": list(messages)}),
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "stream": stream,
    }
    body |= {key: value for key, value in sampling.constraints.items() if key != "repeat_penalty"}
    if sampling.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    if stream:
        body["stream_options"] = {"include_usage": True}
    if family is not None:
        body |= {"top_k": sampling.top_k or (0 if family == "llama.cpp" else -1), "ignore_eos": sampling.ignore_eos}
    if family == "llama.cpp":
        body |= {
            "samplers": sampling.chain,
            "repeat_penalty": sampling.repeat_penalty,
            "cache_prompt": False,
            "return_tokens": True,
            "verbose": True,
        }
    elif family == "vllm":
        body |= {
            "repetition_penalty": sampling.repeat_penalty,
            "return_token_ids": True,
            "cache_salt": uuid.uuid4().hex,
        }
    elif family == "sglang":
        # Its chat route does not stream ids.
        body |= {
            "repetition_penalty": sampling.repeat_penalty,
            "return_spec_tokens_details": True,
            "return_token_ids": messages is None or not stream,
        }
    return body
