"""`benchctl report`: tables, figures and pages of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from benchctl.cli import complete
from benchctl.cli.json_output import print_json

if TYPE_CHECKING:
    from benchctl.analysis.results import Analysis
    from benchctl.data.store import RunData
    from benchctl.experiments.isolate.stored import Isolation


def report(
    run: Annotated[
        str | None,
        typer.Argument(
            help="A run folder, a recipe's name, a run's id, or a JSONL file; default: the latest run.",
            autocompletion=complete.runs,
        ),
    ] = None,
    results: Annotated[Path, typer.Option(help="The folder of runs.", file_okay=False)] = Path("results"),
    out: Annotated[Path, typer.Option(help="Where reports are written: OUT/<recipe>/<run>/.", file_okay=False)] = Path(
        "reports"
    ),
    baseline: Annotated[
        str | None,
        typer.Option(help="Compare with this arm instead of the recipe's baseline.", autocompletion=complete.arms),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the analysis and the paths as JSON.")] = False,
    figures: Annotated[bool, typer.Option(help="Draw the figures.")] = True,
    layout: Annotated[
        Literal["plamo2-study"] | None,
        typer.Option(help="Print the tables of a published study in its own layout instead of writing a report."),
    ] = None,
    isolation: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="With --layout: the folder of a search of `benchctl isolate`.",
            show_default="the newest one beside the run",
            file_okay=False,
        ),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Write a run's report: what was concluded, why, and how it was measured (HTML, Markdown, CSV, JSON, figures)."""
    from benchctl.analysis.analyse import analyse
    from benchctl.data.store import open_run, resolve_run
    from benchctl.errors import UsageError
    from benchctl.reports.write import report_folder, write_report

    path = resolve_run(run, results)
    data = open_run(path)
    analysis = analyse(data, baseline=baseline)
    if data.manifest is None:  # a bare file of records is named by its file
        analysis = analysis.model_copy(update={"recipe": path.stem, "run": path.name})
    if layout is not None:
        _print_study(data, analysis, _search_beside(path, isolation), as_json=as_json)
        return
    if isolation is not None:
        raise UsageError("This option needs --layout.", where="--isolation", fix="Add --layout plamo2-study.")
    files = write_report(data, analysis, report_folder(analysis, out), figures=figures)
    if as_json:
        paths = {
            "folder": str(files.folder),
            "page": str(files.page),
            "markdown": str(files.markdown),
            "analysis": str(files.analysis),
            "tables": [str(path) for path in files.tables],
            "figures": [str(path) for path in files.figures],
        }
        document = {
            "analysis": analysis.model_dump(by_alias=True),
            "integrity": data.integrity.as_dict(),
            "files": paths,
        }
        print_json("report", document)
    else:
        from rich.console import Console

        from benchctl.reports.terminal import print_decision, print_summary

        console = Console()
        print_summary(console, analysis)
        print_decision(console, analysis, str(files.page))
    if open_page:
        typer.launch(str(files.page.resolve()))


def _search_beside(run: Path, named: Path | None) -> Isolation | None:
    """Return the search that was named, else the newest one beside the run. Raises UsageError, StorageError."""
    from benchctl.errors import UsageError
    from benchctl.experiments.isolate.stored import ISOLATION, read_isolation

    if named is not None:
        found = read_isolation(named)
        if found is None:
            raise UsageError(
                "There is no search of `benchctl isolate` here.",
                where=str(named),
                fix=f"Name the folder that holds {ISOLATION}.",
            )
        return found
    files = run.resolve().parent.glob(f"isolate-*/{ISOLATION}") if run.is_dir() else ()
    newest = max(files, key=lambda file: file.stat().st_mtime, default=None)
    return None if newest is None else read_isolation(newest.parent)


def _print_study(data: RunData, analysis: Analysis, isolation: Isolation | None, *, as_json: bool) -> None:
    """Print the tensor table and the configuration table of the PLaMo 2 study."""
    from dataclasses import asdict

    from rich.text import Text

    from benchctl.reports.tables import study
    from benchctl.reports.terminal import print_table, table_console

    if as_json:
        alone = study.draft_alone(analysis, data.costs)
        tensors = study.tensor_rows(isolation)[0] if isolation is not None else []
        document = {
            "run": analysis.run,
            "tensors": [{"kept": row.what, "role": row.role, "damage": row.damage} for row in tensors],
            "configurations": [asdict(row) for row in study.configurations(analysis)],
            "draft_alone": None if alone is None else asdict(alone),
        }
        print_json("report --layout", document)
        return
    console = table_console()
    for table in (*((study.tensor_table(isolation),) if isolation else ()), study.configuration_table(analysis)):
        console.print(Text(table.title, style="bold"))
        print_table(console, table)
        console.print(Text(table.explanation + "\n", style="dim"))
    for sentence in study.sentences(analysis, data.costs, isolation):
        console.print(Text(sentence))
