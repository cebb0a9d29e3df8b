"""Whether a process ran steadily while it was measured: its warm-up, pauses in answers, and rates of like answers.

A process is a (block, arm, attempt). The rules are simple ones of benchmark harnesses: a warm-up is over when a request
takes as long as the one before (pyperf compares neighbouring values within 10 %, too).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import inf
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from benchctl.analysis.cells import speculates
from benchctl.analysis.record_checks import Observation
from benchctl.analysis.result import Fact
from benchctl.data.record import Record

if TYPE_CHECKING:
    from benchctl.analysis.frame import Frame

STEADY = 0.10
"""Two warm-up requests are alike whose times differ by no more than this share of the longer."""
MOST_WARM_UPS = 10
WARM_UP_S = 30.0
"""No further warm-up request is sent once those after the first took so long together."""
SHORTEST_PAUSE_S = 1.0
"""A shorter wait is not called a pause: a busy machine alone has such."""
PAUSE = 5.0
"""A wait is a pause where it is so many times the typical longest wait of the process's other answers. In 60 kept cells
of four engines the longest wait was at most 5.2 times that, and then below 0.35 s."""
UNSTEADY = 2.0
"""An answer without a draft is unlike the others where it decodes so many times faster or slower than their median. Of
25 kept cells without speculation, on CPUs and GPUs, all answers are within 1.5, but those of one: 0.22 to 2.3."""
LEAST_TOKENS = 8
"""The rate of a shorter answer says little."""
LONG_PROMPT = 4
"""A prompt so many times the typical one explains a lower rate."""
ENOUGH_ANSWERS = 4
_FIRST = "before the first token"


def is_steady(seconds: Sequence[float]) -> bool:
    """Whether the last two of a process's warm-up requests took the same time."""
    return len(seconds) > 1 and abs(seconds[-1] - seconds[-2]) <= STEADY * max(seconds[-2:])


def warm_up_ended(seconds: Sequence[float]) -> bool:
    """Whether no further warm-up request is to be sent after those that took so many seconds."""
    return is_steady(seconds) or len(seconds) >= MOST_WARM_UPS or sum(seconds[1:]) >= WARM_UP_S


def never_steady(seconds: Sequence[float]) -> bool:
    """Whether a warm-up did not end steady; of one that was too short to show it, this is not known."""
    return len(seconds) > 1 and not is_steady(seconds)


class Pause(NamedTuple):
    """A wait that the other answers of its process do not explain."""

    record: Record
    seconds: float
    position: str
    """In the answer, in words."""

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s {self.position} of {self.record.task}/{self.record.prompt_idx}"


def find_pauses(records: Sequence[Record], *, overlapping: bool = False) -> list[Pause]:
    """Return the pauses in the measured answers of a process, whose `records` are given, warm-ups included.

    Compared are the longest wait between tokens, the wait after the last token, and the time to the first, that in
    proportion to the prompt. Where requests are `overlapping`, they wait for each other: the time to the first token is
    not compared, and of a wait between tokens not the part in which another request waited for its first token.
    """
    answers = [record for record in records if record.error is None]
    before_first = _times_before_first_tokens(answers) if overlapping else []
    waits: dict[str, list[tuple[Record, float]]] = {
        "between two tokens": [
            (record, _longest_gap(record, record.burst_gaps_s, before_first))
            for record in answers
            if record.burst_gaps_s
        ],
        "after the last token": [
            (record, record.e2e_s - record.ttft_s - record.decode_s)
            for record in answers
            if record.e2e_s is not None and record.ttft_s is not None and record.decode_s is not None
        ],
    }
    if not overlapping:
        waits[_FIRST] = [(record, record.ttft_s) for record in answers if record.ttft_s is not None]
    return [
        Pause(record, seconds, position)
        for position, measured in waits.items()
        for record, seconds in measured
        if record.phase == "measure" and seconds >= SHORTEST_PAUSE_S
        if seconds > PAUSE * _explained(record, position, measured)
    ]


def _times_before_first_tokens(answers: Sequence[Record]) -> list[tuple[float, float]]:
    """Return when some request waited for its first token, in seconds of the cell: intervals that do not overlap."""
    merged: list[tuple[float, float]] = []
    for sent_s, ttft_s in sorted(
        (record.sent_s, record.ttft_s) for record in answers if record.sent_s is not None and record.ttft_s is not None
    ):
        if merged and sent_s <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], sent_s + ttft_s)
        else:
            merged.append((sent_s, sent_s + ttft_s))
    return merged


