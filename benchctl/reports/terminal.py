"""Tables and sentences in a terminal."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Container, Iterable, Sequence
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from benchctl.reports.columns import Cell, Column, Folded, Row, Table, Tone
from benchctl.text import one_line

STYLES: dict[Tone, str] = {"": "", "good": "green", "fair": "cyan", "open": "yellow", "bad": "red", "quiet": "dim"}
PIPE_WIDTH = 160
"""Columns where there is no terminal and no COLUMNS: lines stay whole for grep."""
LEAST_WIDTH = 40
"""Columns below which COLUMNS is not obeyed."""
_GAP = 2
_WRAPPED = 24
"""Least characters of a column of long texts."""


def table_console() -> Console:
    """A console for tables: colours where there is a terminal, whole lines where there is none."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names and answers may hold what this terminal cannot show
    console = Console(highlight=False)
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isascii() and columns.isdigit() and int(columns[:5]) >= LEAST_WIDTH else PIPE_WIDTH
    return console if console.is_terminal else Console(highlight=False, width=width)


def print_table(console: Console, table: Table[Any], *, headings: bool = True) -> None:
    """Print a row a line; where the terminal is too narrow, in several tables that repeat what a row is about."""
    columns = [column for column in table.visible_columns if column.least_width <= console.width]
    cells = [[_text(column.text(row)) for row in table.rows] for column in columns]
    widths = [_width(column, texts, console.width, headings) for column, texts in zip(columns, cells, strict=True)]
    gaps, room = len(widths) - 1, console.width - sum(widths)
    gap = 1 if gaps <= room < _GAP * gaps else _GAP  # a table that only just does not fit stays whole
    for group in _groups(columns, widths, console.width, gap):
        printed = RichTable(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="bold", show_header=headings)
        group_width = sum(gap + max(widths[index], cell_len(columns[index].heading) * headings) for index in group)
        fits = group_width <= console.width + gap  # else headers are wrapped, so that no cell is
        for index in group:
            column = columns[index]
            min_width = None if column.wrap else min(widths[index], console.width)
            max_width = None if fits else min_width
            heading = Text(one_line(column.heading))
            printed.add_column(heading, justify=column.align, overflow="fold", min_width=min_width, max_width=max_width)
        for number, row in enumerate(table.rows):
            printed.add_row(*(_styled(columns[index], cells[index][number], row) for index in group))
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

        def column(index: int, heading: str) -> Column[Sequence[str]]:
            align: Literal["left", "right"] = "right" if heading in right else "left"
            return Column(heading, lambda row: row[index], align=align, wrap=heading == wrap, heads=not index)

        self.table(Table("rows", "Rows", [column(*numbered) for numbered in enumerate(headings)], rows))

    def facts(self, facts: Iterable[tuple[str, Cell]]) -> None:
        """Print names and values, a line each."""
        columns: tuple[Column[tuple[str, Cell]], ...] = (
            Column("fact", lambda fact: fact[0], tone=lambda _: "quiet", heads=True),
            Column("value", lambda fact: fact[1], cell=lambda fact: fact[1], wrap=True),
        )
        self.table(Table("facts", "Facts", columns, list(facts)), headings=False)


def _groups(columns: Sequence[Column[Any]], widths: Sequence[int], available: int, gap: int) -> list[list[int]]:
    """Places of the columns of each table, so that every table fits; the columns that head a row are in each."""
    heads = [index for index, column in enumerate(columns) if column.heads]
    used = start = sum(widths[index] + gap for index in heads)
    groups = [list(heads)]
    for index, width in enumerate(widths):
        if index in heads:
            continue
        if used + width > available and len(groups[-1]) > len(heads):
            groups.append(list(heads))
            used = start
        groups[-1].append(index)
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
