"""Judging whether an SGLang ran as its command line asked, by its `/server_info` and by what its answers tell.

`/server_info` holds the settings as SGLang resolved them, which may be others than were asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchctl.engines.base import Attestation, Ledger
from benchctl.engines.common.stream import count_in
from benchctl.text import one_line

_SHOWN = (
    "version",
    "speculative_algorithm",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "speculative_accept_threshold_single",
    "speculative_accept_threshold_acc",
    "disable_radix_cache",
    "max_running_requests",
    "dtype",
    "device",
    "attention_backend",
)
_DEPTH = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
_SAME = {"NEXTN": {"EAGLE", "FROZEN_KV_MTP"}, "EAGLE": {"FROZEN_KV_MTP"}}
"""What SGLang calls an algorithm once it has resolved it, where that is another name."""
_ROUNDS_NEED_TOKENS = 3
"""Answers shorter than this leave no room for a draft."""

_EVERY_ROUND_ALIKE = frozenset({"EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "FROZEN_KV_MTP", "DFLASH"})


@dataclass(frozen=True)
class Observed:
    """What a cell showed."""

    asked: Mapping[str, str]
    """The options of the command line by name without dashes, underscores for them."""
    info: Mapping[str, Any]
    """`/server_info`; empty where it told nothing."""
    drafted: int | None
    rounds: int
    accepted: int
    tokens: int
    """Of all answers."""
    longest: int
    cached: int
    """Prompt tokens that came out of a cache."""


def attest(seen: Observed) -> Attestation:
    """Return the attestation of a cell. What is not shown is not believed: the judgement fails closed."""
    evidence = [f"GET /server_info: {key} = {one_line(str(seen.info[key]), 80)}" for key in _SHOWN if key in seen.info]
    drafted = "not reported" if seen.drafted is None else seen.drafted
    evidence.append(f"answers: {seen.rounds} rounds, {drafted} drafted, {seen.accepted} accepted")
    if seen.rounds:
        evidence.append(f"SGLang's own acceptance length (its bonus token included): {seen.tokens / seen.rounds:.3f}")
        if not drafts_are_counted(seen.info):
            evidence.append("SGLang tells only how many tokens it would draft at most: drafted tokens are not reported")
    failure = _wrong_server(seen) or (_not_as_asked(seen) if _asked(seen) else _speculating(seen))
    if failure:
        return Attestation("failed", tuple(evidence), *failure)
    if not _asked(seen):
        return Attestation("off", tuple(evidence))
    if seen.drafted or seen.accepted:
        return Attestation("active", tuple(evidence))
    if seen.rounds:
        reason = f"SGLang verified {seen.rounds} rounds and accepted nothing; it does not tell whether it drafted."
        return Attestation("unverified", tuple(evidence), reason)
    return Attestation("idle", tuple(evidence))


def _asked(seen: Observed) -> str:
    return seen.asked.get("speculative_algorithm", "")


def _wrong_server(seen: Observed) -> tuple[str, str] | None:
    if "speculative_algorithm" not in seen.info:
        return "SGLang does not show its settings in /server_info.", "Use an SGLang that has it (0.5 or newer)."
    model = seen.info.get("model_path")
    if model is not None and str(model) != seen.asked.get("model_path"):
        return (
            f"The server that answers serves {one_line(str(model), 200)}, not {seen.asked.get('model_path')}.",
            "Another program holds the port; run it again.",
        )
    if seen.info.get("disable_radix_cache") is False or seen.cached:
        what = f"{seen.cached} prompt tokens came out of a cache" if seen.cached else "its prefix cache is on"
        return f"SGLang was asked to read every prompt anew, and {what}.", "Remove what turns the cache on."
    return None


def _speculating(seen: Observed) -> tuple[str, str] | None:
    remedy = "Remove what turns speculation on from engine.args, the arm's args and engine.env."
    algorithm = seen.info.get("speculative_algorithm")
    if algorithm or seen.rounds or seen.drafted:
        return f"The arm asks for no speculation, but SGLang has it on ({one_line(str(algorithm), 40)}).", remedy
    return None


def _not_as_asked(seen: Observed) -> tuple[str, str] | None:
    asked, runs = _asked(seen), str(seen.info.get("speculative_algorithm") or "")
    if runs.upper() not in {asked, *_SAME.get(asked, ())}:
        return f"{asked} was asked for, and SGLang runs {runs or 'without speculation'}.", "Read the engine's log."
    for name in _DEPTH:
        told = seen.info.get(name)
        if name in seen.asked and told is not None and str(told) != seen.asked[name]:
            return (
                f"SGLang took {name} = {told}; {seen.asked[name]} was asked for.",
                "Write what it takes, or give its own keys in options.",
            )
    if asked != "NGRAM" and not seen.rounds and seen.longest >= _ROUNDS_NEED_TOKENS:
        return (
            f"{asked} is on, but nothing was verified in answers of up to {seen.longest} tokens.",
            "Read the engine's log.",
        )
    return None


def drafts_are_counted(settings: Mapping[str, Any]) -> bool:
    """Whether the proposed drafts of a server with these `/server_info` settings are a count of drafts."""
    algorithm = str(settings.get("speculative_algorithm") or "").upper()
    return algorithm in _EVERY_ROUND_ALIKE and not settings.get("speculative_adaptive")


def make_ledger(told: Mapping[str, Any], *, counted: bool) -> Ledger:
    """Return the ledger of one answer; all `None` where nothing was verified.

    `counted`: what `drafts_are_counted` says. `spec_correct_drafts_histogram[j]` is how many rounds accepted j tokens.
    """
    rounds = _count(told.get("spec_verify_ct"))
    if not rounds:
        return Ledger()
    histogram = told.get("spec_correct_drafts_histogram")
    accepted, by_position = _count(told.get("spec_num_correct_drafts")), None
    if isinstance(histogram, list) and histogram and all(isinstance(count, int) for count in histogram):
        by_position = tuple(sum(histogram[place + 1 :]) for place in range(len(histogram) - 1))
        if sum(by_position) != accepted or sum(histogram) != rounds:
            by_position = None  # of a tree, or of other rounds than these
    return Ledger(
        drafted=_count(told.get("spec_num_proposed_drafts")) if counted else None,
        accepted=accepted,
        rounds=rounds,
        accepted_by_position=by_position,
    )


def _count(value: object) -> int | None:
    return count_in(value, 2**53)
