"""Losslessness where it is not assessed: of overlapping requests, and of sampled answers beside greedy ones.

What a request shares a batch with changes how its numbers are rounded, and with it which of two near-equal tokens is
chosen: on these engines two runs of the same concurrent requests without any speculation differ. A difference from the
baseline then shows nothing about speculation, and equality is chance. So it is with sampled answers: only
their distribution can be compared. A request that failed, a record that is damaged and an answer that is empty or a
loop are flaws all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchctl.analysis.answers import degeneration
from benchctl.analysis.conditions.sweep import SAMPLED, WHY
from benchctl.analysis.losslessness import ArmAudit
from benchctl.analysis.results import Losslessness, LosslessVerdict
from benchctl.lossless.conclude import audit_summary, power_sentence

if TYPE_CHECKING:
    from benchctl.analysis.answers import Answers
    from benchctl.analysis.conditions.split import Group
    from benchctl.analysis.frame import Frame


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
    tested = audit.lacking is None and not audit.violates
    unclear = flaws or not (tested and audit.shows)
    verdict: LosslessVerdict = "undetermined" if unclear else "consistent with the target"
    return Losslessness(
        arm=frame.arms[arm],
        verdict="violation" if audit.violates else verdict,
        reason=" ".join([*([power_sentence(audit)] if tested else []), audit_summary(audit), *flaws]),
        counts={},
        comparisons=[],
        audit=audit,
    )


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
