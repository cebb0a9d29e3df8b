"""`benchctl compare` of any number of runs: read or make their summaries, print the table, write the report."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from benchctl.analysis.comparison.several import SeveralRuns, compare_several
from benchctl.analysis.comparison.summary import SUMMARY_VERSION, RunSummary, summarise
from benchctl.cli.json_output import json_text
from benchctl.data.store import open_run
from benchctl.data.summaries import keep_summary, kept_summary
from benchctl.errors import StorageError, UsageError
from benchctl.reports.tables.comparison import several_arms, unlike_work
from benchctl.reports.terminal import print_table, table_console
from benchctl.text import one_line

FEW = 4
"""Up to this number, runs without a summary are read one after the other; more of them on several cores."""
VALUE_CHARACTERS = 64
"""Characters of a differing value, such as a list of hashes; --json has all."""
MOST_ROWS = 120
"""Rows of a table in a terminal; a report has them all."""


def compare_many(
    paths: Sequence[Path], *, arms: Collection[str] | None, out: Path | None, as_json: bool, quiet: bool
) -> None:
    """Compare, print, and write compare.md, .csv and .json below `out`. Raises UsageError, StorageError."""
    places = [path.resolve() for path in paths]
    twice = [path for number, path in enumerate(paths) if places[number] in places[:number]]
    if twice:
        raise UsageError("This run is named twice.", where=str(twice[0]), fix="Name every run once.")
    found = compare_several(summaries_of(paths), arms)
    document = json_text("compare", found.model_dump())
    if out is not None:
        _write(out, found, document)
    if as_json:
        sys.stdout.write(document)
    elif not quiet:
        _print(found, out)


def summaries_of(paths: Sequence[Path]) -> list[RunSummary]:
    """Return the summaries of runs, making those that are not stored, on all cores."""
    kept = {path: kept_summary(path, SUMMARY_VERSION) for path in paths}
    lacking = [path for path, summary in kept.items() if summary is None]
    if len(lacking) > FEW:
        workers = min(os.cpu_count() or 1, len(lacking))
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            kept |= dict(zip(lacking, pool.map(_made, lacking, chunksize=4), strict=True))
    else:
        kept |= {path: _made(path) for path in lacking}
    decoder = msgspec.msgpack.Decoder(RunSummary)
    return [decoder.decode(kept[path] or b"") for path in paths]


def _made(path: Path) -> bytes:
    """Summarise one run and store the summary beside it; a bare JSONL file has no folder for one."""

    def make() -> bytes:
        return msgspec.msgpack.encode(summarise(open_run(path)))

    return keep_summary(path, SUMMARY_VERSION, make) if path.is_dir() else make()


def _print(found: SeveralRuns, out: Path | None) -> None:
    console = table_console()
    for number, run in enumerate(found.runs):
        state = "" if run["status"] in (None, "finished") else f", {run['status']}"
        failed = f", {run['failed_cells']} failed cells" if run["failed_cells"] else ""
        line = f"{number + 1:>3}  {run['recipe']} {run['run']}, {run['blocks']} blocks, {run['records']} records"
        console.print(Text(one_line(f"{line}{state}{failed}")))
        if run["damage"]:
            console.print(Text(f"     Damaged: {one_line(str(run['damage']), 300)}", style="yellow"))
    _print_differing(console, found)
    console.print()
    table = several_arms(found)
    if len(table.rows) > MOST_ROWS:
        first = {id(row) for row in table.rows[:MOST_ROWS]}
        table = table.where(lambda row: id(row) in first)
    print_table(console, table)
    for sentence in unlike_work(found):
        console.print(Text(one_line(sentence, 400), style="yellow"))
    if len(found.rows) > MOST_ROWS:
        console.print(Text(f"{len(found.rows) - MOST_ROWS:,} more rows: --out DIR writes them all."))
    if out is not None:
        console.print(Text(f"Report: {one_line(str(out / 'compare.md'))}"), soft_wrap=True)


def _print_differing(console: Console, found: SeveralRuns) -> None:
    if not found.differing:
        console.print(Text("What differs: nothing that the manifests record."))
    for difference in found.differing:
        values: dict[str, list[int]] = {}
        for number, value in enumerate(difference.values):
            values.setdefault(value, []).append(number + 1)
        by_value = "; ".join(
            f"{one_line(value, VALUE_CHARACTERS)} (run {_numbers(runs)})" for value, runs in values.items()
        )
        console.print(Text(f"{difference.what}: {one_line(by_value, 600)}"))


def _numbers(runs: Sequence[int]) -> str:
    return ", ".join(map(str, runs[:8])) + (", …" if len(runs) > 8 else "")


def _write(out: Path, found: SeveralRuns, document: str) -> None:
    from benchctl.reports.render import markdown_table, markdown_text
    from benchctl.reports.write import csv_table

    table = several_arms(found)
    lines = ["# Runs side by side", ""]
    lines += [
        f"{number + 1}. {markdown_text(' '.join((str(run['recipe']), str(run['run']))))}"
        for number, run in enumerate(found.runs)
    ]
    lines += [
        "",
        *(f"- **{difference.what}** differs." for difference in found.differing),
        "",
        markdown_table(table),
        "",
    ]
    lines += [markdown_text(sentence) for sentence in unlike_work(found)]
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "compare.md").write_text("\n".join(lines) + "\n", encoding="utf-8", errors="backslashreplace")
        (out / "compare.csv").write_text(csv_table(table, {}), encoding="utf-8", errors="backslashreplace")
        (out / "compare.json").write_text(document, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"The report could not be written: {error.strerror}.", where=str(out)) from None
