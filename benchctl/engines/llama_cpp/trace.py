"""Where the time of a round goes, read from llama-server's log at its most verbose level (`-lv 5`).

At that level one turn of the server's loop leaves, among others, these lines, each with its time to the microsecond:

    start_loop: update slots
    max possible draft: 4            it may draft
    yielding to queue … done         the draft model drafts (an n-gram drafter looks up)
    created speculative checkpoint   where the target's state cannot be rolled back
    generate_draft: … #draft=4       what is verified; without a draft: slot decode token
    decode: n_batch (effective) = …
    yielding to queue … done         the target's pass
    yielding to queue … done         the draft model reads what the target read
    restoring speculative checkpoint after a partial rejection; the next turn evaluates the accepted tokens again

Measured with commit 0c1e570. Writing the lines takes some 20 µs each; nearly all stand outside of the passes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

from benchctl.engines.base import Launch, Pass, PassKind
from benchctl.engines.llama_cpp.dialect import Flags

_LEVEL = "5"
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


def traced(launch: Launch, flags: Flags) -> Launch | None:
    """Return the launch with a log that times every pass; `None` where the binary has no such level."""
    verbosity = flags.get("-lv")
    if verbosity is None or "5: debug" not in verbosity.description:
        return None
    return replace(launch, argv=(*launch.argv, "-lv", _LEVEL))


def read_passes(log: str) -> list[Pass]:
    """Return what the passes in a log took, alike ones together; those that read a prompt are left out."""
    found: defaultdict[tuple[PassKind, int], list[float]] = defaultdict(list)
    again = False
    for turn in _turns(log):
        for kind, width, took in _passes(turn, again=again):
            found[kind, width].append(took)
        again = any(_GOES_BACK in message for _, message in turn)
    return [Pass(*key, len(times), sum(times), median(times)) for key, times in sorted(found.items())]


def _turns(log: str) -> Iterator[list[Line]]:
    turn: list[Line] = []
    for line in log.splitlines():
        found = _TIMED.match(line)
        if found is None:
            continue
        minutes, whole, thousandths, millionths = map(int, found.groups()[:4])
        entry = (60 * minutes + whole + thousandths / 1e3 + millionths / 1e6, found[5])
        if _TURN in entry[1]:
            yield turn
            turn = []
        turn.append(entry)
    yield turn


def _passes(turn: Sequence[Line], *, again: bool) -> Iterator[tuple[PassKind, int, float]]:
    """Yield what one turn did; `again`: the turn before went back to a checkpoint."""
    messages = [message for _, message in turn]
    drafted = next((int(found[1]) for message in messages if (found := _DRAFTED.search(message))), 0)
    if not drafted and not any(_PLAIN in message for message in messages):
        return  # it read a prompt, or nothing
    begins = next((place for place, message in enumerate(messages) if _EVALUATES in message), None)
    if begins is None:
        return
    before, after = turn[:begins], turn[begins:]
    width = drafted + 1
    away = list(_away(before))
    if away:
        yield "draft", drafted, away[0][1] - away[0][0]
    saved = next((time for time, message in before if _SAVED in message), None)
    if saved is not None and away:
        may = next((time for time, message in before if _MAY_DRAFT in message), away[0][0])
        yield "checkpoint", 1, saved - away[0][1] + (away[0][0] - may)
    for kind, (left, back) in zip((_target_pass(drafted, again=again), "draft-read"), _away(after), strict=False):
        yield kind, width, back - left
    for (began, message), (ended, _) in pairwise(after):
        if _GOES_BACK in message:
            yield "restore", 1, ended - began


def _target_pass(drafted: int, *, again: bool) -> PassKind:
    if again:
        return "re-evaluate"
    return "verify" if drafted else "plain"


def _away(lines: Sequence[Line]) -> Iterator[tuple[float, float]]:
    """Yield when the loop left for a computation, and when it was back."""
    left: float | None = None
    for time, message in lines:
        if message.endswith(_LEAVE):
            left = time
        elif message.endswith(_BACK) and left is not None:
            yield left, time
            left = None
