"""`benchctl explain`: where the time of a round goes, and what other depths would cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchctl.cli import options
from benchctl.reports.json_output import print_json
from benchctl.text import percent

if TYPE_CHECKING:
    from benchctl.analysis.results import Analysis
    from benchctl.data.store import RunData


def explain(
    run: options.LatestRun = None,
    results: options.Results = Path("results"),
    offline: Annotated[bool, typer.Option("--offline", help="Start no engine: use what is stored.")] = False,
    count: options.Count = 3,
    tokens: Annotated[int, typer.Option(min=8, metavar="N", help="Longest answer, in tokens.")] = 48,
    engine_binary: options.EngineBinary = None,
    models_dir: options.ModelsDir = None,
    trust_recipe: options.TrustRecipe = False,
    as_json: options.JsonForTables = False,
    quiet: options.Quiet = False,
) -> None:
    """Why (not) faster? Where a round's time goes.

    Starts engines once, if the run's own did not report the times: every arm's answers a few prompts with a log that
    times each pass (llama-server), and the draft model answers alone. The times are saved in the run's costs.json; the
    report uses them, too. Inferred values are marked.
    """
    from benchctl.data.store import open_run, resolve_run
    from benchctl.lossless.judge.run import analyse_run
    from benchctl.measurement.progress import shown_steps
    from benchctl.measurement.run import signals_interrupt
    from benchctl.measurement.tracing import trace_costs
    from benchctl.reports.tables.rounds import round_statements

    path = resolve_run(run, results)
    data = open_run(path)
    reason = None
    if not offline:
        with shown_steps(quiet=quiet or as_json) as show, signals_interrupt():
            _, reason = trace_costs(
                data,
                lambda step: show(step, 0, 0),
                prompts=count,
                tokens=tokens,
                binary=engine_binary,
                models_dir=models_dir,
                trusted=trust_recipe,
            )
        data = open_run(path)
    analysis = analyse_run(data)
    if as_json:
        document = {
            "run": str(data.folder),
            "not_timed": reason,
            "rounds": analysis.rounds.model_dump(),
            "costs": [row.model_dump() for row in analysis.costs],
            "said": round_statements(analysis),
        }
        print_json("explain", document)
    elif not quiet:
        _print(data, analysis, reason)


def _print(run: RunData, analysis: Analysis, reason: str | None) -> None:
    """Print the tables; `reason`: why nothing could be timed separately."""
    from dataclasses import replace

    from benchctl.analysis.frame import ALL_TASKS
    from benchctl.reports.tables.rounds import forecasts, left_out, round_splits, round_statements, unit_costs
    from benchctl.reports.terminal import Printout

    out = Printout()
    out.say(f"{analysis.recipe}, run {analysis.run}", "bold")
    for finding in run.integrity.findings:
        out.say(finding, "yellow", whole=True)
    if reason is not None:
        out.say(f"Nothing was timed separately: {reason}.", "yellow")
    splits = round_splits(analysis)
    if not splits.rows:
        out.say("The engine does not report its rounds, so their cost cannot be split.")
        return
    for sentence in round_statements(analysis):
        out.say(f"- {sentence}")
    for row in analysis.costs:
        if row.break_even_alpha is not None and row.alpha is not None:
            needed, reached = percent(row.break_even_alpha), percent(row.alpha)
            out.say(
                f"- {row.arm}: to break even at this depth a draft token must be accepted {needed} of the time where "
                f"those before it were; it was {reached}."
            )
    overall = splits.where(lambda row: row.task == ALL_TASKS)  # the report also shows the tasks
    overall = replace(overall, columns=[column for column in overall.columns if column.header != "Task"])
    for table in (overall, unit_costs(analysis.rounds.units), forecasts(analysis), left_out(analysis)):
        if table.rows:
            out.say()
            out.table(table, titled=True)
    if run.costs is not None:
        where = run.folder / "costs.json"
        out.say(f"Timed separately on {len(run.costs.prompts)} prompts: {where}", "dim", whole=True)
