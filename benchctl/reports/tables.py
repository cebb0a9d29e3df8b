"""The CSV files of a report: one row a result, numbers in full precision, an empty cell where a value is not known."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from benchctl.analysis.results import Analysis, Result
from benchctl.reports.untrusted import spreadsheet_text

Cell = str | float | int | bool | None


def all_tables(analysis: Analysis) -> dict[str, str]:
    """Return file name to content of every CSV file."""
    return {
        "speedup.csv": _table([_speedup(row.model_dump()) for row in analysis.speedups], "arm", "task", "pooled"),
        "acceptance.csv": _results(analysis.acceptance, "arm", "task", "rate"),
        "losslessness.csv": _table(
            [
                _plain(comparison.model_dump(exclude={"fork"}))
                | {"fork_index": comparison.fork.index if comparison.fork else None}
                | {"fork_unit": comparison.fork.unit if comparison.fork else None}
                | {"margin": comparison.fork.margin if comparison.fork else None}
                for arm in analysis.losslessness
                for comparison in arm.comparisons
            ],
            *("arm", "task", "prompt_idx", "outcome"),
        ),
        "throughput.csv": _table(
            [
                {"arm": row.arm, "task": row.task, "record": number, "tok_per_sec": value}
                for row in analysis.throughput
                for number, value in enumerate(row.tok_per_sec)
            ],
            *("arm", "task", "record", "tok_per_sec"),
        ),
        "costs.csv": _results(analysis.costs, "arm", "depth", "alpha"),
    }


def _speedup(row: dict[str, object]) -> dict[str, Cell]:
    interval = row.pop("interval")
    ends = interval if isinstance(interval, Mapping) else {}
    return _plain(row) | {f"interval_{end}": ends.get(end) for end in ("low", "high")}


def _results(rows: Iterable[Result], *columns: str) -> str:
    return _table([_plain(row.model_dump()) for row in rows], *columns)


def _plain(row: Mapping[str, object]) -> dict[str, Cell]:
    return {
        key: value if value is None or isinstance(value, str | int | float) else json.dumps(value)
        for key, value in row.items()
    }


def _table(rows: Sequence[Mapping[str, Cell]], *columns: str) -> str:
    """CSV of `rows`, which have all the same keys; `columns` name the header where there is no row."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    header = list(rows[0]) if rows else list(columns)
    writer.writerow(header)
    safe = cache(spreadsheet_text)  # names and reasons come again and again
    for row in rows:
        writer.writerow([safe(value) if isinstance(value, str) else value for value in row.values()])
    return stream.getvalue()
