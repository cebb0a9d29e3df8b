"""Prints losslessness: tables for people, a JSON document for programs. Answers are untrusted text."""

from __future__ import annotations

import shlex

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from benchctl.analysis.losslessness import NoiseFloor
from benchctl.analysis.results import Losslessness, SelfConsistency
from benchctl.cli.json_output import print_json
from benchctl.data.scores import TargetScores
from benchctl.data.store import RunData
from benchctl.lossless.session import Explained
from benchctl.reports.tables.output import OUTPUT_TONE, divergences, verdict_counts
from benchctl.reports.terminal import STYLES, print_table, table_console
from benchctl.text import one_line

MOST_PROMPTS = 6
"""Diverging prompts of an arm that are printed."""


def print_document(run: RunData, explained: Explained) -> None:
    """Print everything as one JSON document in ASCII."""
    frame, found = explained.outputs.frame, explained.found
    consistency, scores = explained.consistency, explained.scores
    document = {
        "run": run.name,
        "baseline": explained.outputs.baseline,
        "blocks": len(frame.blocks),
        "prompts": len(frame.prompts),
        "lossless": explained.only("identical"),
        "arms": [arm.model_dump() for arm in found],
        "consistency": [arm.model_dump() for arm in consistency],
        "failed_cells": explained.outputs.failed_cells,
        "damaged": run.damaged,
        "integrity": run.integrity.as_dict(),
        "replayed": None if scores is None or not scores.decoded else _replayed(scores),
    }
    if explained.outputs.not_judged:
        document["unjudged"] = explained.outputs.not_judged
    print_json("verify-lossless", document)


def print_tables(run: RunData, explained: Explained) -> None:
    """Print the verdicts, then every arm that is not identical with its differing prompts."""
    frame, found = explained.outputs.frame, explained.found
    consistency, scores = explained.consistency, explained.scores
    console = table_console()
    name = run.name
    baselines = {each_frame.arms[each_frame.baseline] for each_frame in explained.outputs.frames}
    against = one_line(frame.arms[frame.baseline]) if len(baselines) == 1 else "the baseline of its condition"
    counts = f"{_count(len(frame.prompts), 'prompt')}, {_count(len(frame.blocks), 'block')}"
    console.print(Text(f"Run {one_line(name)}: every arm against {against}, {counts}\n"))
    if explained.outputs.not_judged:
        console.print(Text(f"{explained.outputs.not_judged}\n"))
    print_table(console, verdict_counts(found))
    console.print()
    overlapping = {
        name for group, part_outputs in explained.outputs.parts if group.overlapping for name in part_outputs.arms
    }
    for own in consistency:
        if own.arm in baselines or (own.differing and own.arm not in overlapping):
            console.print(_repeats(own))
    for cell in explained.outputs.failed_cells:
        console.print(Text(f"Failed cell: {one_line(cell, 360)}", style="yellow"))
    files = Text(one_line(run.integrity.sentence, 900), style="yellow" if run.integrity.findings else "")
    console.print(files, soft_wrap=not console.is_terminal)
    for sentence in run.damaged[:MOST_PROMPTS]:
        console.print(Text(one_line(sentence), style="yellow"))
    if scores is not None and scores.decoded:
        console.print(Text(_repeated(scores)))
    alike: dict[str, list[str]] = {}
    for arm in found:
        if (arm.comparisons and arm.verdict != "identical") or (arm.audit is not None and arm.verdict != "not judged"):
            _print_arm(console, arm)
        elif not arm.comparisons and arm.verdict != "not judged":
            alike.setdefault(arm.reason, []).append(arm.arm)
    for reason, arms in alike.items():
        console.print()
        console.print(Text(f"{one_line(', '.join(arms), 400)}: undetermined", style=f"bold {STYLES['open']}"))
        console.print(Padding.indent(Text(one_line(reason, 600)), 2))
    names = {explained.baseline_of(arm_found.arm) for arm_found in found}
    forks = divergences(found, one_line(names.pop()) if len(names) == 1 else "baseline", MOST_PROMPTS)
    if forks.rows:
        console.print(Text(f"\n{forks.title}", style="bold"))
        print_table(console, forks)
        count = sum(comparison.fork is not None for arm in found for comparison in arm.comparisons) - len(forks.rows)
        more = f" {count} more divergences: --json lists all." if count else ""
        console.print(Text(f"{forks.note}{more}".strip() + "\n", style="dim"))
    report = f"Answers side by side: benchctl report {shlex.quote(str(run.folder))}"
    console.print(Text(one_line(report)), soft_wrap=True)


def _repeats(own: SelfConsistency) -> Text:
    if not own.prompts:
        return Text(f"Whether {one_line(own.arm)} repeats itself was not tested: no prompt was run in two blocks.")
    if not own.differing:
        return Text(f"{one_line(own.arm)} repeats itself: {_count(own.prompts, 'prompt')}, identical in every block.")
    which = ", ".join(own.differing[:MOST_PROMPTS]) + (", …" if len(own.differing) > MOST_PROMPTS else "")
    count = f"{len(own.differing)} of {_count(own.prompts, 'prompt')} vary from block to block ({one_line(which)})."
    return Text(f"{one_line(own.arm)} does not repeat itself: {count}", style="yellow")


def _replayed(scores: TargetScores) -> dict[str, object]:
    """What was scored of the baseline's answers, without its positions, which `scores.json` has."""
    left_out = {"positions", "shape", "seconds", "answers", "passes"}
    return scores.model_dump(by_alias=True, exclude=left_out) | {"positions": len(scores.positions)}


def _repeated(scores: TargetScores) -> str:
    """Return whether the target alone, launched again, repeats the baseline's answers token by token."""
    others = scores.places_decoded - scores.places_alike
    what = f"{_count(scores.places_decoded, 'token')} of {_count(len(scores.decoded), 'answer')}"
    name = one_line(scores.baseline)
    if not others:
        return f"Replay on the target alone: the same token as {name} at all {what}."
    return f"Replay on the target alone: another token than {name} at {others:,} of {what}."


def _print_arm(console: Console, found: Losslessness) -> None:
    """Print an arm's verdict with its reason, the noise that it was held against, and why answers were not scored."""
    console.print()
    console.print(Text(f"{one_line(found.arm)}: {found.verdict}", style=f"bold {STYLES[OUTPUT_TONE[found.verdict]]}"))
    console.print(Padding.indent(Text(one_line(found.reason)), 2))
    for noise in found.noise:
        console.print(Padding.indent(Text(_noise(noise), style="dim"), 2))
    scored = ("identical", "near-tie", "violation")
    unscored = [
        comparison
        for comparison in found.comparisons
        if comparison.outcome not in scored and comparison.reason.rstrip(".") not in found.reason
    ]
    for missing in unscored[:1]:
        more = f" {len(unscored) - 1} more prompts were not scored (--json lists all)." if len(unscored) > 1 else ""
        line = (
            f"{one_line(missing.task)}/{missing.prompt_idx}: {missing.outcome}. {one_line(missing.reason, 400)}{more}"
        )
        console.print(Padding.indent(Text(line), 2))


def _noise(noise: NoiseFloor) -> str:
    floor = "unknown" if noise.floor is None else f"{noise.floor:.3g} nats"
    control = f"it diverges from itself at {noise.null_forks} of {noise.null_places:,} prefixes"
    return f"Numeric noise of the target at width {noise.width}: {floor}; without speculation {control}."


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
