"""What to run, in sentences: what to do with a group of arms, and what shows it for a task."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from benchctl.analysis.advice import ENOUGH_PROMPTS, damaged_arms
from benchctl.analysis.outcome import disturbances
from benchctl.text import listed, plural
from benchctl.words import numbers
from benchctl.words import verdict as verdict_words
from benchctl.words.outcome import REPEAT

if TYPE_CHECKING:
    from benchctl.analysis.decision_results import Advice, AdviceReason, GroupAction, GroupDecision
    from benchctl.analysis.results import Analysis

_NO_ARM: dict[AdviceReason, str] = {
    "nothing drafted": "Nothing was drafted, or no answer was timed in both arms.",
    "all lossy": "Every arm is lossy by design.",
    "all damaged": "The output of every arm is damaged.",
    "all slower": "Every arm is slower; {ran}.",
    "no interval": "Not known: {ran}, with too few blocks for an interval.",
    "speed unknown": "Not known: {ran}. {conclusion}",
    "within": "Within ±5 %: {ran}.",
    "undecided": "Undecided: {ran}, which includes 1.00×.",
    "not shown to draft": "{ran}, but it is not shown that speculation is the cause. {explanation}",
    "output not shown": "{ran}, but its output is not shown to be the target's own: {lossless}.",
}
_ALONE: dict[GroupAction, str] = {
    "nothing drafted": "Nothing was drafted: run the target alone.",
    "none is sound": "Run the target alone: every arm that drafted {unsound}.",
    "not shown to draft": "No advice: it is not shown that {arms} speculated; the difference may have another cause.",
    "output not known": "Run the target alone until it is known whether the faster arms' output is the target's own.",
    "do not speculate": "Do not speculate: run the target alone.",
    "undecided": "Run the target alone until it is decided: more repetitions (--blocks auto) would.",
    "not comparable": "No advice: at least three repetitions on equal terms are needed (--blocks auto).",
}
_REMARKS = {
    "identical": "",
    "exact": "its output is exact, not identical",
    "consistent with the target": "its output is consistent with the target, not identical",
}


def action(analysis: Analysis, group: GroupDecision) -> str:
    """Return what to do, as the advice for all tasks and for each has it; none of a machine that was disturbed."""
    overall = group.overall
    if (disturbed := disturbances(analysis)) and group.action in ("run", "by task", "do not speculate", "undecided"):
        return f"No advice: the machine was {listed(disturbed)}. {REPEAT[0].upper()}{REPEAT[1:]}."
    if group.action == "by task":
        return f"For all tasks together no arm is advised. {_by_task(group.tasks)}"
    if group.action != "run":
        return _ALONE[group.action].format(arms=listed(group.not_shown), unsound=_unsound(analysis, group))
    tasks = "" if {row.arm for row in group.tasks} <= {overall.arm} else f" {_by_task(group.tasks)}"
    remark = _output_remark(overall)
    remark = f": {remark}" if remark else ""
    if not overall.for_others:
        few = f": fewer than {ENOUGH_PROMPTS} are too few to tell" if overall.few_prompts else ""
        return (
            f"For these prompts use {overall.arm} ({overall.setting}){remark}; whether it pays for others like "
            f"them is open{few}.{tasks}"
        )
    scope = " for these tasks together" if tasks else ""
    return f"Use {overall.arm} ({overall.setting}){scope}{remark}.{tasks}"


def _unsound(analysis: Analysis, group: GroupDecision) -> str:
    """Return what is wrong with arms of which none is sound: each is damaged, lossy by design, or both."""
    of_group = [row for row in analysis.verdicts if row.arm in group.arms]
    damaged = {row.arm for row in of_group} & damaged_arms(analysis).keys()
    lossy = "is lossy by design" if any(row.lossy for row in of_group) else ""
    return ", or ".join(filter(None, ["damages the output" if damaged or not lossy else "", lossy]))


def _by_task(tasks: Sequence[Advice]) -> str:
    """Return for which task alone which arm is shown to pay."""
    paying = [f"{row.arm} for {row.task}" for row in tasks if row.arm]
    if not paying:
        return "For no task alone is a gain shown."
    remainder = "" if len(paying) == len(tasks) else ", the target alone for the others"
    return f"By task it is {', '.join(paying)}{remainder}."


def evidence(analysis: Analysis, row: Advice) -> str:
    """Return what shows that an arm pays, or why no arm is advised."""
    if row.reason != "pays":
        return _why_no_arm(analysis, row)
    few = f": {row.prompts} {plural(row.prompts, 'is', 'are')} too few" if row.few_prompts else ""
    generality = "it pays for prompts like these, too" if row.for_others else f"open for other prompts like these{few}"
    jointly = " for all arms and tasks together" if row.jointly else ""
    remark = _output_remark(row)
    shown = f"{numbers.between(row.interval) if row.interval else ''}{jointly} (95 %); {generality}"
    return f"{shown[0].upper()}{shown[1:]}{f'; {remark}' if remark else ''}."


def _why_no_arm(analysis: Analysis, row: Advice) -> str:
    best, text = row.candidate, _NO_ARM[row.reason]
    if best is None:
        return text
    ends = f" ({numbers.between(best.interval)})" if best.interval else ""
    verdict = next(verdict for verdict in analysis.verdicts if verdict.arm == best.arm)
    return text.format(
        ran=f"{best.arm}, the fastest, ran {numbers.ratio(best.speedup)}{ends}",
        lossless=best.lossless,
        conclusion=verdict_words.conclusion(analysis, verdict),
        explanation=verdict_words.explanation(analysis, verdict),
    )


def added_to(row: Advice) -> str:
    """Return what the options of an arm are added to: the engine's program, or `your command` where it has no name."""
    words = shlex.split(row.command or "")
    program = next((PurePath(word).name for word in words if "=" not in word), "")
    return program if program and not program.startswith("python") else "your command"


def output(row: Advice) -> str:
    """Return the verdict on the arm's output, or with which power no violation was found; empty without an arm."""
    if row.unviolated is None:
        return row.lossless or ""
    return f"no fault found; a fault would be noticed {100 * row.unviolated:.0f} times in 100"


def _output_remark(row: Advice) -> str:
    """Return what is added on an output that is not identical."""
    remark = output(row)
    return _REMARKS.get(remark, remark)
