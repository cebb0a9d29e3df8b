"""What a report says first: the conclusion in a sentence or two, and what to know about the run before reading on."""

from __future__ import annotations

from benchctl.analysis.results import Analysis, Verdict
from benchctl.data.store import RunData
from benchctl.reports import numbers, sweep

PAYS = {
    "faster": "pays",
    "slower": "does not pay",
    "within": "makes no difference",
    "undecided": "undecided",
    "unknown": "unknown",
}
"""The answer to “does it pay?” for each `Verdict.speed`."""

_UNFINISHED = {
    "started": "This run is not finished: it still goes on, or benchctl was killed. Finish it with: "
    "benchctl run --resume {run}",
    "interrupted": "This run was interrupted. What was measured until then is shown; finish it with: "
    "benchctl run --resume {run}",
    "failed": "This run failed. What was measured until then is shown.",
}


def compared(analysis: Analysis) -> list[Verdict]:
    """The verdicts on every arm but the baseline, in the recipe's order."""
    return [verdict for verdict in analysis.verdicts if verdict.arm != analysis.baseline]


def headline(analysis: Analysis) -> str:
    """Does speculation pay in this run; before that, whether it damages the output, which no speed makes up for."""
    damage = {one.arm: count for one in analysis.losslessness if (count := one.counts.get("violation", 0))}
    sound = [verdict for verdict in compared(analysis) if verdict.arm not in damage]
    said = _pays(analysis, sound) if sound or not damage else ""
    if not damage:
        return said
    arms = ", ".join(f"{arm} ({count} prompt{'s' if count > 1 else ''})" for arm, count in damage.items())
    return f"Speculation damages the output here: {arms}, beyond what numeric noise explains. {said}".strip()


def _pays(analysis: Analysis, verdicts: list[Verdict]) -> str:
    """One sentence: does speculation pay in the arms of these verdicts."""
    if any(warning.id == "baseline-speculates" for warning in analysis.warnings):
        return f"No conclusion about speculation: the baseline, {analysis.baseline}, speculates itself."
    told = sweep.lead(analysis)
    if told:
        return told
    arms = f"all {len(verdicts)} arms are" if len(verdicts) > 1 else "the one arm is"
    faster = [verdict for verdict in verdicts if verdict.speed == "faster"]
    if faster:
        best = max(faster, key=lambda verdict: verdict.speedup or 0.0)
        share = f"{len(faster)} of {len(verdicts)} arms" if len(verdicts) > 1 else "the one arm"
        name = f": {best.arm}, {numbers.ratio(best.speedup)}" if len(faster) == 1 else ""
        name = name or f"; the fastest is {best.arm}, {numbers.ratio(best.speedup)}"
        return f"Speculative decoding pays here with {share}{name}."
    if all(verdict.speed == "unknown" for verdict in verdicts):
        if verdicts and all(verdict.attestation == "idle" for verdict in verdicts):
            return "No conclusion: speculation never fired, so nothing was drafted."
        usable = [verdict for verdict in verdicts if verdict.attestation not in ("failed", "idle", "off")]
        known = [verdict for verdict in usable if verdict.speedup is not None and verdict.interval is None]
        if not known:
            return "No conclusion: no arm could be compared with the baseline on equal terms."
        best = max(known, key=lambda verdict: verdict.speedup or 0.0)
        blocks = "One block is" if analysis.blocks == 1 else f"{analysis.blocks} blocks are"
        few = f"{blocks} too few" if analysis.blocks < numbers.BLOCKS_FOR_INTERVAL else "Too few blocks are complete"
        speed = f"in this run the fastest arm was {best.arm}, {numbers.ratio(best.speedup)}"
        return f"{few} to conclude whether it pays; {speed}."
    if all(verdict.speed == "slower" for verdict in verdicts):
        return f"Speculative decoding does not pay here: {arms} slower than the baseline."
    return "Speculative decoding does not clearly pay here: no arm is faster than the baseline beyond doubt."


def fidelity(analysis: Analysis) -> str:
    """One sentence: is the output still what the target alone would have said; of a sweep also where that is judged."""
    unjudged = analysis.sweep.unjudged if analysis.sweep else None
    if unjudged is None:
        return _fidelity(compared(analysis))
    elsewhere = {row.arm for row in analysis.sweep.levels if not row.judged} if analysis.sweep else set()
    judged = [verdict for verdict in compared(analysis) if verdict.arm not in elsewhere]
    flawed = [one.arm for one in compared(analysis) if one.arm in elsewhere and one.lossless != "not judged"]
    overlap = any(row.overlapping for row in analysis.sweep.levels) if analysis.sweep else False
    where = "One request at a time" if overlap else "At temperature 0"
    said = _fidelity(judged).replace("Every answer", f"{where}, every answer")
    flaws = f" Even so answers are missing or broken there: {', '.join(flawed)}." if judged and flawed else ""
    return f"{said} {unjudged}{flaws}".strip()


def _fidelity(verdicts: list[Verdict]) -> str:
    by_verdict = {
        word: [verdict.arm for verdict in verdicts if verdict.lossless == word]
        for word in ("lossless", "not lossless", "undetermined")
    }
    if not verdicts:
        return ""
    if len(by_verdict["lossless"]) == len(verdicts):
        return "Every answer of every arm is identical to the baseline's."
    parts = [f"{', '.join(arms)}: {word}" for word, arms in by_verdict.items() if arms and word != "lossless"]
    same = len(by_verdict["lossless"])
    who = f"{same} of {len(verdicts)} arms give" if same else "No arm is shown to give"
    return f"{who} exactly the baseline's answers. " + "; ".join(parts) + "."


def notices(run: RunData, analysis: Analysis) -> list[str]:
    """What makes this run less than a whole one, a sentence each; empty for a finished run without damage."""
    found = []
    if run.manifest is None:
        found.append(
            "Only records are here, without a manifest, as in the published study's files: hardware, builds, commands "
            "and attestations are not known."
        )
    elif run.manifest.status in _UNFINISHED:
        found.append(_UNFINISHED[run.manifest.status].format(run=run.manifest.run))
    found += [f"A cell failed: {cell}" for cell in analysis.failed_cells]
    return found + run.damaged
