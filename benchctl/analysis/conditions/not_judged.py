"""Losslessness where it is not assessed: of overlapping requests, and of sampled answers beside greedy ones.

What a request shares a batch with changes how its numbers are rounded, and with it which of two near-equal tokens is
chosen: on these engines two runs of the same concurrent requests without any speculation differ. A difference from the
baseline then shows nothing about speculation, and equality is chance. So it is with sampled answers: only
their distribution can be compared. A request that failed, a record that is damaged and an answer that is empty or a
loop are flaws all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchctl.analysis.audit.conclude import audit_summary
from benchctl.analysis.audit.results import ArmAudit
from benchctl.analysis.degenerate import degeneration
from benchctl.analysis.results import Losslessness, LosslessVerdict

if TYPE_CHECKING:
    from benchctl.analysis.answers import Answers
    from benchctl.analysis.conditions.split import Group
    from benchctl.analysis.frame import Frame

WHY = "Concurrent outputs are not reproducible on these engines"
SAMPLED = "Single sampled answers cannot be compared (`benchctl verify-sampling` compares distributions)"
MEASURE = "Measure the same arms one request at a time, too: `matrix: {concurrency: [1, …]}`, without `rate`."


def find_not_judged(
    group: Group,
    frame: Frame,
    answers: Answers,
    arm: int,
    *,
    judged_elsewhere: bool,
    audit: ArmAudit | None = None,
) -> Losslessness:
    """Return the verdict on an arm of a condition where equal and different answers show nothing.

    `judged_elsewhere`: whether the run has a condition where they do. `audit`: of overlapping requests, what scoring
    the arm's own answers on the target alone found; that needs no equality with the baseline.
    """
    if audit is not None and (audit.lacking is None or audit.answers):
        return _audited(frame, answers, arm, audit)
    why = WHY if group.overlapping else SAMPLED
    flaws = _flaws(frame, answers, arm)
    if not judged_elsewhere:
        reason = f"{why}, and nothing was measured one request at a time."
    elif flaws:
        reason = f"{why}, so that answers are not compared here."
    else:
        place = "one request at a time was measured" if group.overlapping else "they are greedy"
        reason = f"{why}; whether the arm is lossless is assessed where {place}."
    return Losslessness(
        arm=frame.arms[arm],
        verdict="not judged" if judged_elsewhere and not flaws else "undetermined",
        reason=" ".join([reason, *flaws]),
        counts={},
        comparisons=[],
    )


def _audited(frame: Frame, answers: Answers, arm: int, audit: ArmAudit) -> Losslessness:
    """Return the verdict on an arm of overlapping requests by its audit, whose noise is that of shared batches."""
    flaws = _flaws(frame, answers, arm)
    verdict: LosslessVerdict = "undetermined" if flaws or audit.lacking is not None else "consistent with the target"
    return Losslessness(
        arm=frame.arms[arm],
        verdict="violation" if audit.violates else verdict,
        reason=" ".join([audit_summary(audit), *flaws]),
        counts={},
        comparisons=[],
        audit=audit,
    )


def where_not_judged(groups: Sequence[Group]) -> str | None:
    """Return under which conditions losslessness is not assessed, and why; `None` where it is everywhere."""
    overlapping = [group.key for group in groups if group.overlapping and group.key]
    sampled = [group.key for group in groups if group.sampled and group.key]
    sentences = []
    if overlapping:
        several = sorted({key.concurrency for key in overlapping if key.rate is None})
        rates = sorted({key.rate for key in overlapping if key.rate is not None})
        places = [f"concurrency {', '.join(map(str, several))}"] if several else []
        places += [f"{', '.join(f'{rate:g}' for rate in rates)} requests per second"] if rates else []
        where = " or at ".join(places)
        sentences.append(
            f"Answers are compared one request at a time, not at {where}: {WHY[0].lower()}{WHY[1:]}. There an arm is "
            "assessed by its whole answers alone, scored on the target."
        )
        if not any(group.judged for group in groups):
            sentences.append(f"Nothing was measured one request at a time. {MEASURE}")
    if sampled:
        warm = ", ".join(f"{heat:g}" for heat in sorted({key.temperature for key in sampled}))
        start = "Nor is it assessed" if sentences else "Losslessness is not assessed"
        sentences.append(f"{start} at temperature {warm}. {SAMPLED}.")
    return " ".join(sentences) or None


def _flaws(frame: Frame, answers: Answers, arm: int) -> list[str]:
    """Flawed answers, a sentence per kind: answers of the arm or the baseline that are missing or damaged,
    and the arm's degenerate ones where the baseline's is not."""
    unfit, degenerate = [], []
    for prompt, (task, index) in enumerate(frame.prompts):
        for block, number in enumerate(frame.blocks):
            ours, theirs = (int(frame.row_at[of, block, prompt]) for of in (arm, frame.baseline))
            place = f"block {number + 1}, {task}/{index}"
            wrong = [
                f"{place}: {whose} {answers.flaw[row]}"
                for row, whose in ((theirs, "the baseline's"), (ours, "the arm's"))
                if answers.flaw[row] is not None
            ]
            unfit += wrong
            if wrong or answers.plain[ours]:
                continue
            broken = degeneration(frame.records[ours])
            if broken and not degeneration(frame.records[theirs]):
                degenerate.append(f"{place}: it {broken}")
    found = []
    if unfit:
        found.append(f"{_answers(len(unfit))} missing, failed or damaged ({unfit[0]}).")
    if degenerate:
        found.append(f"{_answers(len(degenerate))} degenerate where the baseline's is sound ({degenerate[0]}).")
    return found


def _answers(count: int) -> str:
    return "1 answer is" if count == 1 else f"{count} answers are"
