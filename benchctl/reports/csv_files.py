"""The CSV files of a report: one row a result, numbers in full precision, an empty cell where a value is not known."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from functools import cache
from typing import Any

from benchctl.analysis.results import Analysis
from benchctl.reports.columns import Column, Table
from benchctl.reports.tables.acceptance import acceptance
from benchctl.reports.tables.output import answers
from benchctl.reports.tables.speed import costs, decode_rates, speedups
from benchctl.reports.tables.sweep import conditions
from benchctl.text import one_line


def all_tables(analysis: Analysis) -> dict[str, str]:
    """Return file name to content of every CSV file."""
    tables: list[Table[Any]] = [table(analysis) for table in (speedups, acceptance, answers, decode_rates, costs)]
    if analysis.sweep is not None:
        tables.append(conditions(analysis))
    lossy = {verdict.arm: ", ".join(verdict.lossy) for verdict in analysis.verdicts}
    return {f"{table.name}.csv": csv_table(table, lossy) for table in tables}


def csv_table(table: Table[Any], lossy: dict[str, str]) -> str:
    """The columns that have a key; the last column says what is lossy by design in the arm of the first."""
    fields = [field for column in table.columns if column.key for field in _fields(column)]
    safe = cache(spreadsheet_text)  # names and reasons come again and again
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*(name for name, _ in fields), "lossy"])
    values = [value for _, value in fields]
    for row in table.rows:
        cells = [value(row) for value in values]
        told = [safe(cell) if isinstance(cell, str) else _plain(cell) for cell in cells]
        writer.writerow([*told, safe(lossy.get(cells[0], ""))])
    return stream.getvalue()


def _fields(column: Column[Any]) -> list[tuple[str, Callable[[Any], Any]]]:
    """(header, value) of every CSV column that a declared column has."""
    if not column.parts:
        return [(column.key, column.value)]

    def part(name: str) -> Callable[[Any], Any]:
        return lambda row: getattr(column.value(row), name, None)

    return [(column.key.format(name), part(name)) for name in column.parts]


def _plain(value: object) -> object:
    return json.dumps(value) if isinstance(value, list | tuple | dict) else value


def spreadsheet_text(text: str) -> str:
    """One line of visible text that no spreadsheet takes for a formula (a leading apostrophe, as OWASP advises)."""
    line = one_line(text)
    return f"'{line}" if line.startswith(("=", "+", "-", "@")) else line
