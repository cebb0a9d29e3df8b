"""Judging whether a cell ran as its command line asked. What is not shown is not believed: the judgement fails closed.

llama-server starts healthy and answers without a word when speculation could not be initialised, and echoes the types
that were *asked for* all the same. What it truly does stands in `GET /slots` (`speculative`), in its counters, and in
its log.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchctl.engines.base import Attestation
from benchctl.engines.common.metrics import Counters
from benchctl.engines.llama_cpp.causes import silence_cause
from benchctl.engines.llama_cpp.ledger import contradiction, observation, read_counts
from benchctl.engines.llama_cpp.speculation import Asked

_TELLING = re.compile(
    r"adding speculative implementation '[\w-]+'|speculative decoding context initialized|"
    r"failed to initialize speculative decoding context|no implementations specified for speculative decoding|"
    r"speculative decoding not supported by this context|speculative decoding will use checkpoints|"
    r"synthetic speculative acceptance is enabled|"
    r"n_max=-?\d+, n_min=-?\d+, p_min=|size_n=\d+, size_m=\d+|size_key=\d+, size_value=\d+|n_match=\d+, n_max=\d+"
)
_ENGAGED = re.compile(r"adding speculative implementation '[\w-]+'|speculative decoding context initialized")
_CONFIG = re.compile(r"using config file: (.+)")
_EVIDENCE_LINES = 24
_ROUNDS_NEED_TOKENS = 3
"""Answers shorter than this leave no room for a draft: the first token is prefill's, the last is never drafted."""


@dataclass(frozen=True)
class Observed:
    """What a cell showed."""

    asked: Asked
    slots: tuple[bool | None, ...] | None
    """`speculative` of every slot; `None` when `/slots` told nothing."""
    total_slots: int | None
    model_path: str | None
    asked_model: str
    drafted: int | None
    """Draft tokens over all answers so far, by the engine's own counters; `None` when it does not tell."""
    longest_answer: int
    log: Sequence[str]
    asked_slots: int = 1
    counters: Counters = field(default_factory=Counters)
    """What the server has counted since it started."""
    answers: int | None = None
    """Draft tokens over all answers, by the answers' own timings."""
    counted: str | None = None
    """What the server's counters say beside the sum of the answers' own; `None` where each answer has them apart."""


def attest(seen: Observed) -> Attestation:
    """Return the attestation of a cell."""
    telling = [line.strip() for line in seen.log if _TELLING.search(line)][:_EVIDENCE_LINES]
    evidence = [f"log: {line}" for line in telling]
    evidence.append(f"GET /slots: speculative = {_words(seen.slots)}")
    evidence.append(f"GET /props: total_slots = {seen.total_slots}, model_path = {seen.model_path}")
    evidence.append(f"draft tokens so far: {'not reported' if seen.drafted is None else seen.drafted}")
    if seen.counted is not None:
        evidence.append(seen.counted)
    logged = read_counts(seen.log) if seen.asked.types else None
    if (comparison := observation(logged, seen.counters)) is not None:
        evidence.append(comparison)
    failure = (
        _wrong_server(seen) or _miscounted(seen) or (_not_speculating(seen) if seen.asked.types else _speculating(seen))
    )
    if failure:
        return Attestation("failed", tuple(evidence), *failure)
    if not seen.asked.types:
        return Attestation("off", tuple(evidence))
    return Attestation("active" if seen.drafted else "idle", tuple(evidence))


def _words(slots: tuple[bool | None, ...] | None) -> str:
    return (
        "not reported" if slots is None else ", ".join("not reported" if s is None else str(s).lower() for s in slots)
    )


def _wrong_server(seen: Observed) -> tuple[str, str] | None:
    config = next((found[1] for line in seen.log if (found := _CONFIG.search(line))), None)
    if config:
        return (
            f"llama-server took settings from {config.strip()[:200]}, which benchctl does not see.",
            "Move that file away while benchctl measures.",
        )
    if seen.total_slots != seen.asked_slots or (seen.slots is not None and len(seen.slots) != seen.asked_slots):
        asked = "one was" if seen.asked_slots == 1 else f"{seen.asked_slots} were"
        return (
            f"The server has {seen.total_slots} slots; {asked} asked for.",
            "Remove whatever sets --parallel, and check that this is a llama-server.",
        )
    if seen.model_path is not None and seen.model_path != seen.asked_model:
        return (
            f"The server that answers serves {str(seen.model_path)[:200]}, not {seen.asked_model}.",
            "Another program holds the port; run it again.",
        )
    return None


def _miscounted(seen: Observed) -> tuple[str, str] | None:
    """What shows that the counters tell of drafts that never were, or of more accepted ones."""
    wrong = contradiction(read_counts(seen.log), seen.counters, seen.answers) if seen.asked.types else None
    if wrong is None:
        return None
    return f"The engine's counters contradict its own log: {wrong}.", "Report it to whoever built this llama-server."


def _speculating(seen: Observed) -> tuple[str, str] | None:
    """What shows that a run of the target alone speculates after all."""
    remedy = "Remove what turns speculation on from engine.args, the arm's args and engine.env."
    if seen.drafted:
        return f"The arm asks for no speculation, but {seen.drafted} tokens were drafted.", remedy
    if seen.slots and any(seen.slots):
        return "The arm asks for no speculation, but the server's slot has it on.", remedy
    if seen.slots is None and any(_ENGAGED.search(line) for line in seen.log):
        return "The arm asks for no speculation, but the log shows that it was initialised.", remedy
    return None


def _not_speculating(seen: Observed) -> tuple[str, str] | None:
    """What shows that an arm does not speculate although it should."""
    told = all(seen.slots) if seen.slots and None not in seen.slots else None
    engaged = told if told is not None else any(_ENGAGED.search(line) for line in seen.log)
    if not engaged and not (told is None and seen.drafted):
        cause = silence_cause(seen.log)
        if cause:
            return f"{cause[0]} (log: {cause[2].strip()[:200]})", cause[1]
        return (
            f"Nothing shows that {', '.join(seen.asked.types)} was initialised.",
            "Read the engine's log; check that models.draft belongs to the target.",
        )
    drafting = [name for name in seen.asked.types if name.startswith("draft-")]
    could_draft = seen.longest_answer >= _ROUNDS_NEED_TOKENS and not seen.asked.may_hold_back
    if drafting and seen.drafted == 0 and could_draft:
        return (
            f"{', '.join(drafting)} is on, but nothing was drafted in answers of up to {seen.longest_answer} tokens.",
            "Read the engine's log; check that models.draft belongs to the target and that its context is long enough.",
        )
    return None
