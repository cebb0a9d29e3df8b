"""Checking that SGLang ran as its command line requests, by its `/server_info` and by the figures of its answers.

`/server_info` holds the settings as SGLang resolved them, which may differ from those requested.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchctl.engines.base import Attestation
from benchctl.engines.common.launched_server import concluded, drafted_nothing, other_model, unrequested
from benchctl.engines.common.log import READ_THE_LOG, Reason
from benchctl.text import one_line

_SETTINGS = (
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
"""SGLang's name of an algorithm after resolving it, where that differs."""
_EVERY_ROUND_ALIKE = frozenset({"EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "FROZEN_KV_MTP", "DFLASH"})


@dataclass(frozen=True)
class SglangObserved:
    """What was observed of a cell."""

    requested: Mapping[str, str]
    """The options of the command line by name without dashes, underscores for them."""
    info: Mapping[str, Any]
    """`/server_info`; empty where it is not available."""
    drafted: int | None
    rounds: int
    accepted: int
    tokens: int
    """Of all answers."""
    longest: int
    cached: int
    """Prompt tokens that were taken from a cache."""


def attest(observed: SglangObserved) -> Attestation:
    """Return the attestation of a cell. It fails closed: without evidence there is no confirmation."""
    evidence = [
        f"GET /server_info: {key} = {one_line(str(observed.info[key]), 80)}"
        for key in _SETTINGS
        if key in observed.info
    ]
    counted = "not reported" if observed.drafted is None else observed.drafted
    evidence.append(f"answers: {observed.rounds} rounds, {counted} drafted, {observed.accepted} accepted")
    if observed.rounds:
        evidence.append(
            f"SGLang's own acceptance length (its bonus token included): {observed.tokens / observed.rounds:.3f}"
        )
        if not drafts_are_counted(observed.info):
            evidence.append("SGLang reports only the maximum number of draft tokens: drafted tokens are not reported")
    failure = _wrong_server(observed) or (
        _not_as_requested(observed) if _requested_algorithm(observed) else _speculating(observed)
    )
    drafted, requested = observed.drafted or observed.accepted, bool(_requested_algorithm(observed))
    if requested and not failure and not drafted and observed.rounds:
        reason = (
            f"SGLang verified {observed.rounds} rounds and accepted nothing; it does not report whether it drafted."
        )
        return Attestation("unverified", tuple(evidence), reason)
    return concluded(evidence, failure, requested=requested, drafted=drafted)


def _requested_algorithm(observed: SglangObserved) -> str:
    return observed.requested.get("speculative_algorithm", "")


def _wrong_server(observed: SglangObserved) -> Reason | None:
    if "speculative_algorithm" not in observed.info:
        return "SGLang does not report its settings in /server_info.", "Use an SGLang that has it (0.5 or newer)."
    model = observed.info.get("model_path")
    if model is not None and (other := other_model(str(model), observed.requested.get("model_path"))):
        return other
    if observed.info.get("disable_radix_cache") is False or observed.cached:
        what = (
            f"{observed.cached} prompt tokens were taken from a cache" if observed.cached else "its prefix cache is on"
        )
        return f"Prompts are to be read without a cache, but {what}.", "Remove what turns the cache on."
    return None


def _speculating(observed: SglangObserved) -> Reason | None:
    algorithm = observed.info.get("speculative_algorithm")
    if algorithm or observed.rounds or observed.drafted:
        return unrequested(f"SGLang has it on ({one_line(str(algorithm), 40)})")
    return None


def _not_as_requested(observed: SglangObserved) -> Reason | None:
    algorithm, runs = _requested_algorithm(observed), str(observed.info.get("speculative_algorithm") or "")
    if runs.upper() not in {algorithm, *_SAME.get(algorithm, ())}:
        return f"{algorithm} was requested, but SGLang runs {runs or 'without speculation'}.", READ_THE_LOG
    for name in _DEPTH:
        runs_with = observed.info.get(name)
        if name in observed.requested and runs_with is not None and str(runs_with) != observed.requested[name]:
            return (
                f"SGLang took {name} = {runs_with}; {observed.requested[name]} was requested.",
                "Write what it takes, or give its own keys in options.",
            )
    if algorithm != "NGRAM" and not observed.rounds:
        return drafted_nothing(algorithm, observed.longest, did="verified")
    return None


def drafts_are_counted(settings: Mapping[str, Any]) -> bool:
    """Whether a server with these `/server_info` settings counts its proposed drafts."""
    algorithm = str(settings.get("speculative_algorithm") or "").upper()
    return algorithm in _EVERY_ROUND_ALIKE and not settings.get("speculative_adaptive")
