"""The fork: where two answers stop being the same, and how each goes on."""

from __future__ import annotations

from collections.abc import Sequence

from benchctl.analysis.results import Fork
from benchctl.data.record import Record

AGREED = 48
"""Characters shown of what both said last."""
CONTINUATION = 64
"""Characters shown of how each went on."""


def find_fork(baseline: Record, arm: Record) -> Fork | None:
    """Return the first token (by characters where an answer has no ids) at which the answers differ, if one does."""
    ours, theirs = arm.content or "", baseline.content or ""
    split = common_length(ours, theirs)
    by_token = None not in (baseline.token_ids, arm.token_ids) and baseline.token_ids != arm.token_ids
    if ours == theirs and not by_token:
        return None
    told: dict[str, object] = {"index": split, "unit": "character"}
    if by_token:
        ids, others = baseline.token_ids or [], arm.token_ids or []
        at = common_length(others, ids)
        told = {"index": at, "unit": "token", "baseline_token": _at(ids, at), "arm_token": _at(others, at)}
    return Fork.model_validate(
        {
            **told,
            "agreed_text": ours[max(0, split - AGREED) : split],
            "baseline_text": theirs[split : split + CONTINUATION],
            "arm_text": ours[split : split + CONTINUATION],
        }
    )


def common_length(left: Sequence[object], right: Sequence[object]) -> int:
    """Return the length of the longest common prefix of two strings or of two lists, by bisection."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if left[low:middle] == right[low:middle] else (low, middle - 1)
    return low


def _at(tokens: Sequence[int], index: int) -> int | None:
    return tokens[index] if index < len(tokens) else None
