"""Prints losslessness: tables for people, a JSON document for programs. Answers are untrusted text."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from benchctl.analysis.asked import Asked
from benchctl.analysis.next_experiment import more_power
from benchctl.analysis.output_results import LOSSLESS, Losslessness
from benchctl.data.store import RunData
from benchctl.lossless.score.session import Verified
from benchctl.reports.json_output import print_json
from benchctl.reports.tables.output import OUTPUT_TONE, divergences, validity, verdict_counts
from benchctl.reports.terminal import STYLES, Printout
from benchctl.text import counted, one_line, plural
from benchctl.words import sweep as sweep_words
from benchctl.words.asked import asked_sentence
from benchctl.words.experiment import sentence as experiment_sentence
from benchctl.words.lossless import consistency_sentence, noise_sentence
from benchctl.words.scope import scope_lines

MOST_PROMPTS = 6
"""Diverging prompts of an arm that are printed."""


def print_document(run: RunData, verified: Verified, asked: Asked | None = None) -> None:
    """Print everything as a JSON document in ASCII. `asked`: what was asked first."""
    frame, verdicts = verified.outputs.frame, verified.verdicts
    consistency = verified.consistency
    document = {
        "run": run.name,
        "baseline": verified.outputs.baseline,
        "blocks": frame.run_blocks,
        "prompts": len(frame.prompts),
        "lossless": verified.only(*LOSSLESS),
        "arms": [arm.model_dump(by_alias=True) for arm in verdicts],
        "consistency": [arm.model_dump() for arm in consistency],
        "failed_cells": verified.outputs.failed_cells,
        "damaged": run.damaged,
        "integrity": run.integrity.as_dict(),
    }
    if asked is not None:
        document["asked"] = asked.model_dump()
    if verified.outputs.not_judged:
        document["unjudged"] = sweep_words.not_judged(verified.outputs.not_judged)
    print_json("verify-lossless", document, schema=2)


def print_tables(run: RunData, verified: Verified, asked: Asked | None = None) -> None:
    """Print what was asked first, the verdicts, then every arm that is not identical with its differing prompts."""
    frame, verdicts = verified.outputs.frame, verified.verdicts
    consistency = verified.consistency
    out = Printout()
    baselines = {each_frame.arms[each_frame.baseline] for each_frame in verified.outputs.frames}
    against = frame.arms[frame.baseline] if len(baselines) == 1 else "the baseline of its condition"
    prompts, blocks, later = int((~frame.further).sum()), frame.run_blocks, int(frame.further.sum())
    counts = f"{counted(prompts, 'prompt')}, {counted(blocks, 'block')}"
    counts += f", {counted(later, 'prompt')} asked afterwards" if later else ""
    out.say(f"{plural(len(run.names) or 1, 'Run')} {run.name}: every arm against {against}, {counts}")
    if asked is not None:
        out.say(asked_sentence(asked))
    out.say()
    if verified.outputs.not_judged:
        out.say(sweep_words.not_judged(verified.outputs.not_judged))
        out.say()
    classes = verdict_counts(verdicts)
    out.table(classes)
    out.say(classes.note, "dim")
    for line in scope_lines(verdicts):
        out.say(line)
    out.say()
    overlapping = {name for group, part in verified.outputs.parts if group.overlapping for name in part.arms}
    for consistent in consistency:
        if consistent.arm in baselines or (consistent.differing and consistent.arm not in overlapping):
            out.say(consistency_sentence(consistent), "yellow" if consistent.differing else "")
    for cell in verified.outputs.failed_cells:
        out.say(f"Failed cell: {cell}", "yellow")
    style = "yellow" if run.integrity.findings else ""
    out.say(run.integrity.sentence, style, whole=not out.console.is_terminal)
    for sentence in run.damaged[:MOST_PROMPTS]:
        out.say(sentence, "yellow")
    alike: dict[str, list[str]] = {}
    for arm in verdicts:
        if (arm.comparisons and arm.verdict != "identical") or (arm.audit is not None and arm.verdict != "not judged"):
            _print_arm(out, arm)
        elif not arm.comparisons and arm.verdict != "not judged":
            alike.setdefault(arm.reason, []).append(arm.arm)
    for reason, arms in alike.items():
        out.say()
        out.say(f"{', '.join(arms)}: undetermined", f"bold {STYLES['open']}")
        out.below(reason)
    names = {verified.baseline_of(arm_found.arm) for arm_found in verdicts}
    table = divergences(verdicts, one_line(names.pop()) if len(names) == 1 else "baseline", MOST_PROMPTS)
    if table.rows:
        out.say()
        out.say(table.title, "bold")
        out.table(table)
        count = sum(comparison.divergence is not None for arm in verdicts for comparison in arm.comparisons) - len(
            table.rows
        )
        further = f" {count} more divergences: --json lists all." if count else ""
        out.say(f"{table.note}{further}".strip(), "dim")
        out.say()
    forms = validity(verdicts)
    if forms.rows:
        out.say(forms.title, "bold")
        out.table(forms)
        out.say(forms.note, "dim")
        out.say()
    _print_next(out, run, verdicts)
    out.say(f"Answers side by side: benchctl report {shlex.quote(str(run.folder))}", whole=True)


def _print_next(out: Printout, run: RunData, verdicts: Sequence[Losslessness]) -> None:
    """Print the command that gives the arm of the most power its verdict, where power is what it lacks."""
    ordered = sorted(verdicts, key=lambda row: -(row.unviolated or 0.0))
    experiments = (more_power(row, run.manifest, run.folder) for row in ordered) if run.manifest else ()
    experiment = next(filter(None, experiments), None)
    if experiment is not None:
        out.say(f"Next: {experiment_sentence(experiment)}")
        out.say(f"  {experiment.command}", whole=True)
        out.say()


def _print_arm(out: Printout, judged: Losslessness) -> None:
    """Print an arm's verdict with its reason, the noise that it was held against, and why answers were not scored."""
    out.say()
    out.say(f"{judged.arm}: {judged.verdict}", f"bold {STYLES[OUTPUT_TONE[judged.verdict]]}")
    out.below(judged.reason)
    for noise in judged.noise:
        out.below(noise_sentence(noise), "dim")
    scored = ("identical", "exact", "near-tie", "violation")
    unscored = [
        comparison
        for comparison in judged.comparisons
        if comparison.outcome not in scored and comparison.reason.rstrip(".") not in judged.reason
    ]
    for missing in unscored[:1]:
        further = f" {len(unscored) - 1} more prompts were not scored (--json lists all)." if len(unscored) > 1 else ""
        out.below(f"{missing.task}/{missing.prompt_idx}: {missing.outcome}. {missing.reason}{further}")
