"""Rendering a run with the code under test, as a user does, and laying its second reading beside it."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from benchctl.cli.app import app
from tests.kept_runs import ROOT
from tests.oracle.checks import Report
from tests.oracle.reading import Reading

WIDE = {"COLUMNS": "400", "NO_COLOR": "1"}


def rendered(run: Path, into: Path) -> Report:
    """Write a report by `benchctl report`, on a terminal wide enough for every table, and read the run again."""
    result = CliRunner().invoke(app, ["report", str(run), "--no-figures", "--output", str(into)], env=WIDE)
    assert result.exit_code == 0, result.output or result.exception
    (page,) = into.rglob("index.html")
    return Report(Reading(run), page.parent, result.stdout)


def kept(name: str) -> Path:
    """A run of the repository, by its recipe and the beginning of its id."""
    recipe, _, run = name.partition("/")
    (folder,) = (path for path in (ROOT / "results" / recipe).glob(f"{run}*") if (path / "records.jsonl").exists())
    return folder
