"""Degenerate answers: empty, looping, or made of reserved tokens; that two of them are equal shows little.

The thresholds are strict: an answer with content that repeats itself at its end is not degenerate, nor is a rule of
dashes inside a text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from benchctl.data.record import Record

LOOP_SHARE = 0.75
"""A loop is degenerate when it fills so much of the answer, up to its end."""
LOOP_MIN = {"tokens": 24, "characters": 96}
"""… and is at least so long."""
LOOP_UNIT = {"tokens": 16, "characters": 64}
"""Longest repeated unit that is searched for."""
LOOP_REPEATS = 4
"""Fewest repetitions that make a loop."""
LONGEST_PHRASE = 64
"""Longest unit, in tokens (or characters), of a repetition anywhere in an answer."""
RUNS_ON = 4
"""An answer that was cut off at the limit does not end when the other answer ended at a quarter of it."""

_RESERVED = re.compile(
    r"(?:<\|?[^<>\s]{0,24}?(?:reserved|unused|pad)[^<>\s]{0,40}>|\[(?:unused|PAD)\d{0,6}\]|<0x[0-9A-F]{2}>){4,}",
    re.IGNORECASE,
)
_BROKEN = re.compile(r"[\ufffd\x00-\x08\x0e-\x1a\x1c-\x1f]{8,}")
_BROKEN_ONE = re.compile(_BROKEN.pattern.removesuffix("{8,}"))


def degeneration(record: Record) -> str | None:
    """Say how an answer is degenerate, as the end of a sentence about it (`is empty`); `None` when it is not."""
    text = record.content or ""
    if not text.strip():
        return "is empty" if not text else "is white space only"
    if "<" in text or "[" in text:
        reserved = _RESERVED.search(text)
        if reserved:
            return f"runs through reserved or byte tokens ({_quoted(reserved.group())})"
    broken = _BROKEN.search(text) if _BROKEN_ONE.search(text[::8]) else None  # eight in a row are not missed
    if broken:
        return f"runs through {len(broken.group())} characters that are broken UTF-8 or control characters"
    unit, sequence = ("characters", text) if record.token_ids is None else ("tokens", record.token_ids)
    period, length = find_loop(sequence, LOOP_UNIT[unit], max(LOOP_MIN[unit], int(LOOP_SHARE * len(sequence))))
    if period:
        repeated = f"{period} {unit if period > 1 else unit[:-1]}"
        if unit == "characters":
            repeated += f" ({_quoted(text[-period:])})"
        return f"repeats {repeated} over {length} of its {len(sequence)} {unit}"
    return None


def runs_on(record: Record, other: Record) -> str | None:
    """Say that an answer does not end where `other` does, as the end of a sentence; `None` when it ends."""
    if record.finish_reason != "length" or other.finish_reason != "stop":
        return None
    if record.n_predicted < RUNS_ON * max(1, other.n_predicted):
        return None
    return f"does not end: cut off at {record.n_predicted} tokens, while the other ended after {other.n_predicted}"


def find_loop(sequence: Sequence[object], longest_unit: int, at_least: int) -> tuple[int, int]:
    """Return (period, length) of a loop that ends `sequence` and is `at_least` long; (0, 0) when there is none."""
    size = len(sequence)
    for period in range(1, min(longest_unit, size // LOOP_REPEATS) + 1):
        if sequence[-1] != sequence[-1 - period]:
            continue
        needed = max(at_least, LOOP_REPEATS * period)
        if needed <= size and sequence[size - needed : size - period] == sequence[size - needed + period :]:
            start = size - needed
            while start > 0 and sequence[start - 1] == sequence[start - 1 + period]:
                start -= 1
            return period, size - start
    return 0, 0


def repeated_share(sequence: Sequence[object]) -> float:
    """Return the largest share of token ids, or of text, that is one unit repeated at least `LOOP_REPEATS` times.

    Anywhere in it, unlike a loop that an answer ends in; 0 where that is shorter than `LOOP_MIN`.
    """
    least = LOOP_MIN["characters" if isinstance(sequence, str) else "tokens"]
    _, numbers = np.unique(np.array(list(sequence)), return_inverse=True)
    size, longest = len(numbers), 0
    for period in range(1, min(LONGEST_PHRASE, size // LOOP_REPEATS) + 1):
        differs = np.flatnonzero(numbers[period:] != numbers[:-period])
        equal = np.diff(np.concatenate([[-1], differs, [size - period]])) - 1  # lengths of the runs of equal pairs
        repeated = int(equal.max()) + period
        if repeated >= max(least, LOOP_REPEATS * period):
            longest = max(longest, repeated)
    return longest / size if size else 0.0


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:39] + "…")
