"""The attestation of a cell, from answers' ledgers and from the server's counters, slots and log.

`/metrics` counts over the life of the server and is brought up to date when a slot is released; with a single slot and
one request at a time the difference is the request's. `timings` carries the drafted and accepted tokens of the request,
and leaves them out when nothing was drafted. Neither overrules the other, so that a contradiction stays visible.

llama-server starts healthy and answers without a warning when speculation could not be initialised, and echoes the
*requested* types all the same. What it really does is in `GET /slots` (`speculative`), in its counters, and in its log.
Without evidence there is no confirmation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from benchctl.data.cell import UNCHECKED_ACCEPTANCE
from benchctl.engines.base import Attestation, Ledger, MemoryReport
from benchctl.engines.common.drafts import Tally, counted_since
from benchctl.engines.common.launched_server import (
    CHECK_THE_DRAFT,
    conclude,
    drafted_nothing,
    other_model,
    unrequested,
)
from benchctl.engines.common.log import Reason, first_cause
from benchctl.engines.common.wire import count_in
from benchctl.engines.llama_cpp.causes import NOT_SPECULATING
from benchctl.engines.llama_cpp.command import DEVICES
from benchctl.engines.llama_cpp.rounds import LoggedRounds
from benchctl.engines.llama_cpp.spec_flags import RequestedSpeculation
from benchctl.recipes.speculation import SPECULATION_TYPES
from benchctl.text import one_line

_STATISTICS = re.compile(
    r"statistics\s+([\w-]+):.*#gen tokens =\s*(\d{1,15}), #acc tokens =\s*(\d{1,15})\b"
    r"(?:.*dur\(b,g,a\) =\s*[\d.]+,\s*(\d{1,15}(?:\.\d{1,15})?)\b)?"
)
_CHECKPOINTS = "speculative decoding will use checkpoints"
_CHECKPOINT_SIZE = re.compile(
    r"created (?:context|speculative) checkpoint.*\bsize = (\d{1,9}\.\d+) MiB(?:, draft = (\d{1,9}\.\d+) MiB)?"
)
"""A context checkpoint is of target and draft together; a speculative checkpoint lists the draft's share separately."""
_OFFLOADED = re.compile(r"offloaded (\d{1,6})/(\d{1,6}) layers to GPU")
_BUFFER = re.compile(r"([A-Za-z]\w*)(?:\[[^\]]*\])? model buffer size =\s*\d")
"""A part of a model, and the device that holds it: `CPU_Mapped`, `Vulkan0`."""
_MIB = 1 << 20


def make_ledger(before: Ledger, after: Ledger, timings: Mapping[str, object], *, speculating: bool) -> Ledger:
    """Return the ledger of the request between two readings; all `None` where nothing speculates or drafted.

    The target reads every token that llama-server counts as drafted: it counts what `p_min`, `min` and the room in the
    context leave of a draft (server-context.cpp of commit 0c1e570), and does not report what they drop.
    """
    ledger = counted_since(before, after)
    drafted, accepted = (count_in(timings.get(name), 2**53) for name in ("draft_n", "draft_n_accepted"))
    if drafted is not None:
        ledger = replace(ledger, drafted=drafted, accepted=ledger.accepted if accepted is None else accepted)
    return replace(ledger, verified=ledger.drafted) if speculating or ledger.drafted else Ledger()


def counter_line(tally: Tally, counters: Ledger) -> str | None:
    """Return a sentence that compares the server's counters with all answers; `None` where either is not reported."""
    agrees = tally.agrees(counters)
    if agrees is None:
        return None
    broken = f"; {tally.broken} requests were broken off, and only the server's counters include them"
    return (
        f"GET /metrics over all answers: {counters.drafted} drafted, {counters.accepted} accepted in "
        f"{counters.rounds} rounds; the answers' own sums: {tally.drafted} drafted, {tally.accepted} accepted"
        f"{'' if agrees else broken if tally.broken else ': a contradiction'}"
    )


@dataclass(frozen=True)
class LoggedCounts:
    """Counts in the log since the server started, over all kinds of drafts."""

    drafted: int
    accepted: int
    replays: bool
    """Whether the target evaluates accepted tokens again, and the log counts them again."""
    draft_s: float | None = None
    """Time spent on making drafts. The draft model's reading of prompts and of verified tokens is not in it."""


def read_counts(log: Sequence[str]) -> LoggedCounts | None:
    """Return the last counts in a log; `None` where it has none."""
    last = {match[1]: match for line in log if (match := _STATISTICS.search(line))}
    if not last:
        return None
    drafted, accepted = (sum(int(match[column]) for match in last.values()) for column in (2, 3))
    times = [match[4] for match in last.values()]
    draft_s = None if None in times else sum(float(time) for time in times) / 1000
    return LoggedCounts(drafted, accepted, uses_checkpoints(log), draft_s)


