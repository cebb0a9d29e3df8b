"""What SGLang tells of the drafts of one answer, in `meta_info` of `/generate` and `sglext` of its OpenAI routes.

`spec_verify_ct` are the rounds and `spec_num_correct_drafts` the accepted draft tokens. `spec_num_proposed_drafts` is
no count: it is rounds × (`speculative_num_draft_tokens` − 1). Where every round drafts exactly that many it is what was
drafted; an n-gram lookup that finds less, and a depth that adapts, make it nominal, and `drafted` is then not told.
(SGLang 0.5.23, `tokenizer_manager.py`, `_calculate_spec_decoding_metrics`.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchctl.engines.base import Ledger
from benchctl.engines.common.stream import count_in

_EVERY_ROUND_ALIKE = frozenset({"EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "FROZEN_KV_MTP", "DFLASH"})


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
