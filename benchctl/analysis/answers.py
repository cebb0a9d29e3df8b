"""The answers of a run, numbered so that equal ones have equal numbers; which are unfit for comparison or degenerate.

An answer with content that repeats itself at its end is not degenerate, nor is a rule of dashes inside a text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from benchctl.analysis.losslessness import FirstDivergence
from benchctl.analysis.output_results import SelfConsistency
from benchctl.data.pool import MISSING
from benchctl.data.record import Record, sha256_text, sha256_tokens

if TYPE_CHECKING:
    from benchctl.analysis.frame import Booleans, Frame, Integers


_FIELDS = attrgetter(
    "content", "content_sha", "token_sha", "n_predicted", "finish_reason", "prompt_sha", "error", "schema_version"
)
"""Every field of an answer but its token ids, which are compared themselves."""

AGREED = 48
"""Characters shown of the text before a divergence."""
CONTINUATION = 64
"""Characters shown of each continuation."""


@dataclass(frozen=True)
class Answers:
    """An entry per record of the frame, and a last entry for a missing record (row -1)."""

    code: Integers
    """Equal for records that are equal in text, token ids, length, ending, prompt and error."""
    flaw: list[str | None]
    """Why an answer cannot be compared, as the end of a sentence (`is missing`); `None` for a sound answer."""
    sound: Booleans
    plain: Booleans
    """Sound, with token ids, and not degenerate: such answers are compared by their numbers alone."""


def find_answers(frame: Frame) -> Answers:
    """Number the distinct answers of a run and find those that cannot be compared."""
    codes: dict[tuple[object, ...], int] = {}
    numbers: list[int] = []
    examples: list[Record] = []
    for record, fields in zip(frame.records, map(_FIELDS, frame.records), strict=True):
        number = codes.setdefault(fields, len(examples))
        if number < len(examples) and examples[number].token_ids != record.token_ids:  # a hash is wrong
            number = codes.setdefault((*fields, *(record.token_ids or (None,))), len(examples))
        if number == len(examples):
            examples.append(record)
        numbers.append(number)
    numbers.append(len(examples))
    flaws = [*(_flaw(record) for record in examples), "is missing"]  # once for all equal answers
    plain = [
        flaw is None and record.token_ids is not None and degeneration(record) is None
        for record, flaw in zip(examples, flaws, strict=False)
    ]
    code = np.array(numbers, dtype=np.int64)
    return Answers(
        code=code,
        flaw=[flaws[number] for number in numbers],
        sound=np.array([flaw is None for flaw in flaws], dtype=bool)[code],
        plain=np.array([*plain, False], dtype=bool)[code],
    )


def _flaw(record: Record) -> str | None:
    if record.error is not None and record.error.kind == MISSING:
        return "is missing"
    if record.error is not None:
        return f"failed ({record.error.kind}: {record.error.message})"
    if record.content is None:
        return "has no text"
    if record.schema_version and record.finish_reason is None:
        return "is cut off: it has no finish reason"
    if record.content_sha and record.content is not None and sha256_text(record.content) != record.content_sha.lower():
        return "is damaged: its text does not match its hash"
    if (
        record.token_sha
        and record.token_ids is not None
        and sha256_tokens(record.token_ids) != record.token_sha.lower()
    ):
        return "is damaged: its token ids do not match their hash"
    return None


INCOMPLETE = "\ufffd"
"""What stands for a character of which not all bytes are there."""


def same_text(first: Record, second: Record) -> bool:
    """Whether two sound answers have the same text and finish reason, as far as both report it."""
    endings = {first.finish_reason, second.finish_reason} - {None}
    return same_characters(first, second) and len(endings) < 2


def same_characters(first: Record, second: Record) -> bool:
    """Whether two answers have the same text; of equal tokens either may lack an incomplete last character."""
    if first.token_ids is None or first.token_ids != second.token_ids:
        return first.content == second.content
    return (first.content or "").rstrip(INCOMPLETE) == (second.content or "").rstrip(INCOMPLETE)


def same_tokens(first: Record, second: Record) -> bool | None:
    """Whether two sound answers have the same tokens; `None` where either has no ids: a server's count shows none."""
    if first.token_ids is None or second.token_ids is None:
        return None
    return first.token_ids == second.token_ids


