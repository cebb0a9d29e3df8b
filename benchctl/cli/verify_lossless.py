"""`benchctl verify-lossless`: is every answer of an arm token-identical to the target's alone?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from benchctl.cli import complete
from benchctl.cli.options import Accept, Baseline, JsonForTables, OnlyArms, Results


def verify_lossless(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="A run folder, a recipe's name or folder, a study's JSONL file.",
            show_default="the latest run",
            autocompletion=complete.runs,
        ),
    ] = None,
    results: Results = Path("results"),
    baseline: Baseline = None,
    arm: OnlyArms = None,
    audit: Annotated[
        Literal["full", "forks", "off"],
        typer.Option(
            help="What is scored on the target alone: whole answers of every arm that differs, only their first "
            "divergences, or nothing (no engine is started)."
        ),
    ] = "full",
    audit_minutes: Annotated[
        float | None,
        typer.Option(min=0.1, help="Time limit for scoring whole answers.", show_default="as long as the run took"),
    ] = None,
    accept: Accept = "identical",
    offline: Annotated[
        bool, typer.Option("--offline", help="As --audit off: use only the records and stored scores.")
    ] = False,
    engine_binary: Annotated[
        str | None, typer.Option(metavar="PATH", help="The engine's binary, where it is not at the run's own path.")
    ] = None,
    models_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Look for the target's files here first.", file_okay=False)
    ] = None,
    against: Annotated[list[str] | None, typer.Option(hidden=True)] = None,
    sampling: Annotated[bool, typer.Option("--sampling", hidden=True)] = False,
    seeds: Annotated[str | None, typer.Option(hidden=True)] = None,
    prompts: Annotated[str | None, typer.Option(hidden=True)] = None,
    tokens: Annotated[str | None, typer.Option(hidden=True)] = None,
    temperature: Annotated[str | None, typer.Option(hidden=True)] = None,
    level: Annotated[str | None, typer.Option(hidden=True)] = None,
    as_json: JsonForTables = False,
    trust_recipe: Annotated[
        bool, typer.Option("--trust-recipe", help="Accept a run whose recipe opens the machine; see `run`.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no tables; use the exit code.")] = False,
) -> None:
    """Compare every answer of every arm with the baseline's, and explain the differences.

    An arm is `identical` where every prompt is, in every block. Missing, failed or damaged answers are undetermined,
    never equal. Where answers differ, the target alone is launched again and scores whole answers of the arm, token by
    token: an arm is `consistent with the target` where it departs from the target's likeliest token no more often, and
    no farther, than the target's own numeric noise explains, and a `violation` otherwise. Scores are saved in the run's
    replays.json and audit.json and are not computed twice.

    Exits with 0 when every compared arm is identical (or, with `--accept consistent`, consistent with the target), with
    1 when one is not or is undetermined, with 2 when the command line is wrong, with 3 when the engine failed and
    nothing could be explained.

    Sampled answers are compared by `benchctl verify-sampling`, answers of another engine by `benchctl verify-against`.
    """
    from benchctl.errors import UsageError

    if against:
        what = "Another engine's answers are compared by a command of its own."
        raise UsageError(what, where="verify-lossless", fix="benchctl verify-against RUN REFERENCE")
    moved = {"seeds": seeds, "prompts": prompts, "tokens": tokens, "temperature": temperature, "level": level}
    if sampling or any(value is not None for value in moved.values()):
        what = "Sampled answers are compared by a command of its own."
        raise UsageError(what, where="verify-lossless", fix="benchctl verify-sampling RUN, with the same options.")
    _refuse_ignored(
        "--offline" if offline else f"--audit {audit}",
        {
            "--audit": audit != "full" and offline,
            "--audit-minutes": audit_minutes is not None and (offline or audit != "full"),
            "--engine-binary": engine_binary is not None and (offline or audit == "off"),
            "--models-dir": models_dir is not None and (offline or audit == "off"),
        },
    )
    from benchctl.analysis.results import ACCEPTED
    from benchctl.cli.show_lossless import print_document, print_tables
    from benchctl.data.store import open_run, resolve_run
    from benchctl.lossless.session import explain

    data = open_run(resolve_run(run, results))
    explained = explain(
        data,
        baseline=baseline,
        arms=arm,
        depth="off" if offline else audit,
        budget_min=audit_minutes,
        binary=engine_binary,
        models_dir=models_dir,
        trusted=trust_recipe,
        quiet=quiet or as_json,
    )
    if not explained.found:
        raise UsageError("The run has only its baseline, so there is nothing to compare.", where=str(data.folder))
    if as_json:
        print_document(data, explained)
    elif not quiet:
        print_tables(data, explained)
    if explained.failure is not None:
        raise explained.failure
    if not explained.only(*ACCEPTED[accept]):
        raise typer.Exit(1)


def _refuse_ignored(where: str, options: dict[str, bool]) -> None:
    """Raise UsageError for options that were given and would do nothing."""
    from benchctl.errors import UsageError

    if ignored := [name for name, given in options.items() if given]:
        what = f"{', '.join(ignored)} would have no effect"
        raise UsageError(what, where=where, fix="Leave out one or the other.")
