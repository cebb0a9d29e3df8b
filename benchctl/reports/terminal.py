"""Tables in a terminal, and a run's summary there: a row an arm, and the conclusion in a sentence."""

from __future__ import annotations

import io
import shlex
import sys
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from benchctl.analysis.results import Analysis
from benchctl.analysis.scope import scope_lines
from benchctl.reports import conclusion
from benchctl.reports.columns import Cell, Column, Folded, Row, Table, Tone
from benchctl.reports.first_screen import MOST_ARMS, decisive
from benchctl.text import first, one_line, plural

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
    gaps, room = len(widths) - 1, console.width - sum(widths)
    gap = 1 if gaps <= room < _GAP * gaps else _GAP  # a table that only just does not fit stays whole
    for group in _groups(columns, widths, console.width, gap):
        printed = RichTable(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="bold", show_header=headings)
        whole = sum(gap + max(widths[place], cell_len(columns[place].heading) * headings) for place in group)
        fits = whole <= console.width + gap  # else headers are wrapped, so that no cell is
        for place in group:
            column = columns[place]
            least = None if column.wrap else min(widths[place], console.width)
            most = None if fits else least
            heading = Text(one_line(column.heading))
            printed.add_column(heading, justify=column.align, overflow="fold", min_width=least, max_width=most)
        for number, row in enumerate(table.rows):
            printed.add_row(*(_styled(columns[place], cells[place][number], row) for place in group))
        console.print(printed)


class Printout:
    """What a command prints: sentences, tables and facts. Every text is untrusted, and nothing is parsed as markup."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or table_console()

    def say(self, text: str = "", style: str = "", *, whole: bool = False, most: int = 2000) -> None:
        """Print a sentence, or an empty line. `whole`: a line that stays whole, such as a command or a path."""
        self.console.print(Text(one_line(text, most), style), soft_wrap=whole)

    def below(self, text: str, style: str = "") -> None:
        """Print a sentence that belongs to the line above it."""
        self.console.print(Padding.indent(Text(one_line(text, 2000), style), 2))

    def table(self, table: Table[Any], *, titled: bool = False, headings: bool = True) -> None:
        """Print a table; `titled`: with its title above, and what its columns mean below."""
        if titled:
            self.say(table.title, "bold")
        print_table(self.console, table, headings=headings)
        if titled and table.explanation:
            self.say(table.explanation, "dim", most=6000)

    def rows(
        self, headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Container[str] = (), wrap: str = ""
    ) -> None:
        """Print rows of texts under headings; those in `right` are aligned right, `wrap` has long texts."""

        def column(place: int, heading: str) -> Column[Sequence[str]]:
            align: Literal["left", "right"] = "right" if heading in right else "left"
            return Column(heading, lambda row: row[place], align=align, wrap=heading == wrap, heads=not place)

        self.table(Table("rows", "Rows", [column(*numbered) for numbered in enumerate(headings)], rows))

    def facts(self, facts: Iterable[tuple[str, Cell]]) -> None:
        """Print names and values, a line each."""
        columns: tuple[Column[tuple[str, Cell]], ...] = (
            Column("fact", lambda fact: fact[0], tone=lambda _: "quiet", heads=True),
            Column("value", lambda fact: fact[1], cell=lambda fact: fact[1], wrap=True),
        )
        self.table(Table("facts", "Facts", columns, list(facts)), headings=False)


def print_run(analysis: Analysis, folder: Path, page: Path | None = None, *, verbose: bool = False) -> None:
    """Print a run's summary, what to run, and where its report is, or what follows."""
    console = Console()
    print_summary(console, analysis, str(folder), verbose=verbose)
    print_decision(console, analysis, None if page is None else str(page), verbose=verbose)
    if page is None:
        print_next(Printout(console), folder)


def print_next(out: Printout, run: Path) -> None:
    """Print what follows on a run."""
    name = shlex.quote(str(run))
    out.say(f"Next: benchctl verify-lossless {name}", whole=True)
    out.say(f"      benchctl report {name}", whole=True)


