"""A static site of many runs: an index that sorts and searches, curves over time, and every run's report.

All names are untrusted text: the template escapes them, files are named by what is harmless of a run's name and a
digest, and the page's policy allows its own scripts alone. Pages of runs that did not change are not made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime
from functools import partial
from importlib.resources import files
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchctl import __version__
from benchctl.analysis.comparison.summary import RunSummary, fingerprint
from benchctl.data.writer import cannot_write, write_whole
from benchctl.errors import BenchctlError, StorageError
from benchctl.experiments.history.series import (
    MOST_LISTED,
    Row,
    Series,
    history_of,
    read_summaries,
    step_sentence,
    workloads,
)
from benchctl.reports import numbers, page
from benchctl.reports.render import template_environment
from benchctl.reports.tables.output import OUTPUT_TONE
from benchctl.text import visible

OF = ".of"
"""Beside a run's page: what it was made of."""
GENERATOR = 'content="benchctl site"'
"""By which an index is known to be a site's, and may be replaced."""
COLUMNS = (
    *(("Run", ""), ("Arm", ""), ("Speed-up", "n"), ("95 %", "n"), ("Acceptance length", "n"), ("Output", "")),
    *(("Date", ""), ("Type", ""), ("Engine", ""), ("Build", ""), ("Machine", ""), ("Model", ""), ("Recipe", "")),
)
CHOOSERS = ("Model", "Engine", "Build", "Machine", "Type", "Output")


def write_site(results: Path, out: Path, *, figures: bool = False) -> tuple[Path, int, dict[str, str]]:
    """Write the site of all runs below `results` into `out`; return its index, how many pages were made, what failed.

    Raises StorageError where `out` has something else in it or cannot be written.
    """
    runs, unreadable = read_summaries(results)
    index = out / "index.html"
    try:
        known = GENERATOR in index.read_text("utf-8", "replace")[:1000] if index.is_file() else False
        if out.exists() and not known and (not out.is_dir() or any(out.iterdir())):
            fix = "Choose an empty folder with -o."
            raise StorageError("There is something else than a site of benchctl.", where=str(out), fix=fix)
        out.mkdir(parents=True, exist_ok=True)
        failed = {str(path.relative_to(results)): str(error.what) for path, error in unreadable.items()}
        pages = {run.folder: f"runs/{_name(run, results)}" for run in runs}
        made = _write_pages({Path(folder): out / name for folder, name in pages.items()}, figures, failed)
        for old in (out / "runs").glob(f"*/{OF}"):
            if f"runs/{old.parent.name}" not in pages.values():
                shutil.rmtree(old.parent)
        there = {folder: f"{name}/index.html" for folder, name in pages.items() if (out / name / OF).is_file()}
        write_whole(index, render_index(runs, there, failed))
    except OSError as error:
        raise cannot_write(error, out) from None
    return index, made, failed


def _name(run: RunSummary, results: Path) -> str:
    place = Path(run.folder).relative_to(results).as_posix()
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', run.run)[:60]}-{hashlib.sha256(place.encode()).hexdigest()[:8]}"


def _write_pages(pages: Mapping[Path, Path], figures: bool, failed: dict[str, str]) -> int:
    """Write the reports that are not there, on all cores; return how many."""
    lacking = [(run, folder) for run, folder in pages.items() if not _is_made(run, folder, figures=figures)]
    workers = min(os.cpu_count() or 1, len(lacking))
    write = partial(_write_page, figures=figures)
    if len(lacking) < 4:
        errors = list(map(write, lacking))
    else:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            errors = list(pool.map(write, lacking, chunksize=4))
    failed |= {str(run): error for (run, _), error in zip(lacking, errors, strict=True) if error is not None}
    return errors.count(None)


def _made_of(run: Path, *, figures: bool) -> bytes:
    return fingerprint(run, f"{__version__} {'with' if figures else 'without'} figures")


def _is_made(run: Path, folder: Path, *, figures: bool) -> bool:
    return (folder / OF).is_file() and (folder / OF).read_bytes() == _made_of(run, figures=figures)


def _write_page(place: tuple[Path, Path], *, figures: bool) -> str | None:
    """Write a run's report; return why it cannot be made."""
    from benchctl.data.store import open_run
    from benchctl.lossless.analysed import analyse_run
    from benchctl.reports.write import write_report

    run, folder = place
    made_of = _made_of(run, figures=figures)
    try:
        data = open_run(run)
        write_report(data, analyse_run(data), folder, figures=figures)
        (folder / OF).write_bytes(made_of)
    except BenchctlError as error:
        return str(error.what)
    return None


