"""`benchctl models`: the models that come with benchctl, and their Hugging Face folders."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchctl.cli.options import JsonForText
from benchctl.errors import UsageError

if TYPE_CHECKING:
    from benchctl.models.sources import BundledModel

app = typer.Typer(
    help="List the bundled models, and write models as Hugging Face folders.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_HASH_CHARACTERS = 12


@app.command("list")
def list_models(
    json_output: JsonForText = False,
) -> None:
    """List the models that come with benchctl: name, role, architecture, parameters, size, SHA-256, licence."""
    from benchctl.models.sources import bundled_models

    found = bundled_models()
    if json_output:
        import json

        json.dump([model.as_dict() for model in found], sys.stdout, indent=2, ensure_ascii=True)
        sys.stdout.write("\n")
    elif found:
        _print_models(found)
    else:
        typer.echo("This installation of benchctl has no bundled models.", err=True)


@app.command("export")
def export(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="bundled:NAME, or another GGUF source: a path, hf:ORG/REPO/FILE.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FOLDER", help="Where to write it; default: benchctl's cache."),
    ] = None,
) -> None:
    """Write a model as the Hugging Face folder that vLLM and transformers read, and print where it is.

    The weights are exactly those of the GGUF file, which must not be quantized.
    """
    from benchctl.models.huggingface.folder import export_folder, huggingface_folder
    from benchctl.models.sources import locate_model
    from benchctl.text import one_line

    try:
        files = locate_model(source, recipe_folder=Path.cwd(), on_progress=lambda text: typer.echo(text, err=True))
    except UsageError as error:
        raise UsageError(error.what, where=error.where or one_line(source, 120), fix=error.fix) from None
    if len(files) > 1:
        raise UsageError("a model in several files cannot be exported", where=one_line(source, 120))
    if output is None:
        typer.echo(huggingface_folder(files[0]))
    else:
        export_folder(files[0], output.expanduser())
        typer.echo(output)


def _print_models(models: tuple[BundledModel, ...]) -> None:
    titles = ("name", "role", "architecture", "parameters", "MB", "sha256", "licence")
    rows = [
        (
            f"bundled:{model.name}",
            model.role,
            model.architecture,
            f"{model.parameters / 1e6:.2f} M",
            f"{model.size / 1e6:.1f}",
            model.sha256[:_HASH_CHARACTERS],
            model.licence,
        )
        for model in models
    ]
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    for row in (titles, *rows):
        cells = (
            cell.rjust(width) if title in {"parameters", "MB"} else cell.ljust(width)
            for cell, width, title in zip(row, widths, titles, strict=True)
        )
        typer.echo("  ".join(cells).rstrip())
