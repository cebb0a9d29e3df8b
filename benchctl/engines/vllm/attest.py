"""Judging whether a vLLM ran as its command line asked. What is not shown is not believed: the judgement fails closed.

What a server does it shows in the configuration that its engine logs at the start, in the counters of speculation,
which a server without speculation does not have, and in each answer's own figures.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from benchctl.engines.base import Attestation
from benchctl.engines.common.metrics import Counters, Tally
from benchctl.engines.vllm.ledger import evidence as drafts_of

_TELLING = re.compile(
    r"non-default args:|Initializing a V1 LLM engine|speculative|Speculative|core ids=|KV cache size|"
    r"Loading drafter model|Async scheduling|deprecated and replaced"
)
_INITIALIZED = re.compile(r"Initializing a \S+ LLM engine .*")
_METHOD = re.compile(r"speculative_config=(?:SpeculativeConfig\(method='?([\w.]+)'?|(None))")
_CACHING = re.compile(r"enable_prefix_caching=(\w+)")
_EVIDENCE_LINES = 12
_ROUNDS_NEED_TOKENS = 3
"""Answers shorter than this leave no room for a draft: the first token is prefill's, the last is never drafted."""
_ALWAYS_DRAFTS = frozenset({"draft_model", "eagle", "eagle3", "medusa", "mtp", "dflash", "dspark"})


@dataclass(frozen=True)
class Observed:
    """What a cell showed."""

    method: str | None
    """What the command line asks for; `None` for the target alone."""
    model_path: str | None
    """Of the model that the server serves, as `/v1/models` tells it."""
    asked_model: str
    counters: Counters
    tally: Tally
    contradictions: Sequence[str]
    log: Sequence[str]
    prefix_caching: bool = False
    """Whether the recipe asks for it."""


def attest(seen: Observed) -> Attestation:
    """Return the attestation of a cell."""
    started = next((found[0] for line in seen.log if (found := _INITIALIZED.search(line))), "")
    telling = [line.strip()[:400] for line in seen.log if _TELLING.search(line)][:_EVIDENCE_LINES]
    counted = seen.counters
    evidence = [f"log: {line}" for line in telling]
    evidence.append(f"GET /v1/models: root = {seen.model_path}")
    if counted.drafted is None:
        evidence.append("GET /metrics: no counters of speculation")
    else:
        told = f"{counted.rounds} rounds, {counted.drafted} draft tokens, {counted.accepted} accepted"
        evidence.append(f"GET /metrics, vllm:spec_decode_*: {told}")
    evidence += [*drafts_of(seen.tally), *(f"contradiction: {text}" for text in seen.contradictions)]
    failure = _wrong_server(seen, started) or _wrong_speculation(seen, started) or _wrong_counts(seen)
    if failure:
        return Attestation("failed", tuple(evidence), *failure)
    if seen.method is None:
        return Attestation("off", tuple(evidence))
    return Attestation("active" if counted.drafted else "idle", tuple(evidence))


def _wrong_server(seen: Observed, started: str) -> tuple[str, str] | None:
    if seen.model_path != seen.asked_model:
        return (
            f"The server that answers serves {str(seen.model_path)[:200]}, not {seen.asked_model}.",
            "Another program holds the port; run it again.",
        )
    caching = _CACHING.search(started)
    if caching and caching[1] != str(seen.prefix_caching):
        if seen.prefix_caching:
            return "Prefix caching is off, and engine.prefix_caching asks for it.", "Read the engine's log."
        return (
            "Prefix caching is on: a repeated prompt would not be read again.",
            "Remove what turns it on from engine.args, the arm's args and engine.env.",
        )
    return None


def _wrong_speculation(seen: Observed, started: str) -> tuple[str, str] | None:
    found = _METHOD.search(started)
    ran = found[1] if found else None
    if seen.method is None:
        if ran or seen.counters.drafted is not None or seen.tally.drafted is not None:
            return (
                f"The arm asks for no speculation, but the server speculates ({ran or 'it counts draft tokens'}).",
                "Remove what turns speculation on from engine.args, the arm's args and engine.env.",
            )
        return None
    if found and ran != seen.method:
        return (
            f"{seen.method} was asked for, and the server speculates with {ran or 'nothing'}.",
            "vLLM changes the method by the name or the configuration of the draft: check models.draft.",
        )
    if seen.counters.drafted is None:
        return (
            "The server has no counters of speculation, so nothing shows that it speculates.",
            "Read the engine's log.",
        )
    if seen.method in _ALWAYS_DRAFTS and not seen.counters.drafted and seen.tally.longest >= _ROUNDS_NEED_TOKENS:
        return (
            f"{seen.method} is on, but nothing was drafted in answers of up to {seen.tally.longest} tokens.",
            "Read the engine's log; check that models.draft belongs to the target and that its context is long enough.",
        )
    return None


def _wrong_counts(seen: Observed) -> tuple[str, str] | None:
    if not seen.contradictions:
        return None
    return (
        f"vLLM's figures contradict each other: {seen.contradictions[0]}.",
        "No rate of acceptance can be made of them; report it to vLLM with the run's manifest.",
    )
