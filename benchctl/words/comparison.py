"""What a comparison of runs shows, in sentences: changes, gates, what was not compared, builds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from benchctl.analysis.result import MIN_BLOCKS
from benchctl.text import first
from benchctl.words import numbers

if TYPE_CHECKING:
    from benchctl.analysis.comparison.changes import Doubt, DoubtCode, Ratio
    from benchctl.analysis.comparison.compare import RunComparison
    from benchctl.analysis.comparison.gates import FailureCode, Gate, GateFailure, GateResult
    from benchctl.analysis.comparison.several import FirstChange, NotCompared, NotComparedCode, SeveralRuns

MOST_NAMED = 6
"""Arms, runs and prompts that a sentence lists; the others are counted."""

_DOUBTS: dict[DoubtCode, str] = {
    "damaged": "{doubt.reason}",
    "a baseline": "It is the baseline of A or of B, so there it has no speed-up.",
    "not timed": "No prompt was timed in every block of both runs.",
    "not reported": "B does not report it in every block.",
    "prompts missing": "B did not time {doubt.counts[0]} of the {doubt.counts[1]} prompts that the baseline has.",
    "few blocks": "A has {doubt.counts[0]} and B {doubt.counts[1]} blocks; below {least} in each there is no interval.",
    "no equal answer": "No answer is as long in B as it was in A, so they are not the same work.",
    "unequal lengths": "The ratio is {doubt.matched:.2f} over the answers of equal length, so the difference is due to "
    "lengths.",
}
_WATCHED = {
    "slower": ("speed-up over the own run's baseline", "slower"),
    "slower-absolute": ("decode rate", "slower"),
    "acceptance": ("acceptance length", "lower"),
    "ttft": ("median time to the first token", "higher"),
    "memory": ("peak memory", "higher"),
    "energy": ("energy a token", "higher"),
    "lossy": ("output", ""),
}
"""By gate: what it watches, and the word for a change to the worse."""
_FAILURES: dict[FailureCode, str] = {
    "worse": "{failure.arm}: {failure.change.ratio:.3f}× A's {quantity}{interval}, {worse} by more than {share} % "
    "beyond noise.",
    "undetermined": "{failure.arm}: undetermined. {doubt}",
    "cannot tell": "{failure.arm}: cannot tell. At this noise it may be {at_worst:.1f} % {worse}, and the gate passes "
    "only where {share} % is excluded. An arm that did not change passes with {advice}.",
    "not in B": "{failure.arm}: undetermined, because B has no such arm.",
    "not reported": "undetermined, because A reports no {quantity} in every block of an arm.",
    "no compared arm": "undetermined, because no arm beside a baseline was compared; slower-absolute judges the "
    "baseline, too.",
    "no common arm": "undetermined, because the runs have no arm in common.",
    "not judged": "undetermined, because no arm of B beside its baseline was compared{alone}.",
    "lossy": "{failure.arm}: {failure.verdict.verdict}. {failure.verdict.reason}",
}
_NOT_COMPARED: dict[NotComparedCode, str] = {
    "damaged": "the files of {0} are not as they were written",
    "no common prompt": "the runs have no prompt in common",
    "condition": "its context length, concurrency, rate or temperature differs",
    "prompts": "the runs have only {0} prompts in common",
    "sampling": "sampling.{0} differs",
    "target": "its target differs ({0} and {1})",
    "KV type": "its KV type differs ({0} and {1})",
    "overlapping": "answers of overlapping requests are not reproducible",
    "not timed": "no prompt was timed in every block of both runs",
}
_PARTS = {"rate": "decode rates", "speedup": "speed-ups", "answers": "answers"}


def doubt_sentence(doubt: Doubt) -> str:
    """Return why nothing is said of how a quantity changed."""
    if doubt.code == "few blocks" and doubt.counts is None:
        return f"Below {MIN_BLOCKS} blocks in each run nothing is concluded."
    return _DOUBTS[doubt.code].format(doubt=doubt, least=MIN_BLOCKS)


def failure_sentence(gate: Gate, failure: GateFailure) -> str:
    """Return why a gate did not hold."""
    quantity, worse = _WATCHED[gate.word]
    limits = failure.change.interval if failure.change else None
    return (
        _FAILURES[failure.code]
        .format(
            failure=failure,
            quantity=quantity,
            worse=worse,
            share=f"{100 * gate.share:g}",
            interval=f" (95 % interval {limits.low:.3f} to {limits.high:.3f})" if limits else "",
            doubt=doubt_sentence(failure.doubt) if failure.doubt else "",
            at_worst=100 * (failure.at_worst or 0.0),
            advice=f"about {failure.blocks} blocks in each run" if failure.blocks else "more runs of A and B",
            alone=" one request at a time" if failure.overlapping else "",
        )
        .rstrip()
    )


def gate_note(result: GateResult) -> str | None:
    """Return how much worse an arm may still be where a gate passed, or why it was not checked."""
    if result.other_machine:
        differing = "; ".join(f"{change.what}: {change.a} and {change.b}" for change in result.other_machine)
        return f"Not gated, because A was measured on another machine; only ratios within a run are. {differing}."
    if (worst := result.at_worst) is None:
        return None
    word = _WATCHED[result.gate.word][1]
    start = f"With {100 * worst.confidence:g} % confidence no arm is"
    return f"{start} {word}." if worst.share <= 0 else f"{start} over {100 * worst.share:.1f} % {word} ({worst.arm})."


def failed_gates(checked: Sequence[GateResult]) -> Iterator[str]:
    """Yield a line for how many gates failed, then one for each reason."""
    failed = [result for result in checked if not result.passed]
    yield f"{len(failed)} of {len(checked)} {'gate' if len(checked) == 1 else 'gates'} failed."
    for result in failed:
        for failure in result.failures:
            yield f"  {result.gate}: {failure_sentence(result.gate, failure)}"


def gate_document(result: GateResult) -> dict[str, Any]:
    """Return a gate for JSON."""
    return {
        "gate": str(result.gate),
        "failures": [failure_sentence(result.gate, failure) for failure in result.failures],
        "note": gate_note(result),
        "skipped": result.skipped,
        "passed": result.passed,
    }


def comparison_document(comparison: RunComparison) -> dict[str, Any]:
    """Return a comparison for JSON, with its doubts as sentences."""
    document = comparison.model_dump()
    for row, arm in zip(document["arms"], comparison.arms, strict=True):
        for key, doubt in (("doubt", arm.doubt), ("rate_doubt", arm.rate_doubt)):
            row[key] = None if doubt is None else doubt_sentence(doubt)
    return document


def baseline_and_runs(comparison: RunComparison) -> list[str]:
    """Return how the baseline itself changed, and what is known of changes from run to run."""
    sentences = []
    for arm in comparison.arms:
        if arm.is_baseline and arm.rate.ratio and arm.rate.interval:
            sentences.append(
                f"The baseline itself ({arm.arm}) is {numbers.ratio(arm.rate.ratio)} as fast in B as in A "
                f"({numbers.between(arm.rate.interval)}): {arm.change}. An arm's change is that of its speed-up over "
                "it."
            )
    runs = 2 + len(comparison.more_a) + len(comparison.more_b)
    if runs == 2:
        is_kept = any(not arm.outputs.kept for arm in comparison.arms)
        advice = "Keep several runs as the baseline." if is_kept else "Measure A again and compare A B A."
        return [*sentences, f"One run each: what changes from run to run is not in these intervals. {advice}"]
    spreads = {arm.arm: _run_to_run(arm.judged) for arm in comparison.arms}
    widest = max(spreads, key=lambda name: spreads[name], default=None)
    if widest is not None:
        sentences.append(
            f"From run to run, with nothing changed, {widest} lies up to {100 * spreads[widest]:.1f} % apart, the most "
            "of all arms; the intervals count that."
            + (" They are wide with a single repetition: A B A B A narrows them." if runs == 3 else "")
        )
    return sentences


def _run_to_run(ratio: Ratio) -> float:
    """Return how far the repeated runs of a side lie apart at most, as a share."""
    return max((max(values) / min(values) - 1 for values in (ratio.values_a, ratio.values_b) if values), default=0.0)


def not_compared(several: SeveralRuns) -> list[str]:
    """Return what was not compared and why, a sentence for each reason."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for row in several.rows:
        reasons = {part: _reason(unlike) for part, unlike in row.not_compared.items()}
        for reason in dict.fromkeys(reasons.values()):
            parts = ", ".join(_PARTS[part] for part, text in reasons.items() if text == reason)
            by_reason.setdefault((parts, reason), []).append(f"{row.arm} of run {row.run + 1}")
    sentences = [
        f"{parts.capitalize()} not compared with run 1: {reason} ({first(arms, MOST_NAMED)})."
        for (parts, reason), arms in by_reason.items()
    ]
    for arm, runs in several.alone.items():
        numbered = first([str(number + 1) for number in runs], MOST_NAMED)
        sentences.append(f"{arm} is not in run 1, so not compared: run {numbered}.")
    return sentences


