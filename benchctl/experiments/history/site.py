"""What is told of a workload's runs, and a static site of many: an index that sorts and searches, curves over time,
and every run's report.

All names are untrusted text: the template escapes them, files are named by what is harmless of a run's name and a
digest, and the page's policy allows its own scripts alone. Pages of runs that did not change are not made again.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from benchctl import __version__
from benchctl.analysis.comparison.summary import RunSummary, fingerprint, on_all_cores
from benchctl.data.writer import cannot_write, write_whole
from benchctl.errors import BenchctlError, StorageError
from benchctl.experiments.history.series import Row, Series, Step, history_of, read_summaries, workloads
from benchctl.reports import numbers, page
from benchctl.reports.columns import Cell, Column, Link, Name, Table, numeric
from benchctl.reports.render import template_environment
from benchctl.reports.tables.output import output_column
from benchctl.text import first, listed, percent, plural, visible

OF = ".of"
"""Beside a run's page: what it was made of."""
GENERATOR = 'content="benchctl site"'
"""By which an index is known to be a site's, and may be replaced."""


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
    made = {folder: (folder / OF).read_bytes() for folder in pages.values() if (folder / OF).is_file()}
    lacking = [(run, at) for run, at in pages.items() if made.get(at) != _made_of(run, figures=figures)]
    errors = on_all_cores(partial(_write_page, figures=figures), lacking)
    failed |= {str(run): error for (run, _), error in zip(lacking, errors, strict=True) if error is not None}
    return errors.count(None)


def _made_of(run: Path, *, figures: bool) -> bytes:
    return fingerprint(run, f"{__version__} {'with' if figures else 'without'} figures")


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
        title = f"{of_it[-1].recipe} ({workload[:8] or 'not recorded'}, {len(of_it)} {plural(len(of_it), 'run')})"
        told = [sentence for sentence, _ in sentences(series)]
        groups.append({"title": title, "sentences": told, "data": _plot(own, series)})
    rows.sort(key=lambda row: (row.created_at or "", row.run), reverse=True)
    texts = [*page.scripts(), (files(__package__) / "index.js").read_text("utf-8")]
    dates = [numbers.moment(row.created_at)[:10] for row in rows if row.created_at]
    environment = template_environment(visible, autoescape=True, package=__package__, folder="")
    data = {"settings": [], "tasks": [], "workloads": [group["data"] for group in groups]}  # as the page's script wants
    return environment.get_template("index.html.j2").render(
        runs=len(runs),
        workloads=groups,
        span=f"{min(dates)} to {max(dates)}" if dates else "",
        table=page.html_table(_table(rows, pages)),
        unreadable=list(failed.items()),
        style=Markup((files("benchctl.reports") / "templates" / "style.css").read_text("utf-8")),  # noqa: S704 - ours
        scripts=[Markup(script) for script in texts],  # noqa: S704 - files of this package
        script_hashes=Markup(page.hashes(texts)),  # noqa: S704 - base64
        data=Markup(page.json_text(data)),  # noqa: S704 - JSON without `<`
    )


def _table(rows: Sequence[Row], pages: Mapping[str, str]) -> Table[Row]:
    def linked(row: Row) -> Cell:
        return Link(row.run, pages[row.folder]) if row.folder in pages else row.run

    def model(row: Row) -> str:
        draft = (row.draft or "").partition(", ")[0]
        return " + ".join(source.rpartition("/")[2] for source in (row.target, draft) if source)

    columns: tuple[Column[Row], ...] = (
        *(replace(column, cell=linked) if column.heads else column for column in COLUMNS),
        Column("type", "types"),
        Column("machine", "machine"),
        Column("model", model),
        Column("recipe", "recipe"),
    )
    return Table("runs", "Every run and arm", columns, rows)


