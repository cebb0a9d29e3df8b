"""Time per pass of llama-server, read from its most verbose log."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from benchctl.engines.base import Pass, PassKind

_TIMED = re.compile(r"^(\d{1,9})\.(\d\d)\.(\d{3})\.(\d{3}) [A-Z] (.*)$")
_TURN = "start_loop: update slots"
_LEAVE, _BACK = ": yielding to queue", ": done yielding to queue"
_DRAFTED = re.compile(r"generate_draft: .*#draft=(\d{1,6})\b")
_PLAIN = "slot decode token"
_MAY_DRAFT = "max possible draft:"
_EVALUATES = "n_batch (effective)"
_SAVED = "created speculative checkpoint"
_GOES_BACK = "restoring speculative checkpoint"

Line = tuple[float, str]
"""Seconds since the server started, and the message."""


def read_passes(log: str) -> list[Pass]:
    """Return what the passes in a log took, alike ones together; those that read a prompt are left out.

    At the most verbose level (`-lv 5`; commit 0c1e570) a turn of the server's loop leaves these lines, among others:

        start_loop: update slots
        max possible draft: 4            it may draft
        yielding to queue … done         the draft model drafts (an n-gram drafter looks up)
        created speculative checkpoint   where the target's state cannot be rolled back
        generate_draft: … #draft=4       what is verified; without a draft: slot decode token
        decode: n_batch (effective) = …
        yielding to queue … done         the target's pass
        yielding to queue … done         the draft model reads what the target read
        restoring speculative checkpoint after a partial rejection; the next turn evaluates the accepted tokens again
    """
    durations: defaultdict[tuple[PassKind, int], list[float]] = defaultdict(list)
    rolled_back = False
    for turn in _turns(log):
        for kind, width, took in _passes(turn, rolled_back=rolled_back):
            durations[kind, width].append(took)
        rolled_back = any(_GOES_BACK in message for _, message in turn)
    return [Pass(*key, len(times), sum(times), median(times)) for key, times in sorted(durations.items())]


def _turns(log: str) -> Iterator[list[Line]]:
    turn: list[Line] = []
    for line in log.splitlines():
        match = _TIMED.match(line)
        if match is None:
            continue
        minutes, seconds, thousandths, millionths = map(int, match.groups()[:4])
        entry = (60 * minutes + seconds + thousandths / 1e3 + millionths / 1e6, match[5])
        if _TURN in entry[1]:
            yield turn
            turn = []
        turn.append(entry)
    yield turn


def _passes(turn: Sequence[Line], *, rolled_back: bool) -> Iterator[tuple[PassKind, int, float]]:
    """Yield what a turn did; `rolled_back`: the turn before went back to a checkpoint."""
    messages = [message for _, message in turn]
    drafted = next((int(match[1]) for message in messages if (match := _DRAFTED.search(message))), 0)
    if not drafted and not any(_PLAIN in message for message in messages):
        return  # it read a prompt, or nothing
    begins = next((index for index, message in enumerate(messages) if _EVALUATES in message), None)
    if begins is None:
        return
    before, after = turn[:begins], turn[begins:]
    width = drafted + 1
    computed = list(_computations(before))
    if computed:
        yield "draft", drafted, computed[0][1] - computed[0][0]
    saved = next((time for time, message in before if _SAVED in message), None)
    if saved is not None and computed:
        may = next((time for time, message in before if _MAY_DRAFT in message), computed[0][0])
        yield "checkpoint", 1, saved - computed[0][1] + (computed[0][0] - may)
    target: PassKind = "re-evaluate" if rolled_back else "verify" if drafted else "plain"
    kinds: tuple[PassKind, ...] = (target, "draft-read")
    for kind, (left_at, back) in zip(kinds, _computations(after), strict=False):
        yield kind, width, back - left_at
    for (began, message), (ended, _) in pairwise(after):
        if _GOES_BACK in message:
            yield "restore", 1, ended - began


def _computations(lines: Sequence[Line]) -> Iterator[tuple[float, float]]:
    """Yield start and end of each computation for which the loop left its queue, in seconds since server start."""
    left_at: float | None = None
    for time, message in lines:
        if message.endswith(_LEAVE):
            left_at = time
        elif message.endswith(_BACK) and left_at is not None:
            yield left_at, time
            left_at = None
