"""The verdict on an arm in two sentences: what is concluded of it, and what explains its speed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchctl.analysis.decision_results import BreakEvenReach, SpeedDoubt
from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.reference_lengths import reference_lengths
from benchctl.analysis.result import open_for_others
from benchctl.text import at_most_percent, listed, percent, plural
from benchctl.words import numbers

if TYPE_CHECKING:
    from benchctl.analysis.decision_results import Verdict
    from benchctl.analysis.output_results import Losslessness
    from benchctl.analysis.results import Analysis
    from benchctl.analysis.speed_results import Acceptance, Cost, NoDraft

_DOUBTS: dict[SpeedDoubt, str] = {
    "not drafted": "although nothing was drafted, so speculation is not the cause",
    "unequal lengths": "but {matched} when answers are cut to the length that both reached, so it is due to their "
    "lengths",
    "no equal pair": "but no answer is as long as the baseline's, so they are not the same work",
}
_OUTPUT = {
    "exact": "Its output differs from the baseline's, and is exact",
    "consistent with the target": "Its output differs, consistently with the target",
    "violation": "Its output is not the target's own",
    "undetermined": "Whether its output is the target's own is undetermined",
}
_WITHOUT_ACCEPTANCE = {
    "not timed": "Of this arm or of the baseline no answer was timed; the warnings say why.",
    "not shown": "The endpoint does not show whether it speculated, so a difference may have any other cause.",
    "off": "This arm does not speculate: a difference from the baseline is noise, or another setting.",
    "never fired": "Speculation was on but never fired: nothing was drafted, so there was nothing to gain.",
    "not reported": "What was drafted is not reported, or the counters contradict each other, so these records cannot "
    "explain the speed.",
}
_BREAK_EVEN: dict[BreakEvenReach, str] = {
    "none": "At this cost no acceptance would pay.",
    "every": "At this cost every acceptance pays.",
    "nearly every": "For depth {depth} to pay at this cost, nearly every draft token would have to be accepted.",
}


def conclusion(analysis: Analysis, verdict: Verdict) -> str:
    """Return what is concluded of an arm's speed and of its output; the scope of the latter is a line for all arms."""
    if verdict.reason == "distrusted":
        return f"Neither its speed nor whether its output is the target's own is known. {verdict.refusal}"
    lossless = next(row for row in analysis.losslessness if row.arm == verdict.arm)
    parts = [_speed(analysis, verdict)]
    if verdict.not_shown:
        names = " and ".join(verdict.not_shown)
        parts.append(f"Not verified: the endpoint does not show whether it speculated ({names}).")
    parts.append(output(lossless))
    if verdict.selected:
        arms = f"It is the fastest of {verdict.selected_of} arms, so its value is selected"
        parts.append(f"{arms}: expect somewhat less of a new run.")
    return " ".join(parts)


def _speed(analysis: Analysis, verdict: Verdict) -> str:
    if verdict.reason == "refused":
        return "Its speed is not assessed: a cell of it or of the baseline did not run what the recipe requests."
    if verdict.attestation == "idle" or _acceptance(analysis, verdict).drafted == 0:
        return "Nothing was drafted, so no speed-up is reported."
    if verdict.speedup is None:
        return "Its speed is not known: no prompt was timed in both arms."
    reference = f" the baseline{' over whole answers' if verdict.whole_answers else ''}"
    measured = numbers.with_interval(verdict.speedup, verdict.interval, reference)
    if verdict.interval is None:
        count = "one repetition" if verdict.blocks == 1 else f"{verdict.blocks} repetitions"
        return f"{measured} in {count}; below three it is not known how far another run would differ."
    if direction := contrary(verdict.speedup, verdict.median):
        measured += f"; {direction.removesuffix('.')}"
    if verdict.doubt:
        return f"{measured}, {_DOUBTS[verdict.doubt].format(matched=numbers.ratio(verdict.length_matched))}."
    if verdict.speed == "within":
        return f"Within ±{at_most_percent(verdict.within or 0.0)} of the baseline: {measured}."
    if verdict.speed == "undecided":
        blocks = verdict.more_blocks or 0
        more = f"; about {blocks} more {plural(blocks, 'repetition')} would show a difference of 10 %"
        return f"Undecided: {measured}{more if blocks else ''}."
    beyond = " For other prompts like these it is open." if open_for_others(verdict.like_these) else ""
    return f"{verdict.speed.capitalize()}: {measured}.{beyond}"


