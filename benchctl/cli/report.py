"""`benchctl report`: tables, figures and pages of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[
        str | None,
        typer.Argument(
            help="A run folder, a recipe's name, a run's id, or a JSONL file; the latest run when left out."
        ),
    ] = None,
    results: Annotated[Path, typer.Option(help="Where runs lie.", file_okay=False)] = Path("results"),
    out: Annotated[Path, typer.Option(help="Where reports go: OUT/<recipe>/<run>/.", file_okay=False)] = Path(
        "reports"
    ),
    baseline: Annotated[
        str | None, typer.Option(help="Compare with this arm instead of the recipe's baseline.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the analysis and the paths as JSON.")] = False,
    figures: Annotated[bool, typer.Option(help="Draw the figures.")] = True,
    open_page: Annotated[bool, typer.Option("--open", help="Show the page in a browser.")] = False,
) -> None:
    """Write a run's report: what was concluded, why, and how it was measured (HTML, Markdown, CSV, JSON, figures)."""
    from benchctl.analysis.analyse import analyse
    from benchctl.data.store import open_run, resolve_run
    from benchctl.reports.write import report_folder, write_report

    path = resolve_run(run, results)
    data = open_run(path)
    analysis = analyse(data, baseline=baseline)
    if data.manifest is None:  # a bare file of records has no other name than its own
        analysis = analysis.model_copy(update={"recipe": path.stem, "run": path.name})
    files = write_report(data, analysis, report_folder(analysis, out), figures=figures)
    if as_json:
        import json

        paths = {
            "folder": str(files.folder),
            "page": str(files.page),
            "markdown": str(files.markdown),
            "analysis": str(files.analysis),
            "tables": [str(path) for path in files.tables],
            "figures": [str(path) for path in files.figures],
        }
        typer.echo(json.dumps({"analysis": analysis.model_dump(by_alias=True), "files": paths}, indent=1))
    else:
        from rich.console import Console

        from benchctl.reports.terminal import print_decision, print_summary

        console = Console()
        print_summary(console, analysis)
        print_decision(console, analysis, data.manifest, str(files.page))
    if open_page:
        typer.launch(str(files.page.resolve()))
