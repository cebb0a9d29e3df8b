"""`benchctl demo`: from nothing to a report in one command, with the bundled models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchctl.errors import UsageError

RECIPE = "quickstart"
_NOT_LOSSLESS = 1


def demo(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where results/ and reports/ are written.")
    ] = Path(),
    blocks: Annotated[int | None, typer.Option(min=1, help="Blocks, instead of the recipe's; 1 is quickest.")] = None,
    cuda: Annotated[bool, typer.Option("--cuda", help="If an engine has to be built: for NVIDIA GPUs.")] = False,
    metal: Annotated[bool, typer.Option("--metal", help="If an engine has to be built: for Apple GPUs.")] = False,
    cpu: Annotated[bool, typer.Option("--cpu", help="If an engine has to be built: for the CPU alone.")] = False,
) -> None:
    """Measure the bundled model pair, verify its answers and write a report; builds the engine where there is none.

    An engine that is already installed (BENCHCTL_LLAMA_SERVER, PATH) is used. Everything else comes with benchctl.

    Exits with 0 also where an arm is not identical; the last lines and the report state the verdict.
    """
    from benchctl.cli.report import report
    from benchctl.cli.run import run
    from benchctl.cli.verify_lossless import verify_lossless

    _engine(cuda=cuda, metal=metal, cpu=cpu)
    results, reports = out / "results", out / "reports"
    run(RECIPE, out=results, blocks=None if blocks is None else str(blocks))
    lossless = True
    try:
        verify_lossless(results=results)
    except typer.Exit as answer:
        if answer.exit_code != _NOT_LOSSLESS:
            raise
        lossless = False
    report(results=results, out=reports)
    typer.echo()
    if lossless:
        typer.echo("The demo is done: every arm is token-identical to greedy decoding of the target.")
    else:
        typer.echo("The demo is done: NOT every arm is token-identical to the target (see above and the report).")


def _engine(*, cuda: bool, metal: bool, cpu: bool) -> None:
    """Find the engine that the recipe would run, or build benchctl's own."""
    from benchctl.cli.engines import install_engine
    from benchctl.engines.registry import find_engines
    from benchctl.recipes.load import find_recipe, load_recipe

    kind = load_recipe(find_recipe(RECIPE)).engine.kind
    chosen = cuda or metal or cpu
    found = next((engine for engine in find_engines() if engine.kind == kind and engine.runs), None)
    broken = found is not None and found.problem is not None and found.found_in == "bundled"  # rebuilt below
    if found is not None and found.where and chosen and found.found_in != "bundled":
        raise UsageError(
            f"{found.where} ({found.found_in}) is used, so no engine is built.",
            where="--cuda, --metal, --cpu",
            fix="Leave these options out.",
        )
    if found is None or not found.where or broken:
        typer.echo(f"{kind} was not found on this machine. Building it once: 2 to 10 minutes on two cores.", err=True)
        install_engine(kind, cuda=cuda, metal=metal, cpu=cpu)
    elif chosen:
        install_engine(kind, cuda=cuda, metal=metal, cpu=cpu)
    else:
        typer.echo(f"Using {found.where} ({found.found_in})", err=True)
