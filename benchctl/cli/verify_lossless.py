"""`benchctl verify-lossless`: is every answer of an arm exactly what the target alone said?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def verify_lossless(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="A run folder, a recipe's name or folder, or a study's JSONL file.",
            show_default="the latest run",
        ),
    ] = None,
    results: Annotated[Path, typer.Option(metavar="DIR", help="Where runs lie.")] = Path("results"),
    baseline: Annotated[
        str | None, typer.Option(metavar="NAME", help="The arm to compare with.", show_default="the run's own")
    ] = None,
    arm: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Compare only this arm; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no tables; only the exit code tells.")] = False,
) -> None:
    """Compare every answer of every arm with the baseline's: text, tokens, block by block.

    An arm is lossless only when every prompt is identical in every block; what is missing, failed or damaged is
    undetermined, never equal. Exits with 0 when every compared arm is lossless, with 1 when one is not or is
    undetermined, with 2 when the command line is wrong.
    """
    from benchctl.analysis.analyse import compare_outputs
    from benchctl.cli.show_lossless import print_document, print_tables
    from benchctl.errors import UsageError
    from benchctl.runs.store import open_run, resolve_run

    data = open_run(resolve_run(run, results))
    frame, found, consistency = compare_outputs(data, baseline=baseline, arms=arm)
    for name in arm or ():
        if name not in {one.arm for one in found}:
            known = ", ".join(one for number, one in enumerate(frame.arms) if number != frame.baseline)
            raise UsageError(f"There is no arm {name!r} to compare.", where="--arm", fix=f"The arms are: {known}.")
    if not found:
        raise UsageError("The run has only its baseline, so there is nothing to compare.", where=str(data.folder))
    if as_json:
        print_document(data, frame, found, consistency)
    elif not quiet:
        print_tables(data, frame, found, consistency)
    if any(one.verdict != "lossless" for one in found):
        raise typer.Exit(1)
