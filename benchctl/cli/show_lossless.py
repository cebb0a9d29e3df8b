"""Prints losslessness: tables for people, a JSON document for programs. Answers are untrusted text."""

from __future__ import annotations

import shlex

from benchctl.analysis.results import Losslessness, SelfConsistency
from benchctl.data.scores import TargetScores
from benchctl.data.store import RunData
from benchctl.lossless.score.session import Verified
from benchctl.reports.json_output import print_json
from benchctl.reports.tables.output import OUTPUT_TONE, divergences, verdict_counts
from benchctl.reports.terminal import STYLES, Printout
from benchctl.text import one_line, plural
from benchctl.words import sweep as sweep_words
from benchctl.words.lossless import noise_sentence
from benchctl.words.scope import scope_lines

MOST_PROMPTS = 6
"""Diverging prompts of an arm that are printed."""


def print_document(run: RunData, verified: Verified) -> None:
    """Print everything as a JSON document in ASCII."""
    frame, found = verified.outputs.frame, verified.verdicts
    consistency, scores = verified.consistency, verified.scores
    document = {
        "run": run.name,
        "baseline": verified.outputs.baseline,
        "blocks": len(frame.blocks),
        "prompts": len(frame.prompts),
        "lossless": verified.only("identical"),
        "arms": [arm.model_dump(by_alias=True) for arm in found],
        "consistency": [arm.model_dump() for arm in consistency],
        "failed_cells": verified.outputs.failed_cells,
        "damaged": run.damaged,
        "integrity": run.integrity.as_dict(),
        "replayed": None if scores is None or not scores.decoded else _replayed(scores),
    }
    if verified.outputs.not_judged:
        document["unjudged"] = sweep_words.not_judged(verified.outputs.not_judged)
    print_json("verify-lossless", document)


def print_tables(run: RunData, verified: Verified) -> None:
    """Print the verdicts, then every arm that is not identical with its differing prompts."""
    frame, found = verified.outputs.frame, verified.verdicts
    consistency, scores = verified.consistency, verified.scores
    out = Printout()
    baselines = {each_frame.arms[each_frame.baseline] for each_frame in verified.outputs.frames}
    against = frame.arms[frame.baseline] if len(baselines) == 1 else "the baseline of its condition"
    counts = f"{_count(len(frame.prompts), 'prompt')}, {_count(len(frame.blocks), 'block')}"
    out.say(f"Run {run.name}: every arm against {against}, {counts}")
    out.say()
    if verified.outputs.not_judged:
        out.say(sweep_words.not_judged(verified.outputs.not_judged))
        out.say()
    out.table(verdict_counts(found))
    for line in scope_lines(found):
        out.say(line)
    out.say()
    overlapping = {name for group, part in verified.outputs.parts if group.overlapping for name in part.arms}
    for own in consistency:
        if own.arm in baselines or (own.differing and own.arm not in overlapping):
            out.say(_repeats(own), "yellow" if own.differing else "")
    for cell in verified.outputs.failed_cells:
        out.say(f"Failed cell: {cell}", "yellow")
    style = "yellow" if run.integrity.findings else ""
    out.say(run.integrity.sentence, style, whole=not out.console.is_terminal)
    for sentence in run.damaged[:MOST_PROMPTS]:
        out.say(sentence, "yellow")
    if scores is not None and scores.decoded:
        out.say(_repeated(scores))
    alike: dict[str, list[str]] = {}
    for arm in found:
        if (arm.comparisons and arm.verdict != "identical") or (arm.audit is not None and arm.verdict != "not judged"):
            _print_arm(out, arm)
        elif not arm.comparisons and arm.verdict != "not judged":
            alike.setdefault(arm.reason, []).append(arm.arm)
    for reason, arms in alike.items():
        out.say()
        out.say(f"{', '.join(arms)}: undetermined", f"bold {STYLES['open']}")
        out.below(reason)
    names = {verified.baseline_of(arm_found.arm) for arm_found in found}
    forks = divergences(found, one_line(names.pop()) if len(names) == 1 else "baseline", MOST_PROMPTS)
    if forks.rows:
        out.say()
        out.say(forks.title, "bold")
        out.table(forks)
        count = sum(comparison.divergence is not None for arm in found for comparison in arm.comparisons) - len(
            forks.rows
        )
        more = f" {count} more divergences: --json lists all." if count else ""
        out.say(f"{forks.note}{more}".strip(), "dim")
        out.say()
    out.say(f"Answers side by side: benchctl report {shlex.quote(str(run.folder))}", whole=True)


def _repeats(own: SelfConsistency) -> str:
    if not own.prompts:
        return f"Whether {own.arm} repeats itself was not tested: no prompt was run in two blocks."
    if not own.differing:
        return f"{own.arm} repeats itself: {_count(own.prompts, 'prompt')}, identical in every block."
    which = ", ".join(own.differing[:MOST_PROMPTS]) + (", …" if len(own.differing) > MOST_PROMPTS else "")
    count = f"{len(own.differing)} of {_count(own.prompts, 'prompt')} vary from block to block ({which})."
    return f"{own.arm} does not repeat itself: {count}"


def _replayed(scores: TargetScores) -> dict[str, object]:
    """What was scored of the baseline's answers, without its positions, which `scores.json` has."""
    left_out = {"positions", "shape", "seconds", "answers", "passes"}
    return scores.model_dump(by_alias=True, exclude=left_out) | {"positions": len(scores.positions)}


def _repeated(scores: TargetScores) -> str:
    """Return whether the target alone, launched again, repeats the baseline's answers token by token."""
    others = scores.places_decoded - scores.places_alike
    what = f"{_count(scores.places_decoded, 'token')} of {_count(len(scores.decoded), 'answer')}"
    name = scores.baseline
    if not others:
        return f"Replay on the target alone: the same token as {name} at all {what}."
    return f"Replay on the target alone: another token than {name} at {others:,} of {what}."


def _print_arm(out: Printout, found: Losslessness) -> None:
    """Print an arm's verdict with its reason, the noise that it was held against, and why answers were not scored."""
    out.say()
    out.say(f"{found.arm}: {found.verdict}", f"bold {STYLES[OUTPUT_TONE[found.verdict]]}")
    out.below(found.reason)
    for noise in found.noise:
        out.below(noise_sentence(noise), "dim")
    scored = ("identical", "near-tie", "violation")
    unscored = [
        comparison
        for comparison in found.comparisons
        if comparison.outcome not in scored and comparison.reason.rstrip(".") not in found.reason
    ]
    for missing in unscored[:1]:
        more = f" {len(unscored) - 1} more prompts were not scored (--json lists all)." if len(unscored) > 1 else ""
        out.below(f"{missing.task}/{missing.prompt_idx}: {missing.outcome}. {missing.reason}{more}")


def _count(number: int, what: str) -> str:
    return f"{number:,} {plural(number, what)}"
