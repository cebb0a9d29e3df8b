"""Checking that vLLM ran as its command line requests. It fails closed: without evidence there is no confirmation.

The evidence is in the configuration that its engine logs at the start, in the counters of speculation,
which a server without speculation does not have, and in each answer's own figures.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from benchctl.engines.base import Attestation
from benchctl.engines.common.metrics import Counters, Tally
from benchctl.engines.vllm.ledger import evidence as drafts_of

_RELEVANT = re.compile(
    r"non-default args:|Initializing a V1 LLM engine|speculative|Speculative|core ids=|KV cache size|"
    r"Loading drafter model|Async scheduling|deprecated and replaced"
)
_INITIALIZED = re.compile(r"Initializing a \S+ LLM engine .*")
_METHOD = re.compile(r"speculative_config=(?:SpeculativeConfig\(method='?([\w.]+)'?|(None))")
_CACHING = re.compile(r"enable_prefix_caching=(\w+)")
_EVIDENCE_LINES = 12
_ROUNDS_NEED_TOKENS = 3
"""Shorter answers have no draft: the first token is prefill's, the last is never drafted."""
_ALWAYS_DRAFTS = frozenset({"draft_model", "eagle", "eagle3", "medusa", "mtp", "dflash", "dspark"})


@dataclass(frozen=True)
class Observed:
    """What was observed of a cell."""

    method: str | None
    """The method that the command line requests; `None` for the target alone."""
    model_path: str | None
    """Of the model that the server serves, as `/v1/models` lists it."""
    requested_model: str
    counters: Counters
    tally: Tally
    contradictions: Sequence[str]
    log: Sequence[str]
    prefix_caching: bool = False
    """Whether the recipe requests it."""


def attest(observed: Observed) -> Attestation:
    """Return the attestation of a cell."""
    started = next((found[0] for line in observed.log if (found := _INITIALIZED.search(line))), "")
    telling = [line.strip()[:400] for line in observed.log if _RELEVANT.search(line)][:_EVIDENCE_LINES]
    counted = observed.counters
    evidence = [f"log: {line}" for line in telling]
    evidence.append(f"GET /v1/models: root = {observed.model_path}")
    if counted.drafted is None:
        evidence.append("GET /metrics: no counters of speculation")
    else:
        counts = f"{counted.rounds} rounds, {counted.drafted} draft tokens, {counted.accepted} accepted"
        evidence.append(f"GET /metrics, vllm:spec_decode_*: {counts}")
    evidence += [*drafts_of(observed.tally), *(f"contradiction: {text}" for text in observed.contradictions)]
    failure = _wrong_server(observed, started) or _wrong_speculation(observed, started) or _wrong_counts(observed)
    if failure:
        return Attestation("failed", tuple(evidence), *failure)
    if observed.method is None:
        return Attestation("off", tuple(evidence))
    return Attestation("active" if counted.drafted else "idle", tuple(evidence))


def _wrong_server(observed: Observed, started: str) -> tuple[str, str] | None:
    if observed.model_path != observed.requested_model:
        return (
            f"The server that answers serves {str(observed.model_path)[:200]}, not {observed.requested_model}.",
            "Another program uses the port; run it again.",
        )
    caching = _CACHING.search(started)
    if caching and caching[1] != str(observed.prefix_caching):
        if observed.prefix_caching:
            return "Prefix caching is off, but engine.prefix_caching requests it.", "Read the engine's log."
        return (
            "Prefix caching is on: a repeated prompt would not be read again.",
            "Remove what turns it on from engine.args, the arm's args and engine.env.",
        )
    return None


def _wrong_speculation(observed: Observed, started: str) -> tuple[str, str] | None:
    found = _METHOD.search(started)
    ran = found[1] if found else None
    if observed.method is None:
        if ran or observed.counters.drafted is not None or observed.tally.drafted is not None:
            return (
                f"The arm requests no speculation, but the server speculates ({ran or 'it counts draft tokens'}).",
                "Remove what turns speculation on from engine.args, the arm's args and engine.env.",
            )
        return None
    if found and ran != observed.method:
        return (
            f"{observed.method} was requested, but the server speculates with {ran or 'nothing'}.",
            "vLLM changes the method by the name or the configuration of the draft: check models.draft.",
        )
    if observed.counters.drafted is None:
        return (
            "The server has no counters of speculation, so there is no evidence that it speculates.",
            "Read the engine's log.",
        )
    if (
        observed.method in _ALWAYS_DRAFTS
        and not observed.counters.drafted
        and observed.tally.longest >= _ROUNDS_NEED_TOKENS
    ):
        return (
            f"{observed.method} is on, but nothing was drafted in answers of up to {observed.tally.longest} tokens.",
            "Read the engine's log; check that models.draft belongs to the target and that its context is long enough.",
        )
    return None


def _wrong_counts(observed: Observed) -> tuple[str, str] | None:
    if not observed.contradictions:
        return None
    return (
        f"vLLM's figures contradict each other: {observed.contradictions[0]}.",
        "No acceptance rate can be computed from them; report it to vLLM with the run's manifest.",
    )
