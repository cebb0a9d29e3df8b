"""The CSV files of a report: one row a result, numbers in full precision, an empty cell where a value is not known."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from operator import attrgetter

from benchctl.analysis.results import Analysis, Comparison, SpeedUp
from benchctl.reports.untrusted import spreadsheet_text

Cell = str | float | int | bool | None


def all_tables(analysis: Analysis) -> dict[str, str]:
    """Return file name to content of every CSV file."""
    return {
        "speedup.csv": _results((_speedup(row) for row in analysis.speedups), "arm", "task", "pooled"),
        "acceptance.csv": _results((row.model_dump() for row in analysis.acceptance), "arm", "task", "rate"),
        "losslessness.csv": _losslessness(analysis),
        "throughput.csv": _table(
            ("arm", "task", "record", "tok_per_sec"),
            (
                (row.arm, row.task, number, value)
                for row in analysis.throughput
                for number, value in enumerate(row.tok_per_sec)
            ),
        ),
        "costs.csv": _results((row.model_dump() for row in analysis.costs), "arm", "depth", "alpha"),
    }


def _speedup(row: SpeedUp) -> dict[str, object]:
    ends = {f"interval_{end}": getattr(row.interval, end, None) for end in ("low", "high")}
    return row.model_dump(exclude={"interval"}) | ends


def _losslessness(analysis: Analysis) -> str:
    """One row a prompt and arm, which may be very many: values are taken as they are, without a dictionary a row."""
    keys = [key for key in Comparison.model_fields if key != "fork"]
    fork_keys = {"fork_index": "index", "fork_unit": "unit", "margin": "margin"}
    values, fork_values = attrgetter(*keys), attrgetter(*fork_keys.values())
    nothing = (None,) * len(fork_keys)
    rows = (
        (*values(one), *(nothing if one.fork is None else fork_values(one.fork)))
        for arm in analysis.losslessness
        for one in arm.comparisons
    )
    return _table((*keys, *fork_keys), rows)


def _results(rows: Iterable[Mapping[str, object]], *columns: str) -> str:
    """CSV of results that have all the same keys; `columns` name the header where there is no result."""
    listed = list(rows)
    return _table(list(listed[0]) if listed else columns, (map(_plain, row.values()) for row in listed))


def _plain(value: object) -> Cell:
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value)


def _table(header: Sequence[str], rows: Iterable[Iterable[Cell]]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(header)
    safe = cache(spreadsheet_text)  # names and reasons come again and again
    writer.writerows([safe(value) if isinstance(value, str) else value for value in row] for row in rows)
    return stream.getvalue()