def print_summary(console: Console, analysis: Analysis, run: str, *, verbose: bool = False) -> None:
    """Print the conclusion, a row an arm, and how many warnings there are; nothing in it is parsed as markup.

    `run`: its folder, for the command that shows the rest; `verbose`: every arm's sentence and every warning.
    """
    out, rest = Printout(console), f"benchctl report {shlex.quote(run)} -v"
    out.say()
    out.say(f"{conclusion.headline(analysis)} {conclusion.fidelity(analysis)}".strip(), "bold")
    out.say()
    for finding in conclusion.findings(analysis):
        out.say(f"- {finding}")
    table, folded = decisive(analysis, None if verbose else MOST_ARMS)
    if analysis.verdicts or analysis.accuracy:
        out.table(table)
        if folded:
            out.say(f"{folded} more: {rest}", "dim", whole=True)
        out.say(table.note, "dim")
    for verdict in analysis.verdicts:
        if verbose or verdict.attestation in ("failed", "off"):
            out.say(f"{verdict.arm}: {verdict.sentence} {verdict.why}")
    for line in scope_lines(analysis.losslessness):
        out.say(line, "dim")
    if control := conclusion.null_control(analysis):
        out.say(control)
    for cell in analysis.failed_cells:
        out.say(f"Failed: {cell}", "red")
    if analysis.stopping:
        out.say(analysis.stopping.sentence if verbose else conclusion.stopped(analysis), "dim")
    groups = conclusion.grouped_warnings(analysis)
    shown = groups if verbose else [group for group in groups if group.grave]
    _print_warnings(out, shown)
    if len(groups) > len(shown):
        out.say(f"{len(groups)} {plural(len(groups), 'warning')}: {rest}", "yellow", whole=True)


def _print_warnings(out: Printout, groups: Sequence[conclusion.WarningGroup]) -> None:
    """Print a line for each kind: where, the first observation, the remedy."""
    for group in groups:
        places = list(dict.fromkeys(place for place, _ in group.observations))
        message = f"{one_line(group.observations[0][1], MOST_CHARACTERS)} {one_line(group.todo, MOST_CHARACTERS)}"
        out.say(f"- {first(places, MOST_PLACES)}: {message}", "yellow")


def print_decision(console: Console, analysis: Analysis, page: str | None = None, *, verbose: bool = False) -> None:
    """Print the last lines: what to run, what to measure next, where the page is; `verbose`: whole commands."""
    out, decided = Printout(console), conclusion.only_group(analysis)
    out.say()
    if decided is not None:
        out.say(decided.sentence, "bold")
    table = conclusion.what_to_run(analysis)
    if conclusion.has_choices(table) and (verbose or (decided is None and not conclusion.told_by_group(analysis))):
        out.say()
        out.say(table.title, "bold")
        out.table(replace(table, columns=[column for column in table.columns if column.header in _DECISIVE]))
    elif decided is not None and decided.tasks and verbose:
        out.say("The same holds for every task: no arm is shown to be faster on any of them.")
    for added, arm in {row.added: row.arm for row in reversed(table.rows) if row.added}.items():
        out.say(f"Add to your command ({arm or ''}): {added}", whole=True, most=4000)
    for name, command in conclusion.production_commands(table.rows) if verbose else []:
        out.say(f"{name}:")
        out.say(f"  {command}", whole=True, most=4000)
    experiment = analysis.decision.next if analysis.decision else None
    if experiment:
        out.say(f"Most likely to change this: {experiment.sentence}")
        out.say(f"  {experiment.command}", whole=True)
    if page:
        out.say(f"Report: {page}", whole=True)


def _groups(columns: Sequence[Column[Any]], widths: Sequence[int], available: int, gap: int) -> list[list[int]]:
    """Places of the columns of each table, so that every table fits; the columns that head a row are in each."""
    heads = [place for place, column in enumerate(columns) if column.heads]
    used = start = sum(widths[place] + gap for place in heads)
    groups = [list(heads)]
    for place, width in enumerate(widths):
        if place in heads:
            continue
        if used + width > available and len(groups[-1]) > len(heads):
            groups.append(list(heads))
            used = start
        groups[-1].append(place)
        used += width + gap
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