def _longest_gap(record: Record, gaps: Sequence[float], before_first: Sequence[tuple[float, float]]) -> float:
    """Return the longest gap between bursts of tokens, without what of it lies in the intervals `before_first`.

    The time within bursts is not known, so a gap may begin later than the gaps before it say, by `within` at most.
    """
    if not before_first or record.sent_s is None or record.ttft_s is None:
        return max(gaps)
    begin, within = record.sent_s + record.ttft_s, max(0.0, (record.decode_s or 0.0) - sum(gaps))
    longest = 0.0
    for gap in gaps:
        if gap > longest:
            others = sum(max(0.0, min(begin + gap + within, end) - max(begin, start)) for start, end in before_first)
            longest = max(longest, gap - others)
        begin += gap
    return longest


def _explained(record: Record, position: str, waits: Sequence[tuple[Record, float]]) -> float:
    """Return how long an answer's wait is by those of the other answers; infinite where there is no other."""
    size = record.read_tokens if position == _FIRST else None
    return median(
        [
            seconds * (max(1.0, size / other_record.read_tokens) if size and other_record.read_tokens else 1.0)
            for other_record, seconds in waits
            if other_record is not record
        ]
        or [inf]
    )


def find_swing(records: Sequence[Record]) -> dict[str, float] | None:
    """Return the rates of a process whose like answers, none with a draft, decoded at unlike rates; else `None`.

    Two answers of at least `LEAST_TOKENS` show it, or the first that was sent: it was not warm.
    """
    rates = [
        (record, rate)
        for record in sorted(records, key=lambda record: record.sent_s or 0.0)
        if record.phase == "measure" and record.n_predicted >= LEAST_TOKENS
        if (rate := record.client_tok_per_sec or record.tok_per_sec)
    ]
    if len(rates) < ENOUGH_ANSWERS:
        return None
    typical, size = median(rate for _, rate in rates), median(record.prompt_tokens or 0 for record, _ in rates)
    unlike = [
        record
        for record, rate in rates
        if not typical / UNSTEADY <= rate <= typical * UNSTEADY and (record.prompt_tokens or 0) <= LONG_PROMPT * size
    ]
    if len(unlike) < 2 and rates[0][0] not in unlike:
        return None
    lowest, highest = min(rate for _, rate in rates), max(rate for _, rate in rates)
    return {"answers": len(rates), "lowest": lowest, "highest": highest, "unlike": len(unlike), "times": UNSTEADY}


def check_steadiness(frame: Frame, warm_ups: Sequence[Record]) -> Iterator[Observation]:
    """Find pauses, and processes that were never steady."""
    manifest = frame.manifest
    overlapping = {arm.name for arm in manifest.arms if arm.overlapping} if manifest else set()
    processes: dict[tuple[str, int, int], list[Record]] = defaultdict(list)
    for record in (*warm_ups, *frame.records):
        processes[record.label, record.block, record.attempt].append(record)
    for number, arm in enumerate(frame.arms):
        repeated = [cell for cell in (manifest.cells if manifest else ()) if cell.arm == arm and cell.discarded]
        paused = [_fact("measured again", cell.block, reason=cell.discarded) for cell in repeated]
        unsteady: list[Fact] = []
        for block, records in ((block, records) for (label, block, _), records in processes.items() if label == arm):
            pauses = find_pauses(records, overlapping=arm in overlapping)
            paused += [_fact("pause", block, pause=str(pause), seconds=pause.seconds) for pause in pauses]
            warm_up = [record.e2e_s for record in records if record.phase == "warmup" and record.e2e_s is not None]
            comparable = not speculates(frame, number) and arm not in overlapping
            steady = [record for record in records if all(record is not pause.record for pause in pauses)]
            unsteady += [_fact("warm-up", block, seconds=warm_up)] if never_steady(warm_up) else []
            swing = find_swing(steady) if comparable else None
            unsteady += [_fact("rates", block, **swing)] if swing else []
        if paused:
            yield Observation("pause", arm, tuple(paused))
        if unsteady:
            yield Observation("unsteady", arm, tuple(unsteady))


def _fact(code: str, block: int, **values: object) -> Fact:
    return Fact(code=code, values={"block": block + 1, **values})
