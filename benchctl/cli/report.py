"""`benchctl report`: tables, figures and pages of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from benchctl.cli import complete
from benchctl.cli.json_output import print_json
from benchctl.cli.options import Results

if TYPE_CHECKING:
    from benchctl.analysis.results import Analysis
    from benchctl.data.store import RunData
    from benchctl.reports.tables.study import Tensors


def report(
    run: Annotated[
        str | None,
        typer.Argument(
            help="A run folder, a recipe's name, a run's id, or a JSONL file; default: the latest run.",
            autocompletion=complete.runs,
        ),
    ] = None,
    results: Results = Path("results"),
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
    form: Annotated[
        Literal["paste", "card"] | None,
        typer.Option(
            "--format",
            help="paste: print the run in twelve lines of Markdown instead, for a thread. card: print a table for a "
            "model's page, with its results as YAML.",
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print every arm, every warning and whole commands.")
    ] = False,
) -> None:
    """Write a run's report: what was concluded, why, and how it was measured (HTML, Markdown, CSV, JSON, figures)."""
    from benchctl.data.store import open_run, resolve_run
    from benchctl.errors import UsageError
    from benchctl.lossless.analysed import analyse_run
    from benchctl.reports.write import report_folder, write_report

    path = resolve_run(run, results)
    data = open_run(path)
    analysis = analyse_run(data, baseline=baseline)
    if data.manifest is None:  # a bare file of records is named by its file
        analysis = analysis.model_copy(update={"recipe": path.stem, "run": path.name})
    if form is not None:
        from benchctl.reports.card import card
        from benchctl.reports.paste import paste

        if as_json or open_page or layout is not None:
            raise UsageError("--format prints, and writes no report.", where="--json, --open, --layout")
        typer.echo(paste(data, analysis) if form == "paste" else card(data, analysis))
        return
    if layout is not None:
        _print_study(data, analysis, _tensors(path, isolation), as_json=as_json)
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
        print_summary(console, analysis, str(path), verbose=verbose)
        print_decision(console, analysis, str(files.page), verbose=verbose)
    if open_page:
        typer.launch(str(files.page.resolve()))


def _tensors(run: Path, named: Path | None) -> Tensors | None:
    """Return the tensor table that an experiment has for a run, from the folder that was named if one was."""
    from benchctl.offers import experiments, load

    found = (load(experiment.study)(run, named) for experiment in experiments().values() if experiment.study)
    return next((tensors for tensors in found if tensors is not None), None)


def _print_study(data: RunData, analysis: Analysis, tensors: Tensors | None, *, as_json: bool) -> None:
    """Print the tensor table and the configuration table of the PLaMo 2 study."""
    from dataclasses import asdict

    from rich.text import Text

    from benchctl.reports.tables import study
    from benchctl.reports.terminal import print_table, table_console

    if as_json:
        alone = study.draft_alone(analysis, data.costs)
        document = {
            "run": analysis.run,
            "tensors": [] if tensors is None else tensors.rows,
            "configurations": [asdict(row) for row in study.configurations(analysis)],
            "draft_alone": None if alone is None else asdict(alone),
        }
        print_json("report --layout", document)
        return
    console = table_console()
    for table in (*((tensors.table,) if tensors else ()), study.configuration_table(analysis)):
        console.print(Text(table.title, style="bold"))
        print_table(console, table)
        console.print(Text(table.explanation + "\n", style="dim"))
    for sentence in study.sentences(analysis, data.costs, tensors):
        console.print(Text(sentence))
