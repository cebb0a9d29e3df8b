"""Checking that a cell ran as its command line requests. It fails closed: without evidence there is no confirmation.

llama-server starts healthy and answers without a warning when speculation could not be initialised, and echoes the
*requested* types all the same. What it really does is in `GET /slots` (`speculative`), in its counters, and in its log.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchctl.engines.base import Attestation
from benchctl.engines.common.metrics import Counters
from benchctl.engines.llama_cpp.causes import silence_cause
from benchctl.engines.llama_cpp.ledger import contradiction, observation, read_counts
from benchctl.engines.llama_cpp.speculation import RequestedSpeculation

_RELEVANT = re.compile(
    r"adding speculative implementation '[\w-]+'|speculative decoding context initialized|"
    r"failed to initialize speculative decoding context|no implementations specified for speculative decoding|"
    r"speculative decoding not supported by this context|speculative decoding will use checkpoints|"
    r"synthetic speculative acceptance is enabled|"
    r"n_max=-?\d+, n_min=-?\d+, p_min=|size_n=\d+, size_m=\d+|size_key=\d+, size_value=\d+|n_match=\d+, n_max=\d+"
)
_ENGAGED = re.compile(r"adding speculative implementation '[\w-]+'|speculative decoding context initialized")
_CONFIG = re.compile(r"using config file: (.+)")
_EVIDENCE_LINES = 24
_SHOWN_SLOTS = 64
_ROUNDS_NEED_TOKENS = 3
"""Shorter answers have no draft: the first token is prefill's, the last is never drafted."""


@dataclass(frozen=True)
class Observed:
    """What was observed of a cell."""

    requested: RequestedSpeculation
    slots: tuple[bool | None, ...] | None
    """`speculative` of every slot; `None` when `/slots` is not available."""
    total_slots: int | None
    model_path: str | None
    requested_model: str
    drafted: int | None
    """Draft tokens over all answers so far, by the engine's own counters; `None` when they are not reported."""
    longest_answer: int
    log: Sequence[str]
    requested_slots: int = 1
    counters: Counters = field(default_factory=Counters)
    """What the server has counted since it started."""
    answers: int | None = None
    """Draft tokens over all answers, by the answers' own timings."""
    counted: str | None = None
    """The server's counters beside the sum of the answers' own; `None` where they are compared for each answer."""


def attest(observed: Observed) -> Attestation:
    """Return the attestation of a cell."""
    telling = [line.strip() for line in observed.log if _RELEVANT.search(line)][:_EVIDENCE_LINES]
    evidence = [f"log: {line}" for line in telling]
    evidence.append(
        f"GET /slots: speculative = {'not reported' if observed.slots is None else rendered(observed.slots)}"
    )
    evidence.append(f"GET /props: total_slots = {observed.total_slots}, model_path = {observed.model_path}")
    evidence.append(f"draft tokens so far: {'not reported' if observed.drafted is None else observed.drafted}")
    if observed.counted is not None:
        evidence.append(observed.counted)
    logged = read_counts(observed.log) if observed.requested.types else None
    if (comparison := observation(logged, observed.counters)) is not None:
        evidence.append(comparison)
    failure = (
        _wrong_server(observed)
        or _miscounted(observed)
        or (_not_speculating(observed) if observed.requested.types else _speculating(observed))
    )
    if failure:
        return Attestation("failed", tuple(evidence), *failure)
    if not observed.requested.types:
        return Attestation("off", tuple(evidence))
    return Attestation("active" if observed.drafted else "idle", tuple(evidence))


def speculating(slots: Sequence[object]) -> tuple[bool | None, ...]:
    """Return whether each slot of `GET /slots` speculates; `None` for one that does not report it."""
    reported = (slot.get("speculative") if isinstance(slot, dict) else None for slot in slots)
    return tuple(state if isinstance(state, bool) else None for state in reported)


def rendered(slots: Sequence[bool | None]) -> str:
    """Return the states of slots as one short line."""
    each = ["not reported" if state is None else str(state).lower() for state in slots[:_SHOWN_SLOTS]]
    more = [f"and {len(slots) - _SHOWN_SLOTS} more"] if len(slots) > _SHOWN_SLOTS else []
    return ", ".join(each + more) or "not reported"


def _wrong_server(observed: Observed) -> tuple[str, str] | None:
    config = next((found[1] for line in observed.log if (found := _CONFIG.search(line))), None)
    if config:
        return (
            f"llama-server took settings from {config.strip()[:200]}, which benchctl does not know.",
            "Move that file away while benchctl measures.",
        )
    if observed.total_slots != observed.requested_slots or (
        observed.slots is not None and len(observed.slots) != observed.requested_slots
    ):
        requested = "one was" if observed.requested_slots == 1 else f"{observed.requested_slots} were"
        slots = "an unknown number of" if observed.total_slots is None else observed.total_slots
        return (
            f"The server has {slots} slots; {requested} requested.",
            "Remove whatever sets --parallel, and check that this is a llama-server.",
        )
    if observed.model_path is not None and observed.model_path != observed.requested_model:
        return (
            f"The server that answers serves {observed.model_path[:200]}, not {observed.requested_model}.",
            "Another program uses the port; run it again.",
        )
    return None


def _miscounted(observed: Observed) -> tuple[str, str] | None:
    """Return the contradiction where the counters report drafts that the log does not have, or more accepted ones."""
    wrong = (
        contradiction(read_counts(observed.log), observed.counters, observed.answers)
        if observed.requested.types
        else None
    )
    if wrong is None:
        return None
    return (
        f"The engine's counters contradict its own log: {wrong}.",
        "Report it to the maintainer of this build of llama-server.",
    )


def _speculating(observed: Observed) -> tuple[str, str] | None:
    """Return the evidence that an arm without speculation speculates."""
    remedy = "Remove what turns speculation on from engine.args, the arm's args and engine.env."
    if observed.drafted:
        return f"The arm requests no speculation, but {observed.drafted} tokens were drafted.", remedy
    if observed.slots and any(observed.slots):
        return "The arm requests no speculation, but the server's slot has it on.", remedy
    if observed.slots is None and any(_ENGAGED.search(line) for line in observed.log):
        return "The arm requests no speculation, but the log shows that it was initialised.", remedy
    return None


def _not_speculating(observed: Observed) -> tuple[str, str] | None:
    """Return the evidence that an arm with speculation does not speculate."""
    reported = all(observed.slots) if observed.slots and None not in observed.slots else None
    engaged = reported if reported is not None else any(_ENGAGED.search(line) for line in observed.log)
    if not engaged and not (reported is None and observed.drafted):
        cause = silence_cause(observed.log)
        if cause:
            return f"{cause[0]} (log: {cause[2].strip()[:200]})", cause[1]
        return (
            f"There is no evidence that {', '.join(observed.requested.types)} was initialised.",
            "Read the engine's log; check that models.draft belongs to the target.",
        )
    drafting = [name for name in observed.requested.types if name.startswith("draft-")]
    could_draft = observed.longest_answer >= _ROUNDS_NEED_TOKENS and not observed.requested.may_hold_back
    if drafting and observed.drafted == 0 and could_draft:
        return (
            f"{', '.join(drafting)} is on, but nothing was drafted "
            f"in answers of up to {observed.longest_answer} tokens.",
            "Read the engine's log; check that models.draft belongs to the target and that its context is long enough.",
        )
    return None