def _plot(rows: Sequence[Row], series: Sequence[Series]) -> dict[str, Any]:
    """Return what the curves are drawn from."""
    names = [found.arm for found in series]
    engines = list(dict.fromkeys(row.engine for row in rows))
    return {
        "series": [name if names.count(name) == 1 else f"{name} [{place + 1}]" for place, name in enumerate(names)],
        "engines": engines,
        "points": [
            [row.series, row.created_at, row.speedup, row.low, row.high, row.run, engines.index(row.engine)]
            for row in rows
            if row.speedup is not None
        ],
        "steps": [step.created_at for found in series for step in found.steps],
    }


MOST_LISTED = 4
"""Of builds and of what else changed, in a sentence; of changes of the output."""


def _own_interval(row: Row) -> str:
    return numbers.ABSENT if row.low is None or row.high is None else f"{row.low:.2f} to {row.high:.2f}×"


COLUMNS: tuple[Column[Row], ...] = (
    Column("date", "created_at", lambda moment: numbers.moment(moment)[:10]),
    Column("run", "run", heads=True),
    Column("build", "engine", wrap=True),
    Column("arm", "arm", Name),
    numeric("speed-up", "speedup", numbers.ratio),
    numeric("95 %", "low", cell=_own_interval),
    numeric("accept. length", "acceptance_length", numbers.decimal, optional=True),
    output_column("output", "lossless"),
)


def sentences(every: Sequence[Series]) -> list[tuple[str, str]]:
    """Return what is said of a workload's series, with the style of each sentence; what holds for several arms once."""
    arms: dict[tuple[str, str], list[str]] = {}
    for series in every:
        for styled in _of_series(series):
            arms.setdefault(styled, []).append(series.arm)
    return [(f"{listed(of)}: {sentence}", style) for (sentence, style), of in arms.items()]


def _of_series(series: Series) -> list[tuple[str, str]]:
    said = [(_of_step(step), "green" if step.ratio > 1 else "red") for step in series.steps]
    said += [
        (f"output {turn.after} from run {turn.run} on ({turn.engine}), {turn.before} before.", "yellow")
        for turn in series.turns[-MOST_LISTED:]
    ]
    if len(series.turns) > MOST_LISTED:
        said.append((f"the output changed {len(series.turns) - MOST_LISTED} times before that.", "dim"))
    if series.untested is not None:
        return [*said, (f"no step can be found. {series.untested}", "dim")]
    noise = f"one run varies by {percent(series.noise or 0)} (standard deviation, {series.repeated} repeated)"
    seen = f"; a step of {percent(series.seen)} with the last build is found 8 times in 10" if series.seen else ""
    where = "" if series.tested == series.runs else f" of the {series.tested} runs that can be tested"
    return [*said, (f"{'no other step' if series.steps else 'no step'}{where}: {noise}{seen}.", "dim")]


def _of_step(step: Step) -> str:
    """Return a step in sentences: how large, since when, and what else is known of it."""
    change = "faster" if step.ratio > 1 else "slower"
    size, low, high = (100 * (ratio - 1) for ratio in (step.ratio, step.low, step.high))
    said = f"{abs(size):.1f} % {change} ({low:+.1f} to {high:+.1f} %) from run {step.run} on"
    said += f", with build {step.engine}." if step.new_build else f", within build {step.engine}: it is not the build."
    others = [engine for engine in step.may_have_begun if engine != step.engine]
    if others:
        said += f" It may have begun with {' or '.join(others[:MOST_LISTED])} as well."
    if step.runs_after == 1:
        said += " One run alone shows it: measure this build again."
    if step.baseline_ratio is not None and abs(step.baseline_ratio - 1) > 0.01:
        said += f" The baseline's own decode rate is {step.baseline_ratio:.2f} times what it was."
    if step.acceptance_before is not None and step.acceptance_after is not None:
        said += f" Acceptance length {step.acceptance_before:.2f} before, {step.acceptance_after:.2f} after."
    if step.changed:
        said += f" Also changed: {first(step.changed, MOST_LISTED, '; ')}."
    return said
