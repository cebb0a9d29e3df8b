"""`benchctl verify-lossless`: is every answer of an arm token-identical to the target's alone?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchctl.cli import complete, options
from benchctl.errors import UsageError


def verify_lossless(
    run: options.SeveralRuns = None,
    results: options.Results = Path("results"),
    baseline: options.Baseline = None,
    arm: options.OnlyArms = None,
    more: Annotated[
        bool,
        typer.Option("--more", help="Ask more prompts until each arm has a verdict."),
    ] = False,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="With --more: at most so long.", show_default="10m")
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="With --more: ask these.", autocompletion=complete.suites),
    ] = None,
    audit_minutes: Annotated[
        float | None,
        typer.Option(
            min=0.1, metavar="MINUTES", help="The target scores at most so long.", show_default="as long as the run"
        ),
    ] = None,
    accept: options.Accept = "exact",
    offline: Annotated[bool, typer.Option("--offline", help="Start no engine.")] = False,
    engine_binary: options.EngineBinary = None,
    models_dir: options.ModelsDir = None,
    trust_recipe: options.TrustRecipe = False,
    as_json: options.JsonForTables = False,
    quiet: options.NoTables = False,
) -> None:
    """Is every answer the target's own?

    Several runs of one workload and engine are judged together.

    The target alone is launched again and replays every answer in the batches it was made in. An arm is `identical`
    where every answer is the baseline's in every block, `exact` where answers differ and every token is the likeliest
    there, a `violation` where one is not. Where it cannot replay, the target scores whole answers: `consistent`, where
    they differ as rounding would make them.

    Exits with 0 when every arm is identical or exact (or what --accept names), with 1 when not or undetermined, with 3
    when the engine failed.
    """
    runs: list[str | None] = [*run] if run else [None]
    if offline:
        options.refuse_beside(
            "--offline",
            {
                "--audit-minutes": audit_minutes, "--engine-binary": engine_binary, "--models-dir": models_dir,
                "--more": more,
            },
        )  # fmt: skip
    if more:
        options.refuse_beside("--more", {"--baseline": baseline})
    if not more and (budget is not None or prompts is not None):
        message = "--budget and --prompts have no effect without --more."
        raise UsageError(message, fix="Add --more, or leave them out.")
    if more and len(runs) > 1:
        raise UsageError("Further prompts are asked of one run.", where="--more", fix="Name a single run.")
    from benchctl.analysis.output_results import ACCEPTED
    from benchctl.cli.show_lossless import print_document, print_tables
    from benchctl.data.store import open_run, resolve_run
    from benchctl.lossless.score.session import Request, verify, verify_pooled

    data, *others = [open_run(resolve_run(name, results)) for name in runs]
    request = Request(
        baseline=baseline,
        arms=arm,
        offline=offline,
        budget_min=audit_minutes,
        binary=engine_binary,
        models_dir=models_dir,
        trusted=trust_recipe,
        quiet=quiet or as_json,
    )
    asked = None
    if more:
        from benchctl.lossless.score.asking import AskingLimits, verify_more

        data, verified, asked = verify_more(data, request, AskingLimits(options.read_budget(budget or "10m"), prompts))
    elif others:
        data, verified = verify_pooled([data, *others], request)
    else:
        verified = verify(data, request)
    if not verified.verdicts:
        raise UsageError("The run has only its baseline, so there is nothing to compare.", where=str(data.folder))
    if as_json:
        print_document(data, verified, asked)
    elif not quiet:
        print_tables(data, verified, asked)
    if verified.failure is not None:
        raise verified.failure
    if not verified.only(*ACCEPTED[accept]):
        raise typer.Exit(1)
