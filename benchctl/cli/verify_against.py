"""`benchctl verify-against`: did engine, precision or speculation change the answers?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchctl.cli.options import JsonForTables, NoTables, OnlyArms, Results, of_run
from benchctl.reports.json_output import print_json


def verify_against(
    run: Annotated[str, of_run()],
    references: Annotated[
        list[str], of_run(metavar="REFERENCE", help="Runs of the same prompts, other engine or precision.")
    ],
    results: Results = Path("results"),
    arm: OnlyArms = None,
    as_json: JsonForTables = False,
    quiet: NoTables = False,
) -> None:
    """Did the engine or its precision change the answers?

    A run of the transformers engine in float32 is a good reference. The answers are the stored ones, each run with its
    own baseline; no engine is started. Exits with 0 when every answer is identical to the reference, else with 1.
    """
    from benchctl.data.store import open_run, resolve_run
    from benchctl.lossless.judge.reference import compare_with_references

    data, *reference_runs = (open_run(resolve_run(name, results)) for name in (run, *references))
    comparison = compare_with_references(data, reference_runs, arms=arm)
    if as_json:
        print_json("verify-against", {"identical": comparison.identical, **comparison.model_dump()})
    elif not quiet:
        from benchctl.cli.show_reference import print_tables

        print_tables(comparison)
    if not comparison.identical:
        raise typer.Exit(1)
