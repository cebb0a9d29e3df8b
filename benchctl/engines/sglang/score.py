"""Scoring prefixes on an SGLang, launched or running already, which is recognised by its `/server_info`.

`/generate` returns logprobs of generated tokens and of input tokens; those of the input stand in `meta_info` from token
`logprob_start_len` on, and the first of them is always null (SGLang 0.5.23, `scheduler_output_processor_mixin.py`); a
prefix from the cache is used up to that token alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchctl.engines.base import Ledger, Scores
from benchctl.engines.common.drafts import verified_ledger
from benchctl.engines.common.endpoint import (
    EndpointTarget,
    Pages,
    Recognised,
    ServerFamily,
    TokenizingTarget,
    short_line,
)
from benchctl.engines.common.metrics import Counters
from benchctl.engines.common.score import RequestScorer, Target, usable_scores
from benchctl.engines.common.values import id_of, logprob_of
from benchctl.engines.sglang.attest import drafts_are_counted

MOST_LOGPROBS = 100
"""At a position. SGLang has no limit of its own, and fails where it is more than the vocabulary."""
_CLIPPED = 0
"""How SGLang names an input token beyond the vocabulary that it knows, such as an image's."""


class SglangScorer(RequestScorer):
    """An SGLang that scores; see `benchctl.engines.common.score`."""

    def __init__(self, server: Target, command: Sequence[str], *, context: int, timeout_s: float) -> None:
        """`context`: of the target, in tokens; `timeout_s`: of a request."""
        super().__init__(server, command, context=context, most_logprobs=MOST_LOGPROBS, timeout_s=timeout_s)

    def _prefill(self, tokens: Sequence[int], start: int, top: int) -> list[Scores]:
        meta = self._post(tokens, 1, top, {"logprob_start_len": start - 1})
        found = []
        try:
            own, likeliest = meta["input_token_logprobs"][1:], meta["input_top_logprobs"][1:]
            for token, (logprob, known_as, *_), entries in zip(tokens[start:], own, likeliest, strict=True):
                if known_as not in (token, _CLIPPED):
                    return []
                found.append(usable_scores(_logprobs(entries) | {token: logprob_of(logprob)}, len(tokens), least=2))
        except (KeyError, TypeError, ValueError, IndexError):
            return []
        return found

    def _decode(self, prompt: Sequence[int], tokens: int, top: int) -> list[tuple[int, Scores]]:
        meta = self._post(prompt, tokens, top, {})
        try:
            found = [
                (id_of(chosen[1]), usable_scores(_logprobs(top_ones), len(prompt)))
                for chosen, top_ones in zip(meta["output_token_logprobs"], meta["output_top_logprobs"], strict=True)
            ]
        except (KeyError, TypeError, ValueError, IndexError):
            return []
        return found if len(found) == tokens else []

    def _post(self, prompt: Sequence[int], tokens: int, top: int, more: Mapping[str, Any]) -> Mapping[str, Any]:
        body = {**scoring_body(prompt, tokens=tokens, top=top), **more}
        reply = self._server.http.post("/generate", body, timeout_s=self._timeout_s)
        meta = reply.get("meta_info")
        return meta if isinstance(meta, dict) else {}


def scoring_body(token_ids: Sequence[int], *, tokens: int, top: int) -> dict[str, Any]:
    """Return the JSON of a `/generate` request for `tokens` greedy tokens, and at each the `top` likeliest.

    At temperature 0 SGLang samples greedily and returns logprobs of the raw logits.
    """
    return {
        "input_ids": list(token_ids),
        "sampling_params": {
            "temperature": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "max_new_tokens": tokens,
            "ignore_eos": True,
        },
        "return_logprob": True,
        "top_logprobs_num": top,
        "return_text_in_logprobs": False,
        "stream": False,
    }


def _logprobs(entries: Sequence[Sequence[Any]]) -> dict[int, float]:
    """Read `[logprob, id, text]` of each token."""
    return {id_of(entry[1]): logprob_of(entry[0]) for entry in entries}


def _recognise(pages: Pages) -> Recognised | None:
    info = pages.object("/server_info")
    if "speculative_algorithm" not in info and "internal_states" not in info:
        return None
    algorithm, version = info.get("speculative_algorithm"), short_line(info.get("version"))
    known, states = "speculative_algorithm" in info, info.get("internal_states")
    each = states if isinstance(states, list) else []
    lengths = [state.get("avg_spec_accept_length") for state in each[:64] if isinstance(state, dict)]
    evidence = [
        f"GET /server_info: SGLang {version}, speculative_algorithm = {short_line(algorithm) if known else '?'}",
        f"GET /server_info: avg_spec_accept_length = {', '.join(map(str, lengths)) or 'not reported'}"[:200],
    ]
    counted = drafts_are_counted(info)
    if algorithm and not counted:
        evidence.append("SGLang reports only the maximum number of draft tokens: drafted tokens are not reported")
    return Recognised(version, bool(algorithm) if known else None, None, tuple(evidence), counted)


def _ledger(server: Recognised, extra: Mapping[str, Any], before: Counters, after: Counters) -> Ledger:
    del before, after  # it has no counters of speculation
    extension = extra.get("sglext")
    details = extension.get("spec_tokens_details") if isinstance(extension, dict) else None
    details = details[0] if isinstance(details, list) and details else details
    return verified_ledger(details, counted=server.drafts_counted) if isinstance(details, dict) else Ledger()


def _scorer(target: EndpointTarget) -> SglangScorer:
    return SglangScorer(TokenizingTarget.of(target), (), context=target.context, timeout_s=target.timeout_s)


FAMILY = ServerFamily(_recognise, _ledger, scorer=_scorer)