def contrary(pooled: float | None, median: float | None) -> str | None:
    """Return a sentence where the pooled ratio and the median of the prompts lie on different sides of 1."""
    if pooled is None or median is None or (round(pooled, 2) - 1) * (round(median, 2) - 1) >= 0:
        return None
    ratio = numbers.ratio(median)
    if median > 1:
        return f"the median prompt gains ({ratio}), but the prompts that lose cost more time than the others save."
    return f"the median prompt loses ({ratio}), but the prompts that gain save more time than the others cost."


def output(lossless: Losslessness) -> str:
    """Return the verdict on an arm's output, with its reason."""
    if lossless.verdict == "identical":
        prompts = len(lossless.comparisons)
        return f"Its output is identical on {'the one prompt' if prompts == 1 else f'all {prompts} prompts'}."
    reason = f"{lossless.reason[0].lower()}{lossless.reason[1:]}"
    if lossless.verdict == "not judged":
        return f"Whether its output is the target's own is not assessed: {reason.partition(';')[0]}."
    return f"{_OUTPUT[lossless.verdict]}: {reason}"


def explanation(analysis: Analysis, verdict: Verdict) -> str:
    """Return what explains an arm's speed: its acceptance, the cost of a round, whether any acceptance would pay."""
    if verdict.reason in ("refused", "distrusted"):
        return verdict.refusal or "The attestation failed."
    if verdict.reason in _WITHOUT_ACCEPTANCE:
        return _WITHOUT_ACCEPTANCE[verdict.reason]
    accepted = _acceptance(analysis, verdict)
    accepted_share = f"{percent(accepted.rate or 0.0, accepted.doubt)} of its draft tokens were accepted"
    if accepted.prompts_drafted < accepted.prompts:
        overall = next(row for row in analysis.speedups if (row.arm, row.task) == (verdict.arm, ALL_TASKS))
        idle = _prompts_without_a_draft(overall.no_draft)
        accepted_share = (
            f"It drafted for {accepted.prompts_drafted} of {accepted.prompts} prompts{idle}; {accepted_share}"
        )
    if verdict.reason == "no rounds":
        return f"{accepted_share}; the engine does not report verify rounds, so the cost of a round is not known."
    if verdict.reason == "no cost":
        return f"{accepted_share}; drafts were too rare to measure what one costs."
    cost = next(row for row in analysis.costs if row.arm == verdict.arm)
    return f"{accepted_share}, {_round(verdict, accepted, cost)}{_published(analysis, verdict, accepted, cost)}"


def _round(verdict: Verdict, accepted: Acceptance, cost: Cost) -> str:
    """Return what a round cost and yielded."""
    link = "but" if verdict.speed == "slower" else "and"
    steps, tokens = 1 + (cost.overhead or 0.0), accepted.acceptance_length or 0.0
    even = f" {_BREAK_EVEN[verdict.break_even].format(depth=cost.depth)}" if verdict.break_even else ""
    price = f"as long as {steps:.1f} tokens without speculation"
    priced = f"{link} a round (draft and verify) takes {price} and yields {tokens:.1f}.{even}"
    if cost.hindsight is None:
        return priced
    best = numbers.ratio(cost.hindsight)
    return f"{priced} Had rejected tokens taken no time to draft, it would run {best}."


def _published(analysis: Analysis, verdict: Verdict, accepted: Acceptance, cost: Cost) -> str:
    """Return the acceptance lengths that are published for the pair, type and depth, beside the measured one."""
    if accepted.acceptance_length is None:
        return ""
    kind = verdict.setting.partition(",")[0]
    published = [
        f"{row.length:g} ({row.conditions}; {row.source})"
        for row in reference_lengths(analysis.compared[verdict.arm], kind, cost.depth)
    ]
    measured = f" Its acceptance length is {accepted.acceptance_length:.2f}; published for this pair and depth: "
    return f"{measured}{listed(published)}." if published else ""


def _prompts_without_a_draft(idle: NoDraft | None) -> str:
    """Return how fast the prompts without a draft ran, as a part of a sentence."""
    if idle is None or idle.interval is None:
        return ""
    price = ": to look for a draft has a price, too" if idle.interval.high < 1 else ""
    count = " and count as 1.00×" if idle.counted else price
    return f" (the other {idle.prompts} ran {numbers.ratio(idle.pooled)}, {numbers.between(idle.interval)}{count})"


def _acceptance(analysis: Analysis, verdict: Verdict) -> Acceptance:
    return next(row for row in analysis.acceptance if (row.arm, row.task) == (verdict.arm, ALL_TASKS))
