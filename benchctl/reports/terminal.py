"""Tables in a terminal, and a run's summary there: a row an arm, and the conclusion in a sentence."""

from __future__ import annotations

import io
import shlex
import sys
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from benchctl.analysis.results import Analysis
from benchctl.reports import conclusion
from benchctl.reports.columns import Cell, Column, Folded, Row, Table, Tone
from benchctl.reports.first_screen import MOST_ARMS, decisive
from benchctl.text import one_line

STYLES: dict[Tone, str] = {"": "", "good": "green", "fair": "cyan", "open": "yellow", "bad": "red", "quiet": "dim"}
PIPE_WIDTH = 160
"""Columns where there is no terminal: lines stay whole for grep."""
MOST_PLACES = 3
"""Places of a warning that are listed; the others are counted."""
MOST_CHARACTERS = 300
"""Of what was observed, and of the remedy: whole sentences, but not a page of an engine's own text."""
_DECISIVE = ("Task", "Condition", "Run", "Speed-up", "95 % interval", "Output")
"""Columns of what to run that a terminal has; the report has the others."""
_GAP = 2
_WRAPPED = 24
"""Least characters of a column of long texts."""


def table_console() -> Console:
    """A console for tables: colours where there is a terminal, whole lines where there is none."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names and answers may hold what this terminal cannot show
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPE_WIDTH)


def print_table(console: Console, table: Table[Any], *, headings: bool = True) -> None:
    """Print a row a line; where the terminal is too narrow, in several tables that repeat what a row is about."""
    columns = [column for column in table.visible_columns if column.least_width <= console.width]
    cells = [[_text(column.text(row)) for row in table.rows] for column in columns]
    widths = [_width(column, texts, console.width, headings) for column, texts in zip(columns, cells, strict=True)]
    for group in _groups(columns, widths, console.width):
        printed = RichTable(
            box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold", show_header=headings
        )
        whole = sum(_GAP + max(widths[place], cell_len(columns[place].heading) * headings) for place in group)
        fits = whole <= console.width + _GAP  # else headers are wrapped, so that no cell is
        for place in group:
            column = columns[place]
            least = None if column.wrap else min(widths[place], console.width)
            most = None if fits else least
            heading = Text(one_line(column.heading))
            printed.add_column(heading, justify=column.align, overflow="fold", min_width=least, max_width=most)
        for number, row in enumerate(table.rows):
            printed.add_row(*(_styled(columns[place], cells[place][number], row) for place in group))
        console.print(printed)


def print_rows(
    console: Console,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Container[str] = (),
    wrap: str = "",
) -> None:
    """Print rows of texts under headings; those in `right` are aligned right, `wrap` has long texts."""

    def column(place: int, heading: str) -> Column[Sequence[str]]:
        return Column(
            heading,
            lambda row: row[place],
            align="right" if heading in right else "left",
            wrap=heading == wrap,
            heads=not place,
        )

    print_table(console, Table("rows", "Rows", [column(*numbered) for numbered in enumerate(headings)], rows))


def print_facts(console: Console, facts: Iterable[tuple[str, Cell]]) -> None:
    """Print names and values below one another."""
    columns: tuple[Column[tuple[str, Cell]], ...] = (
        Column("fact", lambda fact: fact[0], tone=lambda _: "quiet", heads=True),
        Column("value", lambda fact: fact[1], cell=lambda fact: fact[1], wrap=True),
    )
    print_table(console, Table("facts", "Facts", columns, list(facts)), headings=False)


def print_summary(console: Console, analysis: Analysis, run: str, *, verbose: bool = False) -> None:
    """Print the conclusion, a row an arm, and how many warnings there are; nothing in it is parsed as markup.

    `run`: its folder, for the command that shows the rest; `verbose`: every arm's sentence and every warning.
    """
    rest = f"benchctl report {shlex.quote(run)} -v"
    said = f"{conclusion.headline(analysis)} {conclusion.fidelity(analysis)}".strip()
    console.print(Text(f"\n{one_line(said, 2000)}\n", "bold"))
    for finding in conclusion.findings(analysis):
        console.print(Text(f"- {one_line(finding, 400)}"))
    table, folded = decisive(analysis, None if verbose else MOST_ARMS)
    if analysis.verdicts or analysis.accuracy:
        print_table(console, table)
        if folded:
            console.print(Text(f"{folded} more: {one_line(rest)}", "dim"), soft_wrap=True)
        console.print(Text(one_line(table.note, 1000), "dim"))
    for verdict in analysis.verdicts:
        if verbose or verdict.attestation in ("failed", "off"):
            console.print(Text(f"{one_line(verdict.arm)}: {one_line(f'{verdict.sentence} {verdict.why}')}"))
    if control := conclusion.null_control(analysis):
        console.print(Text(one_line(control)))
    for cell in analysis.failed_cells:
        console.print(Text(f"Failed: {one_line(cell)}", "red"))
    if analysis.stopping:
        console.print(Text(one_line(analysis.stopping.sentence if verbose else conclusion.stopped(analysis)), "dim"))
    groups = _warnings(analysis)
    shown = groups if verbose else [group for group in groups if group.grave]
    _print_warnings(console, shown)
    if count := len(groups) - len(shown):
        said = "1 warning" if count == 1 else f"{count} warnings"
        console.print(Text(f"{said}: {one_line(rest)}", "yellow"), soft_wrap=True)


def _print_warnings(console: Console, groups: Sequence[conclusion.WarningGroup]) -> None:
    """Print a line for each kind: where, the first observation, the remedy."""
    for group in groups:
        places = list(dict.fromkeys(place for place, _ in group.observations))
        more = f" and {len(places) - MOST_PLACES} more" if len(places) > MOST_PLACES else ""
        where = f"{', '.join(places[:MOST_PLACES])}{more}"
        message = f"{one_line(group.observations[0][1], MOST_CHARACTERS)} {one_line(group.todo, MOST_CHARACTERS)}"
        console.print(Text(f"- {one_line(where)}: {message}", "yellow"))


def _warnings(analysis: Analysis) -> list[conclusion.WarningGroup]:
    return [group for group in conclusion.grouped_warnings(analysis) if group.id != "failed-cell"]  # printed themselves


def print_decision(console: Console, analysis: Analysis, page: str | None = None, *, verbose: bool = False) -> None:
    """Print the last lines: what to run, what to measure next, where the page is; `verbose`: whole commands."""
    decided = conclusion.only_group(analysis)
    console.print()
    if decided is not None:
        console.print(Text(one_line(decided.sentence, 400), "bold"))
    table = conclusion.what_to_run(analysis)
    if (verbose or decided is None) and any(row.arm for row in table.rows) and len(table.rows) > 1:
        console.print(Text(f"\n{table.title}", "bold"))
        print_table(console, replace(table, columns=[column for column in table.columns if column.header in _DECISIVE]))
    elif decided is not None and decided.tasks and verbose:
        console.print(Text("The same holds for every task: no arm is shown to be faster on any of them."))
    for added, arm in {row.added: row.arm for row in reversed(table.rows) if row.added}.items():
        console.print(Text(f"Add to your command ({one_line(arm or '')}): {one_line(added, 4000)}"), soft_wrap=True)
    for name, command in conclusion.production_commands(table.rows) if verbose else []:
        console.print(Text(f"{one_line(name)}:\n  {one_line(command, 4000)}"), soft_wrap=True)
    experiment = analysis.decision.next if analysis.decision else None
    if experiment:
        console.print(Text(f"Most likely to change this: {one_line(experiment.sentence, 600)}"))
        console.print(Text(f"  {one_line(experiment.command, 1000)}"), soft_wrap=True)
    if page:
        console.print(Text(f"Report: {one_line(page)}"), soft_wrap=True)


def _groups(columns: Sequence[Column[Any]], widths: Sequence[int], available: int) -> list[list[int]]:
    """Places of the columns of each table, so that every table fits; the columns that head a row are in each."""
    heads = [place for place, column in enumerate(columns) if column.heads]
    used = start = sum(widths[place] + _GAP for place in heads)
    groups = [list(heads)]
    for place, width in enumerate(widths):
        if place in heads:
            continue
        if used + width > available and len(groups[-1]) > len(heads):
            groups.append(list(heads))
            used = start
        groups[-1].append(place)
        used += width + _GAP
    return [sorted(group) for group in groups]


def _width(column: Column[Any], texts: Sequence[str], available: int, headed: bool) -> int:
    """Width of a column in characters: its longest cell, or the longest word of its header, at most half of all."""
    header = max((cell_len(word) for word in one_line(column.heading).split()), default=0) * headed
    longest = max((cell_len(line) for text in texts for line in text.splitlines()), default=0)
    return max(header, min(longest, _WRAPPED if column.wrap else available // 2))


def _text(cell: Cell) -> str:
    pieces = cell if isinstance(cell, tuple) else (cell,)
    return " ".join(one_line(piece.summary if isinstance(piece, Folded) else piece) for piece in pieces)


def _styled(column: Column[Row], text: str, row: Row) -> Text:
    return Text(text, STYLES[column.tone_of(row)] or ("bold" if column.heads else ""))
