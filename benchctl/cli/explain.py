"""`benchctl explain`: where the time of a round goes, and what other depths would cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchctl.cli.options import JsonForTables, Quiet

if TYPE_CHECKING:
    from benchctl.analysis.results import Analysis
    from benchctl.data.store import RunData


def explain(
    run: Annotated[
        str | None,
        typer.Argument(help="A run folder, a recipe's name, or a run's id.", show_default="the latest run"),
    ] = None,
    results: Annotated[Path, typer.Option(help="Where runs lie.", file_okay=False)] = Path("results"),
    baseline: Annotated[
        str | None, typer.Option(help="Compare with this arm instead of the recipe's baseline.")
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Start no engine: explain by what is there.")] = False,
    prompts: Annotated[int, typer.Option(min=1, help="So many prompts are answered to time the passes.")] = 3,
    tokens: Annotated[int, typer.Option(min=8, help="Longest of these answers, in tokens.")] = 48,
    engine_binary: Annotated[
        str | None, typer.Option(metavar="PATH", help="The engine's binary, where it is not at the run's own path.")
    ] = None,
    models_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Look for the models' files here first.", file_okay=False)
    ] = None,
    trust_recipe: Annotated[
        bool, typer.Option("--trust-recipe", help="Let the run's recipe open the machine; see `run`.")
    ] = False,
    as_json: JsonForTables = False,
    quiet: Quiet = False,
) -> None:
    """Explain a run's speed: what a draft step, verifying and keeping state cost here, and what is left over.

    Uses what the engine timed in the run. What is missing is timed once, apart: every arm's engine answers a few
    prompts with a log that times each pass (llama-server), and the draft model answers alone. It is kept in the run's
    costs.json, and the report uses it, too. What is inferred is marked so.
    """
    from rich.console import Console
    from rich.text import Text

    from benchctl.analysis.analyse import analyse
    from benchctl.data.store import open_run, resolve_run
    from benchctl.measure.run import signals_interrupt
    from benchctl.measure.tracing import TracePlan, trace_costs
    from benchctl.text import one_line

    path = resolve_run(run, results)
    data = open_run(path)
    reason = None
    if not offline:
        console = Console(stderr=True, highlight=False)

        def tell(what: str) -> None:
            if not (quiet or as_json):
                console.print(Text(one_line(what)))

        with signals_interrupt():
            _, reason = trace_costs(
                data,
                TracePlan(prompts, tokens),
                tell,
                binary=engine_binary,
                models_dir=models_dir,
                trusted=trust_recipe,
            )
        data = open_run(path)
    analysis = analyse(data, baseline=baseline)
    if as_json:
        _print_json(data, analysis, reason)
    elif not quiet:
        _print(data, analysis, reason)


def _print(run: RunData, analysis: Analysis, reason: str | None) -> None:
    """Print the tables; `reason`: why nothing could be timed apart."""
    from rich.text import Text

    from benchctl.analysis.results import ALL_TASKS
    from benchctl.reports.tables.rounds import forecasts, round_splits, said_of_rounds, unit_costs
    from benchctl.reports.terminal import print_table, table_console
    from benchctl.text import one_line

    console = table_console()
    console.print(Text(f"{one_line(analysis.recipe)}, run {one_line(analysis.run)}", "bold"))
    if reason is not None:
        console.print(Text(f"Nothing was timed apart: {one_line(reason, 400)}.", "yellow"))
    splits = round_splits(analysis)
    if not splits.rows:
        console.print(Text("The engine does not tell its rounds, so nothing can be said of what they are made of."))
        return
    every = len(analysis.tasks) > 1
    shown = splits.where(lambda row: every or row.task == ALL_TASKS)
    for table in (shown, unit_costs(analysis), forecasts(analysis)):
        if table.rows:
            console.print(Text(f"\n{table.title}", "bold"))
            print_table(console, table)
            console.print(Text(table.explanation, "dim"))
    console.print()
    for sentence in said_of_rounds(analysis):
        console.print(Text(f"- {one_line(sentence, 600)}"))
    for row in analysis.costs:
        if row.break_even_alpha is not None and row.alpha is not None:
            pays = f"{one_line(row.arm)}: each draft token is kept with a chance of {100 * row.alpha:.0f} %, and this"
            console.print(Text(f"- {pays} depth needs {100 * row.break_even_alpha:.0f} % here to break even."))
    if run.costs is not None:
        where = run.folder / "costs.json"
        console.print(Text(f"Timed apart on {len(run.costs.prompts)} prompts: {where}", "dim"), soft_wrap=True)


def _print_json(run: RunData, analysis: Analysis, reason: str | None) -> None:
    """Print everything as one JSON document."""
    import json
    import sys

    from benchctl.reports.tables.rounds import said_of_rounds

    document = {
        "schema": 1,
        "run": str(run.folder),
        "not_timed": reason,
        "rounds": analysis.rounds.model_dump(),
        "costs": [row.model_dump() for row in analysis.costs],
        "said": said_of_rounds(analysis),
    }
    json.dump(document, sys.stdout, indent=1, ensure_ascii=True)
    sys.stdout.write("\n")
