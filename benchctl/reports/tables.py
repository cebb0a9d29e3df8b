"""The CSV files of a report: one row a result, numbers in full precision, an empty cell where a value is not known."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import chain, count, repeat
from operator import attrgetter

from benchctl.analysis.results import Analysis, Comparison, Fork, SpeedUp
from benchctl.reports.sweep import level_cells
from benchctl.reports.untrusted import spreadsheet_text

Cell = str | float | int | bool | None


def all_tables(analysis: Analysis) -> dict[str, str]:
    """Return file name to content of every CSV file."""
    lossy = {verdict.arm: ", ".join(verdict.lossy) for verdict in analysis.verdicts}
    found = {
        "speedup.csv": _results(lossy, (_speedup(row) for row in analysis.speedups), "arm", "task", "pooled"),
        "acceptance.csv": _results(lossy, (row.model_dump() for row in analysis.acceptance), "arm", "task", "rate"),
        "losslessness.csv": _losslessness(lossy, analysis),
        "throughput.csv": _throughput(lossy, analysis),
        "costs.csv": _results(lossy, (row.model_dump() for row in analysis.costs), "arm", "depth", "alpha"),
    }
    if analysis.sweep is not None:
        found["conditions.csv"] = _results(lossy, map(level_cells, analysis.sweep.levels), "arm")
    return found


def _speedup(row: SpeedUp) -> dict[str, object]:
    intervals = ("interval", "simultaneous", "like_these")
    ends = {f"{name}_{end}": getattr(getattr(row, name), end, None) for name in intervals for end in ("low", "high")}
    return row.model_dump(exclude=set(intervals)) | ends


def _throughput(lossy: Mapping[str, str], analysis: Analysis) -> str:
    """One row a record: only number and rate change from row to row, so that the texts are made safe once."""
    rows = (
        zip(*map(repeat, map(spreadsheet_text, (row.arm, row.task))), count(), row.tok_per_sec, repeat(label))
        for row in analysis.throughput
        for label in [spreadsheet_text(lossy.get(row.arm, ""))]
    )
    return _csv(("arm", "task", "record", "tok_per_sec"), chain.from_iterable(rows))


def _losslessness(lossy: Mapping[str, str], analysis: Analysis) -> str:
    """One row a prompt and arm, which may be very many: values are taken as they are, without a dictionary a row."""
    keys = [key for key in Comparison.model_fields if key not in ("fork", "other_forks")]
    fork_keys = {f"fork_{key}": key for key in ("index", "unit", "width", "baseline_token", "arm_token")}
    fork_keys |= {key: key for key in ("margin", "noise_floor")}
    ways = ("verify", "prefill")
    values, fork_values = attrgetter(*keys), attrgetter(*fork_keys.values())
    nothing = (None,) * (len(fork_keys) + len(ways))
    rows = (
        (*values(one), *(nothing if one.fork is None else (*fork_values(one.fork), *_margins(one.fork, ways))))
        for arm in analysis.losslessness
        for one in arm.comparisons
    )
    return _table(lossy, (*keys, *fork_keys, *(f"margin_{way}" for way in ways)), rows)


def _margins(fork: Fork, ways: Sequence[str]) -> Iterable[float | None]:
    told: dict[str, float | None] = {one.shape: one.margin for one in fork.shapes}
    return (told.get(way) for way in ways)


def _results(lossy: Mapping[str, str], rows: Iterable[Mapping[str, object]], *columns: str) -> str:
    """CSV of results that have all the same keys; `columns` name the header where there is no result."""
    listed = list(rows)
    return _table(lossy, list(listed[0]) if listed else columns, (tuple(map(_plain, row.values())) for row in listed))


def _plain(value: object) -> Cell:
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value)


def _table(lossy: Mapping[str, str], header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """CSV of `rows`, whose first cell is an arm; the last column says what is lossy by design in that arm."""
    safe = cache(spreadsheet_text)  # names and reasons come again and again
    label = cache(lambda arm: safe(lossy.get(arm, "")))
    return _csv(
        header, ([*[safe(cell) if isinstance(cell, str) else cell for cell in row], label(row[0])] for row in rows)
    )


def _csv(header: Sequence[str], rows: Iterable[Iterable[Cell]]) -> str:
    """CSV of safe rows that end with what is lossy."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*header, "lossy"])
    writer.writerows(rows)
    return stream.getvalue()
