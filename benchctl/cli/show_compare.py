"""Prints two runs side by side: a table for people, one JSON document for programs. Names are untrusted text."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from benchctl.analysis.comparison.gates import GateResult
from benchctl.analysis.comparison.results import ArmComparison, RunComparison, RunFacts
from benchctl.analysis.comparison.workload import Change
from benchctl.cli.json_output import print_json
from benchctl.errors import GateError
from benchctl.reports import numbers
from benchctl.reports.columns import Column, Table
from benchctl.reports.tables.comparison import compared_arms
from benchctl.reports.terminal import print_table, table_console
from benchctl.text import one_line

NAMED = 6
"""Prompts that are listed; the others are counted."""


def print_document(found: RunComparison, checked: Sequence[GateResult]) -> None:
    """Print everything as one JSON document."""
    gates = [
        {"gate": str(result.gate), "passed": result.passed, "failures": result.failures, "note": result.note}
        for result in checked
    ]
    print_json("compare", {**found.model_dump(), "gates": gates})


def print_comparison(found: RunComparison, checked: Sequence[GateResult]) -> None:
    """Print both runs, what changed, the table of arms, and the gates."""
    console = table_console()
    for letter, run in (("A", found.a), ("B", found.b)):
        _print_run(console, letter, run)
    _print_changes(console, found)
    console.print()
    print_table(console, compared_arms(found))
    console.print()
    for arm in found.arms:
        _print_remarks(console, arm)
    for names, where in ((found.only_in_a, "A"), (found.only_in_b, "B")):
        if names:
            console.print(Text(f"Only in {where}, so not compared: {one_line(', '.join(names))}.", style="yellow"))
    for result in checked:
        sign, style, outcome = ("✓", "green", "passed") if result.passed else ("✗", "red", "failed")
        line = Text(f"{sign} {result.gate}: {outcome}.", style=style)
        line.append(f" {one_line(result.note)}" if result.note else "", style="default")
        console.print(line)


def gate_error(found: RunComparison, checked: Sequence[GateResult]) -> GateError:
    """Return the error that lists the failed gates and the reasons."""
    failed = [result for result in checked if not result.passed]
    lines = [f"{len(failed)} of {len(checked)} {'gate' if len(checked) == 1 else 'gates'} failed."]
    lines += [f"  {result.gate}: {one_line(reason)}" for result in failed for reason in result.failures]
    return GateError("\n".join(lines), where=f"{found.a.run} and {found.b.run}")


def _print_run(console: Console, letter: str, run: RunFacts) -> None:
    when = f", {numbers.moment(run.created_at)}" if run.created_at else ""
    state = "" if run.status in (None, "finished") else f", {run.status}"
    blocks = "one block" if run.blocks == 1 else f"{run.blocks} blocks"
    console.print(Text(f"{letter}  {one_line(run.recipe)} {one_line(run.run)}{when}, {blocks}{state}"))
    for cell in run.failed_cells:
        console.print(Text(f"   Failed cell: {one_line(cell, 300)}", style="yellow"))
    for sentence in run.damage[:NAMED]:
        console.print(Text(f"   Damaged: {one_line(sentence, 300)}", style="yellow"))
    if run.warnings:
        console.print(Text(f"   Warnings (see its report): {', '.join(run.warnings)}", style="yellow"))


def _print_changes(console: Console, found: RunComparison) -> None:
    for sentence in found.on_trust:
        console.print(Text(one_line(sentence), style="yellow"))
    if not found.changed:
        console.print(Text("What changed: nothing that the manifests record."))
        return
    console.print(Text("What changed:"))
    columns: tuple[Column[Change], ...] = (
        Column("what", lambda change: f"  {change.what}", wrap=True),
        Column("A", lambda change: change.a, wrap=True),
        Column("→", lambda change: "→"),
        Column("B", lambda change: change.b, wrap=True),
    )
    print_table(console, Table("changed", "What changed", columns, found.changed), headings=False)


def _print_remarks(console: Console, arm: ArmComparison) -> None:
    name = one_line(arm.arm)
    if arm.doubt:
        console.print(Text(f"{name}: {arm.doubt}", style="yellow"))
    if arm.prompts and arm.prompts_left_out:
        console.print(Text(f"{name}: {arm.prompts_left_out} prompts were not timed in every block.", style="yellow"))
    if arm.outputs.differing:
        prompts = ", ".join(arm.outputs.differing[:NAMED]) + (", …" if len(arm.outputs.differing) > NAMED else "")
        whose = "the target alone" if arm.is_baseline else name
        console.print(Text(f"Answers of {whose} differ from A: {one_line(prompts)}", style="yellow"))