def render_index(runs: Sequence[RunSummary], pages: Mapping[str, str], failed: Mapping[str, str]) -> str:
    """Return the page. `pages`: where each run's own page is, by the run's folder."""
    from markupsafe import Markup

    rows: list[Row] = []
    groups: list[dict[str, Any]] = []
    for workload, of_it in workloads(runs).items():
        own, series = history_of(of_it)
        rows += own
        sentences = [sentence for found in series for sentence in _sentences(found)]
        many = f"{len(of_it)} run{'' if len(of_it) == 1 else 's'}"
        title = f"{of_it[-1].recipe} ({workload[:8] or 'not recorded'}, {many})"
        groups.append({"title": title, "sentences": sentences or ["No step was found."], "data": _plot(own, series)})
    rows.sort(key=lambda row: (row.created_at or "", row.run), reverse=True)
    texts = [page.scripts()[0], (files(__package__) / "index.js").read_text("utf-8")]
    dates = [numbers.moment(row.created_at)[:10] for row in rows if row.created_at]
    environment = template_environment(visible, autoescape=True, package=__package__, folder="")
    data = json.dumps([group["data"] for group in groups], separators=(",", ":"), allow_nan=False)
    names = [name for name, _ in COLUMNS]
    return environment.get_template("index.html.j2").render(
        runs=len(runs),
        workloads=groups,
        span=f"{min(dates)} to {max(dates)}" if dates else "",
        columns=COLUMNS,
        choosers=[(names.index(name), name) for name in CHOOSERS],
        rows=[{"run": row.run, "page": pages.get(row.folder), "cells": _cells(row)} for row in rows],
        unreadable=list(failed.items()),
        style=Markup((files("benchctl.reports") / "templates" / "style.css").read_text("utf-8")),  # noqa: S704 - ours
        scripts=[Markup(text) for text in texts],  # noqa: S704 - files of this package
        script_hashes=Markup(page.hashes(texts)),  # noqa: S704 - base64
        data=Markup(data.replace("<", "\\u003c").replace("&", "\\u0026")),  # noqa: S704 - JSON without `<`
    )


def _cells(row: Row) -> list[tuple[str, str]]:
    kind, _, build = row.engine.partition(" ")
    model = row.target.rpartition("/")[2]
    if row.draft:
        model += f" + {row.draft.partition(', ')[0].rpartition('/')[2]}"
    own = f"{row.low:.2f} to {row.high:.2f}" if row.low is not None and row.high is not None else numbers.ABSENT
    texts = [
        row.arm,
        numbers.ratio(row.speedup),
        own,
        numbers.decimal(row.acceptance_length),
        row.lossless or numbers.ABSENT,
        numbers.moment(row.created_at)[:16],
        ", ".join(row.types) or numbers.ABSENT,
        kind,
        build or numbers.ABSENT,
        row.machine,
        model,
        row.recipe,
    ]
    tone = OUTPUT_TONE.get(row.lossless or "", "open")
    return [(text, tone if name == "Output" else shape) for text, (name, shape) in zip(texts, COLUMNS[1:], strict=True)]


def _sentences(series: Series) -> list[str]:
    steps = [f"{series.arm}: {step_sentence(step)}" for step in series.steps]
    turns = series.turns[-MOST_LISTED:]
    return steps + [f"{series.arm}: output {turn.after} from run {turn.run} on." for turn in turns]


def _plot(rows: Sequence[Row], series: Sequence[Series]) -> dict[str, Any]:
    """Return what the curves are drawn from: times in milliseconds, numbers to four digits."""
    names = [found.arm for found in series]
    called = [name if names.count(name) == 1 else f"{name} [{place + 1}]" for place, name in enumerate(names)]
    engines = list(dict.fromkeys(row.engine for row in rows))

    def short(value: float | None) -> float | None:
        return None if value is None else float(f"{value:.4g}")

    points = [
        [row.series, time, short(row.speedup), short(row.low), short(row.high), visible(row.run), place]
        for row in rows
        if row.speedup is not None and (time := _milliseconds(row.created_at)) is not None
        for place in [engines.index(row.engine)]
    ]
    steps = {_milliseconds(step.created_at) for found in series for step in found.steps} - {None}
    return {
        "series": [visible(name) for name in called],
        "engines": [visible(name) for name in engines],
        "points": points,
        "steps": sorted(time for time in steps if time is not None),
    }


def _milliseconds(moment: str | None) -> int | None:
    try:
        return round(1000 * datetime.fromisoformat(moment or "").timestamp())
    except ValueError:
        return None
