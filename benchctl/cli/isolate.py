"""`benchctl isolate`: find the tensors that must not be quantized."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchctl.cli import complete
from benchctl.cli.options import EngineBinary, JsonAtEnd, ModelsDir, Out, Quiet, TrustRecipe
from benchctl.reports.json_output import print_json


def isolate(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE", help="A recipe, or the name of a shipped recipe.", autocompletion=complete.recipes
        ),
    ],
    base: Annotated[
        str | None, typer.Option("--type", "-t", metavar="TYPE", help="Default: the recipe's, else q8_0.")
    ] = None,
    layers: Annotated[bool, typer.Option("--layers", help="Also the layers within the family.")] = False,
    singly: Annotated[bool, typer.Option("--all", help="Also every family quantized alone, kept alone.")] = False,
    text: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Default: the prompts with the unquantized model's answers.", dir_okay=False),
    ] = None,
    tokens: Annotated[int, typer.Option(metavar="N", help="Length of the text; half is scored.", min=1024)] = 4096,
    allow_requantize: Annotated[bool, typer.Option("--allow-requantize", help="Accept a quantized source.")] = False,
    out: Out = Path("results"),
    engine_binary: EngineBinary = None,
    models_dir: ModelsDir = None,
    trust_recipe: TrustRecipe = False,
    quiet: Quiet = False,
    as_json: JsonAtEnd = False,
) -> None:
    """Which tensors must not be quantized?

    Quantizes the source in several ways, probes each file and compares it with the source over a text. A second call
    continues where the first stopped. Exits with 1 when the source is broken before it is quantized.
    """
    from rich.console import Console

    from benchctl.experiments.isolate.search import search
    from benchctl.experiments.isolate.session import isolate as measured
    from benchctl.experiments.isolate.source import find_source_model
    from benchctl.experiments.isolate.table import document, show_isolation
    from benchctl.measurement.progress import Display
    from benchctl.measurement.requested import named_recipe
    from benchctl.measurement.run import signals_interrupt

    context = named_recipe(recipe, out, trust=trust_recipe)
    display = Display(Console(stderr=True, highlight=False, quiet=quiet or as_json))
    with signals_interrupt(), display:
        source = find_source_model(
            context,
            base=base,
            allow_requantize=allow_requantize,
            binary=engine_binary,
            models_dir=models_dir,
            notice=display.note,
        )
        folder, isolation, damaging = measured(
            source,
            lambda measure: search(source.families, measure, singly=singly, layers=layers),
            out,
            display,
            text=text,
            tokens=tokens,
        )
    report = document(source, isolation, damaging, folder)
    if as_json:
        print_json("isolate", report)
    elif not quiet:
        show_isolation(isolation, damaging, report["repair"], folder)
    if damaging.verdict == "source damaged":
        raise typer.Exit(1)
