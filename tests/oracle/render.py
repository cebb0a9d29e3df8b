"""Rendering a run with the code under test, and laying its second reading beside it."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from benchctl.analysis.analyse import analyse
from benchctl.data.store import open_run
from benchctl.reports.terminal import print_decision, print_summary
from benchctl.reports.write import write_report
from tests.oracle.checks import Report
from tests.oracle.reading import Reading

RESULTS = Path(__file__).parents[2] / "results"


def rendered(run: Path, into: Path) -> Report:
    """Write the report of a run as `benchctl report` does, and read the run again."""
    data = open_run(run)
    analysis = analyse(data)
    files = write_report(data, analysis, into, figures=False)
    console = Console(file=io.StringIO(), width=400)
    print_summary(console, analysis)
    print_decision(console, analysis, str(files.page))
    assert isinstance(console.file, io.StringIO)
    return Report(Reading(run), into, console.file.getvalue())


def kept(name: str) -> Path:
    """A run of the repository, by its recipe and the beginning of its id."""
    recipe, _, run = name.partition("/")
    (found,) = (path for path in (RESULTS / recipe).glob(f"{run}*") if (path / "records.jsonl").exists())
    return found
