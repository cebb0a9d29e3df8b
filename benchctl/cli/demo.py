"""`benchctl demo`: from nothing to a report in one command, with the bundled models."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchctl.cli.options import Out
from benchctl.errors import StorageError, UsageError

if TYPE_CHECKING:
    from benchctl.analysis.results import Analysis

RECIPE, PADDED_RECIPE, WIDE = "quickstart", "padded", "tiny-hybrid-wide"
ARMS = {RECIPE: ("spec_d8", "ngram"), PADDED_RECIPE: ("spec_d8",)}
"""The arms of each recipe that the demo measures. Both halves together take about a minute."""


def demo(
    out: Out = Path(),
    blocks: Annotated[int, typer.Option(min=1, metavar="N", help="Blocks of each pair; 1 is too few to conclude.")] = 3,
    cuda: Annotated[bool, typer.Option("--cuda", help="Build an engine for NVIDIA GPUs.")] = False,
    metal: Annotated[bool, typer.Option("--metal", help="Build an engine for Apple GPUs.")] = False,
    cpu: Annotated[bool, typer.Option("--cpu", help="Build an engine for the CPU alone.")] = False,
) -> None:
    """Try benchctl with two tiny bundled models.

    Measures the bundled pair as it is, and with the memory traffic of a large model. Takes about a minute once an
    engine is installed, and builds the engine if there is none.
    An engine that is already installed (BENCHCTL_LLAMA_SERVER, PATH) is used. Everything else comes with benchctl.

    Exits with 0 also where an arm is not identical; the last lines and the reports state the verdict.
    """
    from benchctl.models.shipped import padded_file, padded_model

    _engine(cuda=cuda, metal=metal, cpu=cpu)
    typer.echo(_SETTINGS, err=True)
    answers = [("The bundled target, 9 MB of weights", _measured(RECIPE, out, blocks))]
    try:
        size = padded_model(WIDE).stat().st_size
    except StorageError as error:
        typer.echo(f"The second half is left out: {error}", err=True)
    else:
        padded = f"the same model padded with zeros to {size / 1e6:.0f} MB"
        typer.echo(f"\nNext: {padded}. Same answers, but as slow to read as a real model.", err=True)
        try:
            answers.append((f"Padded to {size / 1e6:.0f} MB", _measured(PADDED_RECIPE, out, blocks)))
        finally:
            padded_file(WIDE).unlink(missing_ok=True)
    typer.echo("\nThe demo is done: does speculative decoding pay here?")
    for who, analysis in answers:
        typer.echo(f"- {who}: {_answer(analysis)}")
    typer.echo(f"With more depths: benchctl run {RECIPE}, benchctl run {PADDED_RECIPE}.")
    typer.echo("For your own models: benchctl run TARGET.gguf DRAFT.gguf")


_SETTINGS = """\
The demo measures a model of 9 MB alone (baseline), with a draft model that proposes 8 tokens at a time (spec_d8), and
with n-grams that copy what was seen before (ngram). Each repetition (block) starts fresh engines."""
_WHY = {
    "pays": "a step takes as long as reading the weights, and verifying several tokens reads them once",
    "does not pay": "drafting and verifying cost more than the steps that they save",
    "undecided": "more blocks, or a machine that does nothing else, would decide it",
}


def _measured(recipe: str, out: Path, blocks: int) -> Analysis:
    """Run a recipe, verify its answers, write the report, and print its conclusion and its table."""
    from contextlib import redirect_stdout
    from io import StringIO

    from rich.console import Console

    from benchctl.cli.report import report
    from benchctl.cli.run import run
    from benchctl.cli.verify_lossless import verify_lossless
    from benchctl.data.store import open_run, resolve_run
    from benchctl.lossless.judge.run import analyse_run
    from benchctl.reports.run_summary import print_summary

    results = out / "results"
    with redirect_stdout(StringIO()):  # the report says the same
        run([recipe], out=results, blocks=str(blocks), only=list(ARMS[recipe]))
        newest = resolve_run(recipe, results)
        with suppress(typer.Exit):  # an arm that is not lossless: the report says so
            verify_lossless([str(newest)], results=results)
        report(str(newest), results=results, out=out / "reports")
    measured = open_run(newest)
    analysis = analyse_run(measured)
    print_summary(Console(), analysis, str(newest), measured.manifest)
    typer.echo(f"Report: {out / 'reports' / recipe / newest.name / 'index.html'}")
    return analysis


def _answer(analysis: Analysis) -> str:
    """Return whether it pays, by the fastest arm, and whether every answer is the target's, in a sentence."""
    from benchctl.analysis.outcome import disturbances
    from benchctl.text import listed

    drafted = [verdict for verdict in analysis.verdicts if verdict.arm not in analysis.baselines and verdict.speedup]
    best = max(drafted, key=lambda verdict: verdict.speedup or 0.0, default=None)
    if best is None:
        return "nothing could be compared."
    slow = {verdict.speed for verdict in drafted} <= {"slower", "within"}
    answer = "pays" if best.speed == "faster" else "does not pay" if slow else "undecided"
    from benchctl.analysis.output_results import LOSSLESS

    outputs = {verdict.lossless for verdict in drafted}
    same = "every answer is identical" if outputs == {"identical"} else "NOT every answer is identical"
    if "exact" in outputs and outputs <= {*LOSSLESS}:
        same = "every answer is identical or exact"
    disturbed = disturbances(analysis)
    doubt = f" The machine was {listed(disturbed)}, so another run may say otherwise." if disturbed else ""
    return f"{answer} ({best.speedup:.2f}× with {best.arm}; {same}): {_WHY[answer]}.{doubt}"


def _engine(*, cuda: bool, metal: bool, cpu: bool) -> None:
    """Find the engine that the recipe would run, or build benchctl's own."""
    from benchctl.cli.engines import install_engine
    from benchctl.engines.registry import find_engines
    from benchctl.recipes.load import find_recipe, load_recipe

    kind = load_recipe(find_recipe(RECIPE)).engine.kind
    chosen = cuda or metal or cpu
    usable = next((engine for engine in find_engines() if engine.kind == kind and engine.runs), None)
    broken = usable is not None and usable.problem is not None and usable.found_in == "bundled"  # rebuilt below
    if usable is not None and usable.where and chosen and usable.found_in != "bundled":
        raise UsageError(
            f"{usable.where} ({usable.found_in}) is used, so no engine is built.",
            where="--cuda, --metal, --cpu",
            fix="Leave these options out.",
        )
    if usable is None or not usable.where or broken:
        time = "3 to 10 minutes on two cores"
        typer.echo(f"{kind} was not found on this machine. Building it once: {time}.", err=True)
        install_engine(kind, cuda=cuda, metal=metal, cpu=cpu)
    elif chosen:
        install_engine(kind, cuda=cuda, metal=metal, cpu=cpu)
    else:
        typer.echo(f"Using {usable.where} ({usable.found_in})", err=True)
