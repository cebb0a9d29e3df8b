"""`benchctl compare`: two runs of one workload side by side, with gates for CI."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compare(
    before: Annotated[
        str,
        typer.Argument(metavar="A", help="The run before: a run folder, a recipe's name, a run's id, a JSONL file."),
    ],
    after: Annotated[str, typer.Argument(metavar="B", help="The run after, which is judged.")],
    results: Annotated[Path, typer.Option(metavar="DIR", help="Where runs lie.")] = Path("results"),
    baseline: Annotated[
        str | None, typer.Option(metavar="NAME", help="The baseline of both runs.", show_default="each run's own")
    ] = None,
    arm: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Compare only this arm; may be repeated.")
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GATE", help="slower:3% or lossy: exit with 1 when it holds or cannot be told; may be repeated."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the gates that failed, on stderr.")] = False,
) -> None:
    """Compare run B with run A: which arms got faster or slower beyond noise, and do they still say the same?

    Both must have the same prompts, sampling and models; what else changed (engine, machine, settings) is listed. Exits
    with 0, with 1 when a gate failed, with 2 when the runs cannot be compared or the command line is wrong.
    """
    from benchctl.analysis.comparison.gates import judge, parse_gate

    gates = [parse_gate(text) for text in fail_if or ()]

    from benchctl.analysis.comparison.compare import compare_runs
    from benchctl.cli.show_compare import gate_error, print_comparison, print_document
    from benchctl.data.store import open_run, resolve_run

    paths = [resolve_run(run, results) for run in (before, after)]
    found = compare_runs(*map(open_run, paths), baseline=baseline, arms=arm, names=[path.name for path in paths])
    judged = [judge(gate, found) for gate in gates]
    if as_json:
        print_document(found, judged)
    elif not quiet:
        print_comparison(found, judged)
    if not all(one.passed for one in judged):
        raise gate_error(found, judged)