def uses_checkpoints(log: Sequence[str]) -> bool:
    """Whether the target evaluates what it accepted of a draft again, as those with a recurrent state do.

    Builds whose `/metrics` have no drafts count the second evaluation alone, with the target's own token as a draft's.
    """
    return any(_CHECKPOINTS in line for line in log)


def contradiction(logged: LoggedCounts | None, counters: Ledger, answers: int | None) -> str | None:
    """Return how the counters contradict the log, as the end of a sentence; `None`: they do not, or either is absent.

    `answers`: draft tokens by the answers' own timings, which may lack some of the log's but never exceed them.
    """
    if logged is None:
        return None
    drafted, accepted, surplus = counters.drafted, counters.accepted, 0
    if drafted is None or accepted is None:  # a build whose `/metrics` has no drafts
        drafted, accepted = logged.drafted, logged.accepted
    if logged.replays:
        surplus = logged.drafted if counters.rounds is None else counters.rounds
    if drafted != logged.drafted or (answers or 0) > logged.drafted:
        counted = drafted if drafted != logged.drafted else answers
        return f"{counted} draft tokens were counted, and its own log counts {logged.drafted}"
    if not 0 <= logged.accepted - accepted <= surplus:
        return f"{accepted} tokens were counted as accepted, and its own log counts {logged.accepted}"
    return None


def read_memory(log: Sequence[str]) -> MemoryReport:
    """Return the largest checkpoint of a sequence, and whether some layers are not on the GPU."""
    sizes = [
        float(match[1]) + (float(match[2]) if match[2] and "speculative" in match[0] else 0.0)
        for line in log
        if (match := _CHECKPOINT_SIZE.search(line))
    ]
    layers = [(int(match[1]), int(match[2])) for line in log if (match := _OFFLOADED.search(line))]
    spilled = (
        f"{on_gpu} of {total} layers are on the GPU, the others in the machine's memory"
        for on_gpu, total in layers
        if 0 < on_gpu < total
    )
    return MemoryReport(checkpoint=round(max(sizes) * _MIB) if sizes else None, spilled=next(spilled, None))


_RELEVANT = re.compile(
    r"adding speculative implementation '[\w-]+'|speculative decoding context initialized|"
    r"failed to initialize speculative decoding context|no implementations specified for speculative decoding|"
    r"speculative decoding not supported by this context|speculative decoding will use checkpoints|"
    r"synthetic speculative acceptance is enabled|model buffer size =|offloaded \d+/\d+ layers|"
    r"n_max=-?\d+, n_min=-?\d+, p_min=|size_n=\d+, size_m=\d+|size_key=\d+, size_value=\d+|n_match=\d+, n_max=\d+"
)
_ENGAGED = re.compile(r"adding speculative implementation '[\w-]+'|speculative decoding context initialized")
_ADDED = re.compile(r"adding speculative implementation '([\w-]+)'")
_CONFIG = re.compile(r"using config file: (.+)")
_EVIDENCE_LINES = 24


@dataclass(frozen=True)
class LlamaObserved:
    """The observations of a cell."""

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
    device: str = "auto"
    """As the recipe requests it."""
    counters: Ledger = field(default_factory=Ledger)
    """The server's counters since it started."""
    answers: int | None = None
    """Draft tokens over all answers, by the answers' own timings."""
    rounds: LoggedRounds = field(default_factory=LoggedRounds)
    counted: str | None = None
    """The server's counters beside the sum of the answers' own; `None` where they are compared for each answer."""


def attest(observed: LlamaObserved) -> Attestation:
    """Return the attestation of a cell."""
    telling = [line.strip() for line in observed.log if _RELEVANT.search(line)][:_EVIDENCE_LINES]
    evidence = [f"log: {line}" for line in telling]
    evidence.append(f"GET /slots: speculative = {slot_states(observed.slots or ())}")
    evidence.append(f"GET /props: total_slots = {observed.total_slots}, model_path = {observed.model_path}")
    evidence.append(f"draft tokens so far: {'not reported' if observed.drafted is None else observed.drafted}")
    evidence += [] if observed.counted is None else [observed.counted]
    logged, counters = read_counts(observed.log) if observed.requested.types else None, observed.counters
    if logged is not None and counters.drafted is not None:
        unchecked = f": {UNCHECKED_ACCEPTANCE}, because this log also counts re-evaluated tokens as accepted"
        is_unchecked = logged.replays and logged.accepted and not observed.rounds.confirm
        evidence.append(
            f"log: {logged.drafted} drafted, {logged.accepted} accepted; GET /metrics: {counters.drafted} drafted, "
            f"{counters.accepted} accepted{unchecked if is_unchecked else ''}"
        )
    evidence += observed.rounds.evidence()
    failure = _wrong_server(observed) or _wrong_device(observed)
    if not failure and (mismatch := contradiction(logged, counters, observed.answers)):
        message = f"The engine's counters contradict its own log: {mismatch}."
        failure = message, "Report it to the maintainer of this build of llama-server."
    failure = failure or (_not_speculating(observed) if observed.requested.types else _speculating(observed))
    return conclude(evidence, failure, requested=bool(observed.requested.types), drafted=observed.drafted)


