"""`benchctl diagnose isolate`: find the tensors that must not be quantized."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchctl.cli import complete
from benchctl.cli.options import AS_FOUND, Here, JsonAtEnd, Out, Quiet
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
    every: Annotated[bool, typer.Option("--all", help="Also every family quantized alone, kept alone.")] = False,
    text: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Default: the prompts with the unquantized model's answers.", dir_okay=False),
    ] = None,
    tokens: Annotated[int, typer.Option(metavar="N", help="Length of the text; half is scored.", min=1024)] = 4096,
    allow_requantize: Annotated[bool, typer.Option("--allow-requantize", help="Accept a quantized source.")] = False,
    out: Out = Path("results"),
    here: Here = AS_FOUND,
    quiet: Quiet = False,
    as_json: JsonAtEnd = False,
) -> None:
    """Find the tensors that break a recipe's target when they are quantized.

    Quantizes the source in several ways, probes each file and compares it with the source over a text. A second call
    continues where the first stopped. Exits with 1 when the source is broken before it is quantized.
    """
    from rich.console import Console

    from benchctl.experiments.isolate.search import search
    from benchctl.experiments.isolate.session import IsolateDisplay, TextSource
    from benchctl.experiments.isolate.session import isolate as run_isolation
    from benchctl.experiments.isolate.source_model import find_source_model
    from benchctl.experiments.isolate.table import repair_of, rows, show_isolation
    from benchctl.measure.progress import Display
    from benchctl.measure.run import signals_interrupt
    from benchctl.permissions import settle
    from benchctl.recipes.load import find_recipe, load_recipe

    file = find_recipe(recipe)
    loaded = load_recipe(file)
    display = Display(Console(stderr=True, highlight=False, quiet=quiet or as_json))
    with signals_interrupt(), display:
        source = find_source_model(
            loaded,
            recipe_folder=file.parent,
            base=base,
            allow_requantize=allow_requantize,
            binary=here.engine_binary,
            models_dir=here.models_dir,
            notice=display.note,
            trusted=settle(loaded, file.parent, file, trusted=here.trust_recipe),
        )
        folder, isolation, finding = run_isolation(
            source,
            lambda: search(source.families, every=every, layers=layers),
            TextSource(text, tokens),
            out,
            IsolateDisplay(display),
        )
    table = rows(isolation, finding.limit)
    repair = repair_of(source, finding)
    if as_json:
        document = {
            "folder": str(folder),
            "source": isolation.source.model_dump(),
            "type": isolation.type,
            "text": None if isolation.text is None else isolation.text.model_dump(),
            "finding": finding.as_dict(),
            "repair": repair,
            "rows": [row.as_dict() for row in table],
        }
        print_json("isolate", document)
    elif not quiet:
        show_isolation(isolation, finding, table, repair, folder)
    if finding.verdict == "source damaged":
        raise typer.Exit(1)
