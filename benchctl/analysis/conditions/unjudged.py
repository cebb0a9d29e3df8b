"""Losslessness where several requests were in flight: it is not judged, but what is broken in itself is still named.

What a request shares a batch with changes how its numbers are rounded, and with it which of two near-equal tokens is
chosen: on these engines two runs of the same concurrent requests without any speculation differ. A difference from the
baseline then says nothing of speculation, and equality is luck. A request that failed, a record that is damaged and an
answer that is empty or a loop are flaws all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchctl.analysis.degenerate import degeneration
from benchctl.analysis.results import Losslessness

if TYPE_CHECKING:
    from benchctl.analysis.answers import Answers
    from benchctl.analysis.conditions.split import Group
    from benchctl.analysis.frame import Frame

WHY = "Concurrent outputs are not reproducible on these engines"
MEASURE = "Measure the same arms one request at a time, too: `concurrency: [1, …]`, without `rate`."


def find_unjudged(frame: Frame, answers: Answers, arm: int, *, judged_elsewhere: bool) -> Losslessness:
    """Return what can be said of an arm whose requests overlapped.

    `judged_elsewhere`: whether the run has a condition of one request at a time.
    """
    flaws = _flaws(frame, answers, arm)
    if not judged_elsewhere:
        reason = f"{WHY}, and nothing was measured one request at a time."
    elif flaws:
        reason = f"{WHY}, so that answers are not compared here."
    else:
        reason = f"{WHY}; whether the arm is lossless is judged where one request at a time was measured."
    return Losslessness(
        arm=frame.arms[arm],
        verdict="not judged" if judged_elsewhere and not flaws else "undetermined",
        reason=" ".join([reason, *flaws]),
        counts={},
        comparisons=[],
    )


def where_unjudged(groups: Sequence[Group]) -> str | None:
    """Say of a run's conditions where losslessness is not judged, and why; `None` where it is everywhere."""
    overlapping = [group.condition for group in groups if group.overlapping and group.condition]
    if not overlapping:
        return None
    alone = len(overlapping) < len(groups)
    several = sorted({one.concurrency for one in overlapping if one.rate is None})
    rates = sorted({one.rate for one in overlapping if one.rate is not None})
    places = [f"concurrency {', '.join(map(str, several))}"] if several else []
    places += [f"{', '.join(f'{rate:g}' for rate in rates)} requests a second"] if rates else []
    where = f"Losslessness is judged one request at a time, not at {' or at '.join(places)}: {WHY[0].lower()}{WHY[1:]}."
    return where if alone else f"{where} Nothing was measured one request at a time. {MEASURE}"


def _flaws(frame: Frame, answers: Answers, arm: int) -> list[str]:
    """What is broken in itself, a sentence a kind: answers of the arm or the baseline that are not there or damaged,
    and the arm's degenerate ones where the baseline's is not."""
    unfit, degenerate = [], []
    for prompt, (task, index) in enumerate(frame.prompts):
        for block, number in enumerate(frame.blocks):
            ours, theirs = (int(frame.row_at[one, block, prompt]) for one in (arm, frame.baseline))
            place = f"block {number + 1}, {task}/{index}"
            wrong = [
                f"{place}: {whose} {answers.flaw[row]}"
                for row, whose in ((theirs, "the baseline's"), (ours, "the arm's"))
                if answers.flaw[row] is not None
            ]
            unfit += wrong
            if wrong or answers.plain[ours]:
                continue
            spoilt = degeneration(frame.records[ours])
            if spoilt and not degeneration(frame.records[theirs]):
                degenerate.append(f"{place}: it {spoilt}")
    found = []
    if unfit:
        found.append(f"{_answers(len(unfit))} missing, failed or damaged ({unfit[0]}).")
    if degenerate:
        found.append(f"{_answers(len(degenerate))} degenerate where the baseline's is sound ({degenerate[0]}).")
    return found


def _answers(count: int) -> str:
    return "1 answer is" if count == 1 else f"{count} answers are"
