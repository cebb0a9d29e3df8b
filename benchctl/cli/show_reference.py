"""Prints what `verify-lossless against` found, a comparison with reference runs. Names are untrusted text."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from benchctl.cli.json_output import print_json
from benchctl.lossless.reference import (
    ArmCauses,
    BaselinePair,
    Difference,
    ReferenceComparison,
)
from benchctl.reports import numbers
from benchctl.reports.columns import Column, Name, Table, numeric
from benchctl.reports.terminal import print_table, table_console
from benchctl.text import one_line

MOST_PROMPTS = 6
"""Prompts that are printed."""
_CAUSES = {"baseline": "engine or precision", "speculation": "speculation", "both": "both"}


def print_document(found: ReferenceComparison) -> None:
    """Print the comparison as JSON."""
    print_json("verify-against", {"identical": found.identical, **found.model_dump()})


def print_tables(found: ReferenceComparison) -> None:
    """Print what the baselines differ in, then every arm."""
    console = table_console()
    for number, run in enumerate(found.runs):
        role = "tested" if number == 0 else "reference"
        line = f"{role}: {one_line(run.run)}, {one_line(run.engine, 80)}, weights in {one_line(run.precision)}"
        console.print(Text(line, style="bold" if number == 0 else ""))
    for sentence in found.on_trust:
        console.print(Text(one_line(sentence, 300), style="yellow"))
    console.print(Text("\nWithout speculation: what engine and precision changed", style="bold"))
    print_table(console, _pairs(found))
    for pair in found.baselines:
        _print_prompts(console, " and ".join(pair.runs), pair.differing, pair.undetermined)
    if found.arms:
        console.print(Text("\nWith speculation: every arm, its own baseline and the reference's", style="bold"))
        print_table(console, _causes(found))
        for arm in found.arms:
            if arm.differing or arm.undetermined:
                _print_prompts(console, f"{arm.arm} and {arm.reference}", arm.differing, arm.undetermined)
    console.print()
    for sentence in conclusion(found):
        console.print(Text(one_line(sentence, 500), style="bold"))


def _pairs(found: ReferenceComparison) -> Table[BaselinePair]:
    columns: list[Column[BaselinePair]] = [
        Column("Run", lambda row: row.runs[0], cell=lambda row: Name(row.runs[0]), heads=True),
        Column("against", lambda row: row.runs[1], cell=lambda row: Name(row.runs[1]), heads=True),
        Column("Differ in", lambda row: " and ".join(row.differs_in) or "nothing"),
        numeric("Prompts", lambda row: row.prompts, numbers.count),
        numeric("Identical", lambda row: row.same, cell=lambda row: _share(row.same, row.prompts)),
        numeric("Differ", lambda row: len(row.differing), numbers.count),
        numeric("Undetermined", lambda row: len(row.undetermined), numbers.count),
        numeric("First difference", lambda row: _places(row.differing)),
    ]
    return Table("reference-baselines", "Baselines", columns, found.baselines)


def _causes(found: ReferenceComparison) -> Table[ArmCauses]:
    columns: list[Column[ArmCauses]] = [
        Column("Run", lambda row: row.run, cell=lambda row: Name(row.run), heads=True),
        Column("Arm", lambda row: row.arm, cell=lambda row: Name(row.arm), heads=True),
        Column("against", lambda row: row.reference, cell=lambda row: Name(row.reference), heads=True),
        numeric("Identical", lambda row: row.counts["none"], numbers.count),
        numeric("Engine or precision", lambda row: row.counts["baseline"], numbers.count),
        numeric("Speculation", lambda row: row.counts["speculation"], numbers.count),
        numeric("Both", lambda row: row.counts["both"], numbers.count),
        numeric("Undone", lambda row: row.counts["undone"], numbers.count),
        numeric("Undetermined", lambda row: row.counts["undetermined"], numbers.count),
        numeric("First difference", lambda row: _places(row.differing)),
    ]
    return Table("reference-arms", "Arms", columns, found.arms)


def conclusion(found: ReferenceComparison) -> list[str]:
    """Return what engine, precision and speculation each changed, a sentence each."""
    statements = []
    split = any(len(pair.differs_in) == 1 for pair in found.baselines)
    for pair in found.baselines:
        compared = pair.prompts - len(pair.undetermined)
        what = " and ".join(pair.differs_in)
        if not compared:
            statements.append(f"{pair.runs[0]} and {pair.runs[1]}: no prompt can be compared.")
        elif len(pair.differs_in) == 1:
            statements.append(f"The {what} alone changed {len(pair.differing)} of {compared} answers ({_named(pair)}).")
        elif pair.differs_in:
            more = (
                ""
                if split or not pair.differing
                else "; compare with a run that differs in only the engine or the precision, too, to separate the two"
            )
            statements.append(
                f"{what.capitalize()} together changed {len(pair.differing)} of {compared} answers "
                f"({_named(pair)}){more}."
            )
        else:
            statements.append(
                f"Same engine, same precision: {len(pair.differing)} of {compared} answers differ ({_named(pair)})."
            )
    for arm in found.arms:
        changed = arm.counts["speculation"] + arm.counts["both"] + arm.counts["undone"]
        compared = sum(arm.counts.values()) - arm.counts["undetermined"]
        statements.append(
            f"Speculation changed {changed} of {compared} answers of {arm.arm} (run {arm.run}); "
            f"{arm.counts['none'] + arm.counts['undone']} are identical to the reference ({arm.reference})."
        )
    return statements


def _named(pair: BaselinePair) -> str:
    return f"{pair.runs[0]} against {pair.runs[1]}"


def _print_prompts(console: Console, which: str, differing: Sequence[Difference], undetermined: Sequence[str]) -> None:
    if differing:
        console.print(Text(f"  {one_line(which, 200)}:", style="dim"))
    for prompt in differing[:MOST_PROMPTS]:
        cause = f", {_CAUSES[prompt.cause]}" if prompt.cause in _CAUSES else ""
        margins = ["not scored" if value is None else f"{value:.3f}" for value in prompt.margins]
        line = f"    {one_line(prompt.task)}/{prompt.prompt_idx}: diverges at {prompt.unit} {prompt.index}{cause}"
        if any(value is not None for value in prompt.margins):
            line += f"; margins of the two targets there, in nats: {', '.join(margins)}"
        console.print(Text(line, style="dim"))
    if len(differing) > MOST_PROMPTS:
        console.print(Text(f"    … and {len(differing) - MOST_PROMPTS} more (--json lists all).", style="dim"))
    if undetermined:
        names = ", ".join(undetermined[:MOST_PROMPTS]) + (", …" if len(undetermined) > MOST_PROMPTS else "")
        console.print(
            Text(
                f"    Undetermined: {one_line(names)} (missing, failed, not the same in every block, or another "
                "prompt text).",
                style="yellow",
            )
        )


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole}"


def _places(differing: Sequence[Difference]) -> str | None:
    """Where answers diverge: the earliest index and the median."""
    places = [prompt.index for prompt in differing]
    return f"{min(places)} (median {statistics.median(places):g})" if places else None
