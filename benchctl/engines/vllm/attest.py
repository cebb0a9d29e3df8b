"""Checking that vLLM ran as its command line requests. It fails closed: without evidence there is no confirmation.

The evidence is the configuration that its engine logs at the start, and three counts that must agree: an answer's
`metrics` count its own steps; `/metrics` counts those of the server's whole life, and does not exist without
speculation; and the tokens that came are a token for every step, the reading of the prompt included, and the accepted.
`rounds` are the steps that had a draft: vLLM counts no other, so its acceptance length (1 + accepted / rounds) leaves
steps without a draft out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchctl.engines.base import Attestation, Ledger
from benchctl.engines.common.drafts import Tally
from benchctl.engines.common.drafts import contradictions as count_contradictions
from benchctl.engines.common.endpoint import MetricsReading
from benchctl.engines.common.launched_server import (
    CHECK_THE_DRAFT,
    conclude,
    drafted_nothing,
    other_model,
    unrequested,
)
from benchctl.engines.common.log import READ_THE_LOG, Reason

_RELEVANT = re.compile(
    r"non-default args:|Initializing a V1 LLM engine|speculative|Speculative|core ids=|KV cache size|"
    r"Loading drafter model|Async scheduling|deprecated and replaced"
)
_INITIALIZED = re.compile(r"Initializing a \S+ LLM engine .*")
_METHOD = re.compile(r"speculative_config=(?:SpeculativeConfig\(method='?([\w.]+)'?|(None))")
_CACHING = re.compile(r"enable_prefix_caching=(\w+)")
_EVIDENCE_LINES = 12
_ALWAYS_DRAFTS = frozenset({"draft_model", "eagle", "eagle3", "medusa", "mtp", "dflash", "dspark"})


@dataclass(frozen=True)
class VllmObserved:
    """The observations of a cell."""

    method: str | None
    """The method that the command line requests; `None` for the target alone."""
    model_path: str | None
    """The path of the model that the server serves, as `/v1/models` lists it."""
    requested_model: str
    counters: Ledger
    tally: Tally
    contradictions: Sequence[str]
    log: Sequence[str]
    prefix_caching: bool = False
    """Whether the recipe requests it."""
    may_hold_back: bool = False
    """Whether its schedule drafts nothing at some load."""


def attest(observed: VllmObserved) -> Attestation:
    """Return the attestation of a cell."""
    started = next((match[0] for line in observed.log if (match := _INITIALIZED.search(line))), "")
    telling = [line.strip()[:400] for line in observed.log if _RELEVANT.search(line)][:_EVIDENCE_LINES]
    counted = observed.counters
    evidence = [f"log: {line}" for line in telling]
    evidence += [f"GET /v1/models: root = {observed.model_path}", str(MetricsReading(counted, None))]
    evidence += [*tally_lines(observed.tally), *(f"contradiction: {text}" for text in observed.contradictions)]
    failure = _wrong_server(observed, started) or _wrong_speculation(observed, started) or _wrong_counts(observed)
    return conclude(evidence, failure, requested=observed.method is not None, drafted=counted.drafted)


def _wrong_server(observed: VllmObserved, started: str) -> Reason | None:
    if mismatch := other_model(observed.model_path, observed.requested_model):
        return mismatch
    caching = _CACHING.search(started)
    if caching and caching[1] != str(observed.prefix_caching):
        state = "off" if observed.prefix_caching else "on"
        remedy = "Remove what sets it from engine.args, the arm's args and engine.env."
        return f"Prefix caching is {state}, which is not what engine.prefix_caching requests.", remedy
    return None


def _wrong_speculation(observed: VllmObserved, started: str) -> Reason | None:
    match = _METHOD.search(started)
    ran = match[1] if match else None
    if observed.method is None:
        if ran or observed.counters.drafted is not None or observed.tally.drafted is not None:
            return unrequested(f"the server speculates ({ran or 'it counts draft tokens'})")
        return None
    if match and ran != observed.method:
        return (
            f"{observed.method} was requested, but the server speculates with {ran or 'nothing'}.",
            "vLLM changes the method by the name or the configuration of the draft: check models.draft.",
        )
    if observed.counters.drafted is None:
        return "The server has no counters of speculation, so there is no evidence that it speculates.", READ_THE_LOG
    if observed.method in _ALWAYS_DRAFTS and not observed.counters.drafted and not observed.may_hold_back:
        return drafted_nothing(observed.method, observed.tally.longest, CHECK_THE_DRAFT)
    return None


def _wrong_counts(observed: VllmObserved) -> Reason | None:
    remedy = "No acceptance rate can be computed from them; report it to vLLM with the run's manifest."
    reasons = [f"vLLM's figures contradict each other: {text}." for text in observed.contradictions]
    return (reasons[0], remedy) if reasons else None


_A_STEP = re.compile(r"(?:max_num_batched_tokens=|max_num_scheduled_tokens is set to )(\d{1,9})\b")


def plain_steps(ledger: Ledger, tokens: int, steps: int | None) -> int | None:
    """Return how many steps of an answer of `tokens` tokens had no draft; `None` where that is not known.

    `steps`: of the engine meanwhile, the reading of the prompt, in a single step, being the first. They and accepted
    tokens make `tokens`, and up to a draft more where the limit on tokens cut the last step.
    """
    if steps is None or ledger.rounds is None or ledger.accepted is None:
        return None
    cut, plain = steps + ledger.accepted - tokens, steps - 1 - ledger.rounds
    return plain if plain >= 0 and 0 <= cut <= len(ledger.accepted_by_position or ()) else None


def tokens_a_step(log: str) -> int | None:
    """Return how many tokens a step reads at most, by the log of a server; `None` where it is not there."""
    limits = [int(limit) for limit in _A_STEP.findall(log)]
    return min(limits, default=None)


def contradictions(ledger: Ledger, tokens: int, counted: Ledger | None = None, steps: int | None = None) -> list[str]:
    """Return a sentence for everything in which an answer's figures contradict each other, the server's, or its tokens.

    `counted` and `steps`: what the server counted, and how many steps its engine made, while nothing but this answer
    was made; `None` where that is not known.
    """
    if ledger.rounds is None or ledger.accepted is None or ledger.drafted is None:
        return []
    # More rounds than drafts are possible: a grammar may rule all of a draft out.
    sentences = count_contradictions(replace(ledger, drafted_by_position=None), tokens, free=False)
    answer = Ledger(ledger.drafted, ledger.accepted, ledger.rounds, accepted_by_position=ledger.accepted_by_position)
    if counted is not None and answer.accepted_by_position is None:
        counted = replace(counted, accepted_by_position=None)
    if counted is not None and counted != answer:
        sentences.append(f"an answer counts {_rendered(answer)}, and the server counted {_rendered(counted)} meanwhile")
    if steps is not None and steps + ledger.accepted < tokens:
        sentences.append(f"{steps} steps and {ledger.accepted} accepted tokens make fewer than the {tokens} that came")
    return sentences


def _rendered(counted: Ledger) -> str:
    counts = f"{counted.accepted} of {counted.drafted} draft tokens accepted in {counted.rounds} rounds"
    places = counted.accepted_by_position
    return counts if places is None else f"{counts} ({', '.join(map(str, places))} by position)"


def tally_lines(tally: Tally) -> list[str]:
    """Return the acceptance over all answers, by vLLM's definition and by benchctl's, an observation a line."""
    if tally.drafted is None:
        return []
    rounds, accepted, plain = tally.rounds or 0, tally.accepted or 0, tally.plain_steps
    lines = [f"answers: {accepted} of {tally.drafted} draft tokens accepted in {rounds} rounds"]
    if rounds:
        lines.append(f"acceptance length as vLLM defines it (1 + accepted / rounds): {1 + accepted / rounds:.3f}")
    if plain is None:
        lines.append("steps without a draft: not reported (requests overlapped, or prompts were read in several steps)")
    elif steps := rounds + plain:
        tokens_per_step = tally.decoded / steps
        lines.append(f"steps without a draft: {plain} of {steps}; tokens a step, all counted: {tokens_per_step:.3f}")
    return lines


def _past_a_stop_string(tally: Tally, counted: Ledger) -> bool:
    """Whether the server counts but a round more for answers that a stop string ended: it finds the string in the text,
    while the engine already verifies the next draft."""
    ours, theirs = (tally.rounds, tally.drafted, tally.accepted), (counted.rounds, counted.drafted, counted.accepted)
    rounds, drafted, accepted = ((more or 0) - (less or 0) for more, less in zip(theirs, ours, strict=True))
    return 0 < rounds <= tally.stopped and 0 <= accepted <= drafted


def mismatches(tally: Tally, counted: Ledger) -> list[str]:
    """Return what contradicts the server's counters over its whole life; only they include broken requests."""
    if tally.broken or tally.agrees(counted) is not False or _past_a_stop_string(tally, counted):
        return []
    ours, theirs = Ledger(tally.drafted, tally.accepted, tally.rounds), replace(counted, accepted_by_position=None)
    return [f"all answers together count {_rendered(ours)}, and the server counted {_rendered(theirs)}"]
