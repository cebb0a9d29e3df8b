"""The fork: where two answers stop being the same, and how each goes on."""

from __future__ import annotations

from collections.abc import Sequence

from benchctl.analysis.results import Fork
from benchctl.records import Record

AGREED = 48
"""Characters shown of what both said last."""
CONTINUATION = 64
"""Characters shown of how each went on."""


def find_fork(baseline: Record, arm: Record) -> Fork | None:
    """Return the first token (by characters where an answer has no ids) at which the answers differ, if one does."""
    ours, theirs = arm.content or "", baseline.content or ""
    split = common_length(ours, theirs)
    by_text = None
    if ours != theirs:
        by_text = Fork(
            index=split,
            unit="character",
            agreed_text=ours[max(0, split - AGREED) : split],
            baseline_text=theirs[split : split + CONTINUATION],
            arm_text=ours[split : split + CONTINUATION],
        )
    if baseline.token_ids is None or arm.token_ids is None or baseline.token_ids == arm.token_ids:
        return by_text
    at = common_length(arm.token_ids, baseline.token_ids)
    found = by_text or Fork(index=at, unit="token", agreed_text=ours[-AGREED:], baseline_text="", arm_text="")
    tokens = {"baseline_token": _at(baseline.token_ids, at), "arm_token": _at(arm.token_ids, at)}
    return found.model_copy(update={"index": at, "unit": "token", **tokens})


def common_length(left: Sequence[object], right: Sequence[object]) -> int:
    """Return the length of the longest common prefix of two strings or of two lists, by bisection."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if left[low:middle] == right[low:middle] else (low, middle - 1)
    return low


def _at(tokens: Sequence[int], index: int) -> int | None:
    return tokens[index] if index < len(tokens) else None
