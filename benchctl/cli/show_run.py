"""What `benchctl run` shows at its end: the first verdicts, and where everything lies."""

from __future__ import annotations

import json
from pathlib import Path

import typer
from rich.console import Console

from benchctl.analysis.analyse import analyse
from benchctl.data.store import open_run
from benchctl.errors import EngineError
from benchctl.reports.terminal import print_summary


def show_run(folder: Path, *, as_json: bool, quiet: bool) -> None:
    """Print the run's summary. Exits with 3 when a cell or a request failed."""
    run = open_run(folder)
    analysis = analyse(run)
    failed = analysis.failed_cells + [
        f"block {record.block + 1}, {record.label}, {record.task}/{record.prompt_idx}: {record.error.message}"
        for record in run.records
        if record.error is not None
    ]
    if as_json:
        status = run.manifest.status if run.manifest else None
        document = {
            "run": str(folder),
            "status": status,
            "failed": failed,
            "analysis": analysis.model_dump(by_alias=True),
        }
        typer.echo(json.dumps(document, indent=1))
    elif not quiet:
        console = Console()
        print_summary(console, analysis)
        told = f"\nRecords: {folder}\nNext: benchctl verify-lossless · benchctl report"
        console.print(told, markup=False, highlight=False, soft_wrap=True)
    if failed:
        what = "cell or request" if len(failed) == 1 else "cells or requests"
        raise EngineError(
            f"{len(failed)} {what} failed; the first: {failed[0]}",
            kind="crash",
            where=str(folder),
            fix="The logs lie in its logs/ folder. Once the cause is mended, --resume finishes the run.",
        )
