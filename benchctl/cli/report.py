"""`benchctl report`: tables, figures and pages of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from benchctl.cli import options
from benchctl.cli.options import Baseline, JsonForTables, Out, Results, rare
from benchctl.errors import UsageError
from benchctl.reports.json_output import print_json

if TYPE_CHECKING:
    from benchctl.analysis.results import Analysis
    from benchctl.data.store import RunData
    from benchctl.reports.tables.study import Tensors


def report(
    run: options.LatestRun = None,
    results: Results = Path("results"),
    out: Out = Path("reports"),
    baseline: Baseline = None,
    as_json: JsonForTables = False,
    figures: Annotated[bool, typer.Option(help="Draw the figures.")] = True,
    layout: Annotated[
        Literal["plamo2-study"] | None,
        rare(metavar="plamo2-study", help="Print a published study's tables instead."),
    ] = None,
    isolation: Annotated[
        Path | None,
        rare(
            metavar="DIR",
            help="With --layout: a search of isolate.",
            show_default="the newest",
            file_okay=False,
        ),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page.")] = False,
    form: Annotated[
        Literal["paste", "card", "row", "issue"] | None,
        typer.Option(
            "--format",
            metavar="paste|card|row|issue",
            help="Markdown for a thread, a model's page, a table of machines, or a bug form.",
        ),
    ] = None,
    beside: Annotated[
        list[str] | None,
        rare("--with", metavar="RUN", help="For a card: another run; repeatable."),
    ] = None,
    project: Annotated[
        str | None,
        rare("--for", metavar="ENGINE", help="With --format issue: whose bug form.", show_default="the run's engine"),
    ] = None,
    arm: Annotated[
        str | None, options.of_arm(help="With --format issue: the arm.", show_default="of the most serious")
    ] = None,
    bars: Annotated[bool, typer.Option("--bars", help="Print the speed-ups as bars, too.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print every arm, warning and command.")] = False,
) -> None:
    """Write a run's report: the conclusion, why, and how.

    A page of HTML that works offline, the same as Markdown, every table as CSV, the analysis as JSON, and the figures:
    DIR/RECIPE/RUN/.
    """
    from benchctl.data.store import open_run, resolve_run
    from benchctl.lossless.judge.run import analyse_run
    from benchctl.reports.write import report_folder, write_report

    path = resolve_run(run, results)
    data = open_run(path)
    analysis = analyse_run(data, baseline=baseline)
    if data.manifest is None:  # a bare file of records is named by its file
        analysis = analysis.model_copy(update={"recipe": path.stem, "run": path.name})
    if form != "issue" and (project is not None or arm is not None):
        raise UsageError("This option needs --format issue.", where="--for" if project is not None else "--arm")
    if form != "card" and beside:
        raise UsageError("This option needs --format card.", where="--with")
    if form is not None:
        from benchctl.reports.community_row import rows
        from benchctl.reports.paste import card, paste

        if as_json or open_page or layout is not None:
            raise UsageError("--format prints, and writes no report.", where="--json, --open, --layout")
        if form == "issue":
            _print_issue(data, analysis, project, arm)
            return
        if form == "card":
            further = [open_run(resolve_run(name, results)) for name in beside or []]
            typer.echo(card(data, analysis, [(other, analyse_run(other)) for other in further]))
            return
        typer.echo({"paste": paste, "row": rows}[form](data, analysis))
        return
    if layout is not None:
        from benchctl.experiments.isolate.table import tensors_beside

        _print_study(data, analysis, tensors_beside(path, isolation), as_json=as_json)
        return
    if isolation is not None:
        raise UsageError("This option needs --layout.", where="--isolation", fix="Add --layout plamo2-study.")
    files = write_report(data, analysis, report_folder(analysis, out), figures=figures)
    if as_json:
        from benchctl.words.document import analysis_document

        paths = {
            "folder": str(files.folder),
            "page": str(files.page),
            "markdown": str(files.markdown),
            "analysis": str(files.analysis),
            "tables": [str(path) for path in files.tables],
            "figures": [str(path) for path in files.figures],
        }
        document = {
            "analysis": analysis_document(analysis),
            "integrity": data.integrity.as_dict(),
            "files": paths,
        }
        print_json("report", document)
    else:
        from benchctl.reports.run_summary import print_run

        print_run(analysis, path, data.manifest, files.page, verbose=verbose)
        if bars:
            from benchctl.reports.bars import print_bars
            from benchctl.reports.terminal import Printout

            print_bars(Printout(), analysis)
    if open_page:
        typer.launch(str(files.page.resolve()))


def _print_issue(data: RunData, analysis: Analysis, project: str | None, arm: str | None) -> None:
    """Print the bug form filled in; on stderr that there is nothing to report yet, so that no tracker is sent it."""
    from benchctl.analysis.reportable import find_reportable
    from benchctl.reports.issue import form_of, issue
    from benchctl.text import one_line
    from benchctl.words.issue import not_replayed, nothing

    if data.manifest is None:
        raise UsageError("A file of records alone has no engine and no commands to report.", where="--format issue")
    form = form_of(data.manifest, project)
    case = find_reportable(data, analysis, arm)
    if case is None:
        typer.echo(one_line(nothing(analysis, arm, data.integrity.reason)), err=True)
        return
    typer.echo(issue(data, data.manifest, analysis, case, form))
    if advice := not_replayed(case, analysis.run):
        typer.echo(one_line(advice), err=True)


def _print_study(data: RunData, analysis: Analysis, tensors: Tensors | None, *, as_json: bool) -> None:
    """Print the tensor table and the configuration table of the PLaMo 2 study."""
    from dataclasses import asdict

    from benchctl.reports.tables import study
    from benchctl.reports.terminal import Printout

    if as_json:
        draft = study.draft_alone(analysis, data.costs)
        document = {
            "run": analysis.run,
            "tensors": [] if tensors is None else tensors.rows,
            "configurations": [asdict(row) for row in study.configurations(analysis)],
            "draft_alone": None if draft is None else asdict(draft),
        }
        print_json("report --layout", document)
        return
    out = Printout()
    for table in (*((tensors.table,) if tensors else ()), study.configuration_table(analysis)):
        out.table(table, titled=True)
        out.say()
    for sentence in study.sentences(analysis, data.costs, tensors):
        out.say(sentence)