def _reason(unlike: NotCompared) -> str:
    return _NOT_COMPARED[unlike.code].format(*unlike.values)


def several_document(several: SeveralRuns) -> dict[str, Any]:
    """Return a comparison of several runs for JSON, with the reasons of what was not compared in words."""
    document = several.model_dump()
    for document_row, row in zip(document["rows"], several.rows, strict=True):
        document_row["not_compared"] = {part: _reason(unlike) for part, unlike in row.not_compared.items()}
    return document


def first_changes(several: SeveralRuns, changes: Sequence[FirstChange]) -> Iterator[str]:
    """Yield for each arm which build is the first that changed."""
    names = [str(run["run"]) for run in several.runs]
    for change in changes:
        parts = [f"{names[change.violates]} is the first with a violation"] if change.violates is not None else []
        if change.slower is not None and change.interval is not None:
            ratio = f"{change.ratio:.2f}x ({numbers.between(change.interval)})"
            parts.append(f"{names[change.slower]} is the first that is slower, {ratio}")
        build = "no build has" if change.diverges is None else f"{names[change.diverges]} is the first with"
        parts.append(f"{build} other answers")
        if change.possible is not None:
            parts.append(f"none is shown to be slower, {change.possible:.2f}x stays possible")
        if change.unknown:
            parts.append(f"no interval of the speed of {', '.join(names[run] for run in change.unknown)}")
        yield f"{change.arm}: {'; '.join(parts)}."