def same_answer(first: Record, second: Record) -> bool:
    """Whether two sound answers are equal in everything that both report."""
    return same_text(first, second) and same_tokens(first, second) is not False


def find_consistency(frame: Frame, answers: Answers, arm: int) -> SelfConsistency:
    """Compare an arm with itself: prompts that were answered in at least two blocks."""
    rows = frame.row_at[arm]
    sound = answers.sound[rows]
    codes = np.where(sound, answers.code[rows], -1)
    repeated = sound.sum(axis=0) > 1
    varied = repeated & (np.where(sound, codes, codes.max(axis=0)) != codes.max(axis=0)).any(axis=0)
    differing = []
    for prompt in np.flatnonzero(varied):
        repeats = [frame.records[row] for row in rows[sound[:, prompt], prompt]]
        if any(not same_answer(repeats[0], repeat) for repeat in repeats[1:]):
            task, index = frame.prompts[prompt]
            differing.append(f"{task}/{index}")
    compared = int(repeated.sum())
    return SelfConsistency(
        arm=frame.arms[arm], prompts=compared, reproducible=compared - len(differing), differing=differing
    )


def find_divergence(baseline: Record, arm: Record) -> FirstDivergence | None:
    """Return the first token (by characters where an answer has no ids) at which the answers differ, if they do."""
    ours, theirs = arm.content or "", baseline.content or ""
    split = common_length(ours, theirs)
    by_token = None not in (baseline.token_ids, arm.token_ids) and baseline.token_ids != arm.token_ids
    if ours == theirs and not by_token:
        return None
    location: dict[str, object] = {"index": split, "unit": "character"}
    if by_token:
        ids, arm_ids = baseline.token_ids or [], arm.token_ids or []
        index = common_length(arm_ids, ids)
        location = {
            "index": index,
            "unit": "token",
            "baseline_token": _at(ids, index),
            "arm_token": _at(arm_ids, index),
        }
    return FirstDivergence.model_validate(
        {
            **location,
            "agreed_text": ours[max(0, split - AGREED) : split],
            "baseline_text": theirs[split : split + CONTINUATION],
            "arm_text": ours[split : split + CONTINUATION],
        }
    )


def common_length(first: Sequence[object], second: Sequence[object]) -> int:
    """Return the length of the longest common prefix of two strings or of two lists, by bisection."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[low:middle] == second[low:middle] else (low, middle - 1)
    return low


def _at(tokens: Sequence[int], index: int) -> int | None:
    return tokens[index] if index < len(tokens) else None


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


def runs_on(record: Record, baseline: Record) -> str | None:
    """Say that an answer does not end where `baseline` does, as the end of a sentence; `None` when it ends."""
    if record.finish_reason != "length" or baseline.finish_reason != "stop":
        return None
    unit, lengths = "tokens", [len(answer.token_ids or ()) for answer in (record, baseline)]
    if None in (record.token_ids, baseline.token_ids):
        unit, lengths = "characters", [len(answer.content or "") for answer in (record, baseline)]
    if lengths[0] < RUNS_ON * max(1, lengths[1]):
        return None
    return f"does not end: cut off at {lengths[0]} {unit}, while the other ended after {lengths[1]}"


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
    """Return the largest share of token ids, or of text, that is a unit repeated at least `LOOP_REPEATS` times.

    Anywhere in it, unlike a loop that an answer ends in; 0 where that is shorter than `LOOP_MIN`.
    """
    shortest = LOOP_MIN["characters" if isinstance(sequence, str) else "tokens"]
    _, numbers = np.unique(np.array(list(sequence)), return_inverse=True)
    size, longest = len(numbers), 0
    for period in range(1, min(LONGEST_PHRASE, size // LOOP_REPEATS) + 1):
        differs = np.flatnonzero(numbers[period:] != numbers[:-period])
        equal = np.diff(np.concatenate([[-1], differs, [size - period]])) - 1  # lengths of the runs of equal pairs
        repeated = int(equal.max()) + period
        if repeated >= max(shortest, LOOP_REPEATS * period):
            longest = max(longest, repeated)
    return longest / size if size else 0.0


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:39] + "…")
