"""How two runs are shown side by side: a table for people, one JSON document for programs. Names are untrusted text."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchctl.analysis.comparison.gates import Judgement
from benchctl.analysis.comparison.results import ArmComparison, Ratio, RunComparison, RunFacts
from benchctl.analysis.lossy import lossy_label
from benchctl.cli.show_lossless import COLOUR, PIPE_WIDTH
from benchctl.errors import GateError
from benchctl.reports import numbers
from benchctl.text import one_line

DOCUMENT_SCHEMA = 1
"""The version of the JSON document; it rises when a key changes its meaning or goes."""
SHOWN = 6
"""Prompts that are named; the others are counted."""
WIDE = 140
"""Columns from which everything about an arm stands in one row."""
_SPEED = {"faster": "green", "slower": "red"}

_Column = tuple[str, Callable[[ArmComparison], Text]]
"""(heading, what stands below it of an arm)."""


def print_document(found: RunComparison, judged: Sequence[Judgement]) -> None:
    """Print everything as one JSON document in ASCII."""
    gates = [
        {"gate": str(one.gate), "passed": one.passed, "failures": one.failures, "note": one.note} for one in judged
    ]
    document = {"schema": DOCUMENT_SCHEMA, **found.model_dump(), "gates": gates}
    sys.stdout.write(json.dumps(document, separators=(",", ":")) + "\n")


def print_comparison(found: RunComparison, judged: Sequence[Judgement]) -> None:
    """Print both runs, what changed, the table of arms, and the gates."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names may hold what this terminal cannot show
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PIPE_WIDTH)
    for letter, run in (("A", found.a), ("B", found.b)):
        _print_run(console, letter, run)
    _print_changes(console, found)
    _print_arms(console, found)
    for arm in found.arms:
        _print_remarks(console, arm)
    for names, where in ((found.only_in_a, "A"), (found.only_in_b, "B")):
        if names:
            console.print(Text(f"Only in {where}, so not compared: {one_line(', '.join(names))}.", style="yellow"))
    for one in judged:
        sign, style, said = ("✓", "green", "passed") if one.passed else ("✗", "red", "failed")
        line = Text(f"{sign} {one.gate}: {said}.", style=style)
        line.append(f" {one_line(one.note)}" if one.note else "", style="default")
        console.print(line)


def gate_error(found: RunComparison, judged: Sequence[Judgement]) -> GateError:
    """Return the error that says which gates failed, and why."""
    failed = [one for one in judged if not one.passed]
    lines = [f"{len(failed)} of {len(judged)} {'gate' if len(judged) == 1 else 'gates'} failed."]
    lines += [f"  {one.gate}: {one_line(reason)}" for one in failed for reason in one.failures]
    return GateError("\n".join(lines), where=f"{found.a.run} and {found.b.run}")


def _print_run(console: Console, letter: str, run: RunFacts) -> None:
    when = f", {numbers.moment(run.created_at)}" if run.created_at else ""
    state = "" if run.status in (None, "finished") else f", {run.status}"
    blocks = "one block" if run.blocks == 1 else f"{run.blocks} blocks"
    console.print(Text(f"{letter}  {one_line(run.recipe)} {one_line(run.run)}{when}, {blocks}{state}"))
    for cell in run.failed_cells:
        console.print(Text(f"   Failed cell: {one_line(cell, 300)}", style="yellow"))
    if run.warnings:
        console.print(Text(f"   Warnings (see its report): {', '.join(run.warnings)}", style="yellow"))


def _print_changes(console: Console, found: RunComparison) -> None:
    for sentence in found.on_trust:
        console.print(Text(one_line(sentence), style="yellow"))
    if not found.changed:
        console.print(Text("What changed: nothing that the manifests tell."))
        return
    console.print(Text("What changed:"))
    table = Table.grid(padding=(0, 2, 0, 0))
    for change in found.changed:
        cells = (f"  {one_line(change.what)}", one_line(change.a), "→", one_line(change.b))
        table.add_row(*(Text(cell, overflow="fold") for cell in cells))
    console.print(table)


def _print_arms(console: Console, found: RunComparison) -> None:
    """Print a row an arm; where the terminal is narrow, speed first and the rest below it."""
    speed: list[_Column] = [
        ("A tok/s", lambda arm: Text(numbers.rate(arm.rate.a), justify="right")),
        ("B tok/s", lambda arm: Text(numbers.rate(arm.rate.b), justify="right")),
        ("B/A (95 %)", lambda arm: Text(_ratio(arm.rate), justify="right")),
        ("speed", lambda arm: Text(arm.speed, style=_SPEED.get(arm.speed, ""))),
    ]
    rest: list[_Column] = [
        ("speed-up A → B", _speedups),
        ("accepted A → B", _accepted),
        ("output A → B", _output),
        ("answers", _answers),
    ]
    for columns in [speed + rest] if console.width >= WIDE else [speed, rest]:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column("arm", overflow="fold")
        for heading, _ in columns:
            table.add_column(heading, overflow="fold")
        for arm in found.arms:
            name = Text(one_line(arm.arm + lossy_label(arm.lossy)), style="bold")
            table.add_row(name, *(cell(arm) for _, cell in columns))
        console.print()
        console.print(table)
    console.print()


def _ratio(told: Ratio) -> str:
    return numbers.ratio(told.ratio) + (f"  {numbers.interval(told.interval)}" if told.interval else "")


def _arrow(a: str, b: str) -> str:
    return a if a == b else f"{a} → {b}"


def _speedups(arm: ArmComparison) -> Text:
    return Text("baseline" if arm.is_baseline else _arrow(numbers.ratio(arm.speedup.a), numbers.ratio(arm.speedup.b)))


def _accepted(arm: ArmComparison) -> Text:
    return Text(_arrow(numbers.percent(arm.acceptance_a), numbers.percent(arm.acceptance_b)))


def _output(arm: ArmComparison) -> Text:
    a, b = arm.lossless_a or numbers.ABSENT, arm.lossless_b or numbers.ABSENT
    return Text(_arrow(a, b), style=COLOUR.get(b, ""))


def _answers(arm: ArmComparison) -> Text:
    told = arm.outputs
    if not told.differing and not told.undetermined:
        return Text("the same", style="green")
    parts = [f"{told.same} same"]
    if told.differing:
        parts.append(f"{len(told.differing)} differ")
    if told.undetermined:
        parts.append(f"{len(told.undetermined)} undetermined")
    return Text(", ".join(parts), style="yellow")


def _print_remarks(console: Console, arm: ArmComparison) -> None:
    name = one_line(arm.arm)
    if arm.doubt:
        console.print(Text(f"{name}: {arm.doubt}", style="yellow"))
    if arm.prompts and arm.prompts_left_out:
        console.print(Text(f"{name}: {arm.prompts_left_out} prompts were not timed in every block.", style="yellow"))
    if arm.outputs.differing:
        shown = ", ".join(arm.outputs.differing[:SHOWN]) + (", …" if len(arm.outputs.differing) > SHOWN else "")
        whose = "The target alone answers" if arm.is_baseline else f"{name} answers"
        console.print(Text(f"{whose} otherwise than in A: {one_line(shown)}", style="yellow"))
