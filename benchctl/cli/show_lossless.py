"""How losslessness is shown: tables for people, one JSON document for programs. Answers are untrusted text."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from benchctl.analysis.cells import failed_cells
from benchctl.analysis.frame import Frame
from benchctl.analysis.results import Comparison, Losslessness, PromptClass, SelfConsistency
from benchctl.plain_text import one_line
from benchctl.runs.store import RunData

DOCUMENT_SCHEMA = 1
"""The version of the JSON document; it rises when a key changes its meaning or goes."""

CLASSES: tuple[PromptClass, ...] = ("identical", "near-tie", "violation", "degenerate", "differs", "undetermined")
COLOUR = {"lossless": "green", "not lossless": "red", "undetermined": "yellow"}
SHOWN = 6
"""Prompts of an arm that are shown one by one."""
PIPE_WIDTH = 160
"""Columns where there is no terminal: lines stay whole for grep."""


def print_document(
    run: RunData, frame: Frame, found: Sequence[Losslessness], consistency: Sequence[SelfConsistency]
) -> None:
    """Print everything as one JSON document in ASCII."""
    document = {
        "schema": DOCUMENT_SCHEMA,
        "run": run.manifest.run if run.manifest else run.folder.name,
        "baseline": frame.arms[frame.baseline],
        "blocks": len(frame.blocks),
        "prompts": len(frame.prompts),
        "lossless": all(one.verdict == "lossless" for one in found),
        "arms": [one.model_dump() for one in found],
        "consistency": [one.model_dump() for one in consistency],
        "failed_cells": [f"{name}: {reason}" for name, reason in failed_cells(frame)],
        "damaged": run.damaged,
    }
    sys.stdout.write(json.dumps(document, separators=(",", ":")) + "\n")


def print_tables(
    run: RunData, frame: Frame, found: Sequence[Losslessness], consistency: Sequence[SelfConsistency]
) -> None:
    """Print the verdicts, then every arm that is not lossless with its differing prompts."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # answers may hold what this terminal cannot show
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PIPE_WIDTH)
    name = run.manifest.run if run.manifest else run.folder.name
    baseline = frame.arms[frame.baseline]
    counts = f"{_count(len(frame.prompts), 'prompt')}, {_count(len(frame.blocks), 'block')}"
    console.print(Text(f"Run {one_line(name)}: every arm against {one_line(baseline)}, {counts}\n"))
    console.print(_table(found))
    console.print()
    for own in consistency:
        if own.arm == baseline or own.differing:
            console.print(_repeats(own))
    for cell, reason in failed_cells(frame):
        console.print(Text(f"Failed cell: {one_line(cell)}: {one_line(reason, 300)}", style="yellow"))
    for sentence in run.damaged[:SHOWN]:
        console.print(Text(one_line(sentence), style="yellow"))
    for one in found:
        if one.verdict != "lossless":
            _print_arm(console, one, baseline)


def _table(found: Sequence[Losslessness]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    used = [kind for kind in CLASSES if kind == "identical" or any(one.counts.get(kind) for one in found)]
    table.add_column("arm", overflow="fold")
    table.add_column("verdict", overflow="fold")
    for kind in used:
        table.add_column(kind, justify="right", overflow="fold")
    for one in found:
        table.add_row(
            Text(one_line(one.arm)),
            Text(one.verdict, style=COLOUR[one.verdict]),
            *(Text(str(one.counts.get(kind, 0))) for kind in used),
        )
    return table


def _repeats(own: SelfConsistency) -> Text:
    if not own.prompts:
        return Text(f"Whether {one_line(own.arm)} repeats itself was not tested: no prompt was answered in two blocks.")
    if not own.differing:
        return Text(f"{one_line(own.arm)} repeats itself: {_count(own.prompts, 'prompt')}, the same in every block.")
    which = ", ".join(own.differing[:SHOWN]) + (", …" if len(own.differing) > SHOWN else "")
    told = f"{len(own.differing)} of {_count(own.prompts, 'prompt')} vary from block to block ({one_line(which)})."
    return Text(f"{one_line(own.arm)} does not repeat itself: {told}", style="yellow")


def _print_arm(console: Console, found: Losslessness, baseline: str) -> None:
    console.print()
    console.print(Text(f"{one_line(found.arm)}: {found.verdict}", style=f"bold {COLOUR[found.verdict]}"))
    console.print(Padding.indent(Text(one_line(found.reason)), 2))
    remarkable = [one for one in found.comparisons if one.outcome != "identical"]
    for one in remarkable[:SHOWN]:
        _print_comparison(console, one, baseline)
    if len(remarkable) > SHOWN:
        console.print(Text(f"  … and {len(remarkable) - SHOWN} more; --json has them all.", style="dim"))


def _print_comparison(console: Console, one: Comparison, baseline: str) -> None:
    blocks = ""
    if one.blocks_differing:
        blocks = f" in {one.blocks_differing} of {_count(one.blocks_compared, 'block')}"
    head = Text(f"{one_line(one.task)}/{one.prompt_idx}  ", style="bold")
    head.append(f"{one.outcome}{blocks}. {one_line(one.reason, 400)}", style="not bold")
    console.print(Padding.indent(head, 2))
    if one.fork is None:
        return
    ends = "(ends here)" if one.fork.baseline_text or one.fork.arm_text else "(the same text)"
    label = max(len("both said"), min(24, len(baseline)), min(24, len(one.arm)))
    for name, said, token in (
        ("both said", one.fork.agreed_text or "(nothing)", None),
        (baseline, one.fork.baseline_text, one.fork.baseline_token),
        (one.arm, one.fork.arm_text, one.fork.arm_token),
    ):
        line = Text(f"    {one_line(name, 24):<{label}}  ", style="dim")
        line.append(one_line(said) or ends, style="not dim")
        if token is not None:
            line.append(f"  token {token}", style="dim")
        line.truncate(console.width, overflow="ellipsis")
        console.print(line)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