def speculating(slots: Sequence[object]) -> tuple[bool | None, ...]:
    """Return whether each slot of `GET /slots` speculates; `None` where it does not report it."""
    reported = (slot.get("speculative") if isinstance(slot, dict) else None for slot in slots)
    return tuple(state if isinstance(state, bool) else None for state in reported)


def reports(slots: Sequence[bool | None] | None) -> bool:
    """Whether every slot reports if it speculates."""
    return bool(slots) and None not in (slots or ())


def slot_states(slots: Sequence[bool | None]) -> str:
    """Return the states of slots as a short line."""
    states = ["not reported" if state is None else str(state).lower() for state in slots]
    return one_line(", ".join(states), 600) or "not reported"


def _wrong_server(observed: LlamaObserved) -> Reason | None:
    config = next((match[1] for line in observed.log if (match := _CONFIG.search(line))), None)
    if config:
        return (
            f"llama-server took settings from {config.strip()[:200]}, which benchctl does not know.",
            "Move that file away while benchctl measures.",
        )
    if observed.total_slots != observed.requested_slots or (
        observed.slots is not None and len(observed.slots) != observed.requested_slots
    ):
        message = f"The server's slots are {observed.total_slots}, and {observed.requested_slots} are requested."
        return message, "Remove whatever sets --parallel, and check that this is a llama-server."
    return None if observed.model_path is None else other_model(observed.model_path, observed.requested_model)


def _wrong_device(observed: LlamaObserved) -> Reason | None:
    """Return what is wrong where the log shows the models' parts, and none of them on the device that is requested."""
    prefix = DEVICES.get(observed.device)
    devices = {match[1] for line in observed.log if (match := _BUFFER.search(line))}
    on_device = any(name.startswith(prefix or ()) and not name.endswith("_Host") for name in devices)
    if prefix is None or not devices or on_device:
        return None
    return (
        f"The recipe requests {observed.device}, and the log has the model on {', '.join(sorted(devices))} alone.",
        "Check the device's driver, and what GGML_VK_VISIBLE_DEVICES and its like hide.",
    )


def _speculating(observed: LlamaObserved) -> Reason | None:
    """Return the evidence that an arm without speculation speculates."""
    if observed.drafted:
        return unrequested(f"{observed.drafted} tokens were drafted")
    if observed.slots and any(observed.slots):
        return unrequested("the server's slot has it on")
    if not reports(observed.slots) and any(_ENGAGED.search(line) for line in observed.log):
        return unrequested("the log shows that it was initialised")
    return None


def _not_speculating(observed: LlamaObserved) -> Reason | None:
    """Return the evidence that an arm with speculation does not speculate."""
    reported = all(observed.slots or ()) if reports(observed.slots) else None
    engaged = reported if reported is not None else any(_ENGAGED.search(line) for line in observed.log)
    if not engaged and not (reported is None and observed.drafted):
        cause = first_cause(observed.log, NOT_SPECULATING)
        if cause:
            return f"{cause[0]} (log: {cause[2].strip()[:200]})", cause[1]
        return (
            f"There is no evidence that {', '.join(observed.requested.types)} was initialised.",
            "Read the engine's log; check that models.draft belongs to the target.",
        )
    added = {match[1] for line in observed.log if (match := _ADDED.search(line))}
    strange = [name for name in observed.requested.types if name not in SPECULATION_TYPES and name not in added]
    if added and strange:
        return (
            f"The log shows that {', '.join(sorted(added))} was initialised, and not {', '.join(strange)}.",
            "Read the engine's log, and see whether this llama-server needs more to be set for that type (options).",
        )
    drafting = [name for name in observed.requested.types if name.startswith("draft-")]
    if drafting and observed.drafted == 0 and not observed.requested.may_hold_back:
        return drafted_nothing(", ".join(drafting), observed.longest_answer, CHECK_THE_DRAFT)
    return None
