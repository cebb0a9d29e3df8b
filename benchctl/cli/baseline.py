"""`benchctl baseline`: keep what gates watch of a run in a small file, and check later runs against it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchctl.cli.compare import FailIf, JUnit, OnlyGates, conclude, parsed_gates
from benchctl.cli.options import Accept, JsonForTables, OnlyArms, Results, of_run
from benchctl.reports.json_output import print_json

app = typer.Typer(help="Keep a run as a baseline file; check later runs against it.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(metavar="FILE", help="The baseline file.", dir_okay=False)]
Runs = Annotated[list[str] | None, of_run(metavar="[RUN]…", help="Runs of one setting.", show_default="the latest run")]


@app.command("write")
def write(file: File, runs: Runs = None, results: Results = Path("results"), as_json: JsonForTables = False) -> None:
    """Write a run, or several of one setting, as a baseline file.

    It has what the gates watch, and no answers. Several runs show what changes from run to run.
    """
    from benchctl.analysis.comparison import kept
    from benchctl.data.store import open_run, resolve_run
    from benchctl.lossless.judge.run import judge

    baseline = kept.keep([open_run(resolve_run(run, results)) for run in (runs or (None,))], judge)
    kept.write_kept(baseline, file)
    if as_json:
        print_json("baseline write", {"file": str(file), "baseline": baseline.model_dump(mode="json")})
    else:
        typer.echo(f"Baseline: {file}")


@app.command("check")
def check(
    file: File,
    runs: Runs = None,
    results: Results = Path("results"),
    arm: OnlyArms = None,
    fail_if: FailIf = None,
    accept: Accept = "exact",
    junit: JUnit = None,
    as_json: JsonForTables = False,
    quiet: OnlyGates = False,
) -> None:
    """Compare a run with a baseline file: what changed beyond noise? Gates for CI.

    --fail-if sets gates, which exit with 1 if they hold or are undetermined.
    """
    from benchctl.analysis.comparison.kept import against_kept, read_kept
    from benchctl.data.store import open_run, resolve_run
    from benchctl.lossless.judge.run import judge

    gates = parsed_gates(fail_if, accept, junit)
    opened = [open_run(resolve_run(run, results)) for run in (runs or (None,))]
    comparison = against_kept(read_kept(file), opened, judge=judge, arms=arm, where=str(file))
    conclude(comparison, gates, accept, junit=junit, as_json=as_json, quiet=quiet)
