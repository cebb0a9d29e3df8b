"""Writes a report's folder: all of it or nothing."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from secrets import token_hex
from typing import Any

from benchctl.analysis.losslessness import Validity
from benchctl.analysis.results import Analysis
from benchctl.analysis.round_results import UnitCost
from benchctl.data.store import RunData
from benchctl.errors import StorageError
from benchctl.reports.columns import Column, Table
from benchctl.reports.figures.draw import draw_all
from benchctl.reports.json_output import json_text
from benchctl.reports.tables.breakeven import needs_table, points_table
from benchctl.reports.tables.output import accuracy, answers, replays, validity
from benchctl.reports.tables.rounds import forecasts, left_out, round_splits, unit_costs
from benchctl.reports.tables.speed import (
    acceptance,
    answer_lengths,
    costs,
    decode_rates,
    resources,
    speedups,
    thinking,
    throughput,
)
from benchctl.reports.tables.sweep import by_axis, conditions, equal_throughput
from benchctl.text import one_line
from benchctl.words.document import analysis_document

MARK = "analysis.json"
"""The file by which a folder is known to be a report, and may be replaced."""


@dataclass(frozen=True)
class ReportFiles:
    """The files of a report."""

    folder: Path
    page: Path
    """The HTML page."""
    markdown: Path
    analysis: Path
    tables: tuple[Path, ...]
    figures: tuple[Path, ...]


def report_folder(analysis: Analysis, out: Path) -> Path:
    """Where the report of a run belongs: `<out>/<recipe>/<run>`."""
    return out / _file_name(analysis.recipe) / _file_name(analysis.run)


def write_report(run: RunData, analysis: Analysis, folder: Path, *, figures: bool = True) -> ReportFiles:
    """Write page, Markdown, tables, JSON and figures into `folder`, replacing an earlier report there.

    Raises StorageError when the folder cannot be written, the disk is full, or it holds something else; then
    nothing has changed.
    """
    contents = render_files(run, analysis, figures=figures)
    if folder.exists() and not (folder / MARK).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise StorageError(
            "Another file or folder is where the report belongs.",
            where=str(folder),
            fix="Move it away, or choose another folder with --output.",
        )
    try:
        _replace(folder, contents)
    except OSError as error:
        raise StorageError(
            f"The report could not be written: {error.strerror or error}.",
            where=str(error.filename or folder),
            fix="Free some space or choose another folder with --output; nothing was changed.",
        ) from None
    paths = [folder / name for name in contents]
    return ReportFiles(
        folder=folder,
        page=folder / "index.html",
        markdown=folder / "report.md",
        analysis=folder / MARK,
        tables=tuple(path for path in paths if path.suffix == ".csv"),
        figures=tuple(path for path in paths if path.parent.name == "figures"),
    )


def render_files(run: RunData, analysis: Analysis, *, figures: bool = True) -> dict[str, bytes]:
    """Return file name to content of a whole report; the same run gives the same bytes."""
    from benchctl.reports.render import render_html, render_markdown

    drawings = draw_all(analysis) if figures else []
    texts = {
        "index.html": render_html(run, analysis, drawings),
        "report.md": render_markdown(run, analysis, drawings),
        MARK: json_text(None, analysis_document(analysis)),
        **all_tables(analysis),
    }
    contents = {name: text.encode() for name, text in texts.items()}
    for drawing in drawings:
        contents[f"figures/{drawing.name}.svg"] = drawing.svg.encode()
        contents[f"figures/{drawing.name}.png"] = drawing.png
    return contents


def _replace(folder: Path, contents: dict[str, bytes]) -> None:
    """Write beside `folder`, then put it in its place; an earlier report survives any failure."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh, old = (folder.with_name(f".{folder.name}.{token_hex(8)}.{word}") for word in ("new", "old"))
    try:
        for name, content in contents.items():
            path = fresh / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        if folder.exists():
            folder.rename(old)
        try:
            fresh.rename(folder)
        except OSError:
            if old.exists():
                old.rename(folder)
            raise
    finally:
        for leftover in (fresh, old):
            shutil.rmtree(leftover, ignore_errors=True)


def _file_name(text: str) -> str:
    name = re.sub(r"[^A-Za-z0-9_.+-]", "_", text).lstrip(".")
    return name[:100] or "unnamed"


def _validity(analysis: Analysis) -> Table[Validity]:
    return validity(analysis.losslessness)


def all_tables(analysis: Analysis) -> dict[str, str]:
    """Return file name to content of every CSV file."""
    tables: list[Table[Any]] = [
        table(analysis) for table in (speedups, acceptance, answers, decode_rates, throughput, costs)
    ]
    of_answers = (_validity, accuracy, thinking, replays, answer_lengths)
    of_some = (*of_answers, resources, round_splits, _unit_costs, forecasts, left_out)
    tables += [rendered for table in of_some if (rendered := table(analysis)).rows]
    if analysis.breakeven is not None:
        tables += [needs_table(analysis.breakeven), points_table(analysis.breakeven)]
    if analysis.sweep is not None:
        tables.append(conditions(analysis))
        tables += [table for table in (by_axis(analysis), equal_throughput(analysis)) if table.rows]
    lossy = {verdict.arm: ", ".join(verdict.lossy) for verdict in analysis.verdicts}
    return {f"{table.name}.csv": csv_table(table, lossy) for table in tables}


def _unit_costs(analysis: Analysis) -> Table[UnitCost]:
    return unit_costs(analysis.rounds.units)


def csv_table(table: Table[Any], lossy: dict[str, str]) -> str:
    """The columns that have a key; the last column: what is lossy by design in the arm of the first."""
    fields = [field for column in table.columns if column.csv_key for field in _fields(column)]
    safe = cache(spreadsheet_text)  # names and reasons repeat
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*(name for name, _ in fields), "lossy"])
    values = [value for _, value in fields]
    for row in table.rows:
        cells = [value(row) for value in values]
        texts = [safe(cell) if isinstance(cell, str) else _plain(cell) for cell in cells]
        writer.writerow([*texts, safe(lossy.get(cells[0], ""))])
    return stream.getvalue()


def _fields(column: Column[Any]) -> list[tuple[str, Callable[[Any], Any]]]:
    """(header, value) of every CSV column that a declared column has."""
    if not column.parts:
        return [(column.csv_key, column.value)]

    def part(name: str) -> Callable[[Any], Any]:
        return lambda row: getattr(column.value(row), name, None)

    return [(column.csv_key.format(name), part(name)) for name in column.parts]


def _plain(value: object) -> object:
    return json.dumps(value) if isinstance(value, list | tuple | dict) else value


def spreadsheet_text(text: str) -> str:
    """A line of visible text that no spreadsheet reads as a formula (a leading apostrophe, as OWASP advises)."""
    line = one_line(text)
    return f"'{line}" if line.startswith(("=", "+", "-", "@")) else line
