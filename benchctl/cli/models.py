"""`benchctl models`: the models that come with benchctl, and their Hugging Face folders."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchctl.cli.json_output import print_json
from benchctl.cli.options import JsonForText
from benchctl.errors import UsageError

if TYPE_CHECKING:
    from benchctl.models.sources import BundledModel

app = typer.Typer(
    help="List, inspect, quantize and export models; prompt suites.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_HASH_CHARACTERS = 12


@app.command("list")
def list_models(
    as_json: JsonForText = False,
) -> None:
    """List the models that come with benchctl."""
    from benchctl.models.sources import bundled_models

    found = bundled_models()
    if as_json:
        print_json("models list", [model.as_dict() for model in found])
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
    """Write a model as the Hugging Face folder that vLLM and transformers read.

    Prints where it is. The weights are exactly those of the GGUF file, which must not be quantized.
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
    from benchctl.reports.columns import Column, Table, numeric
    from benchctl.reports.terminal import print_table, table_console

    columns: tuple[Column[BundledModel], ...] = (
        Column("name", lambda model: f"bundled:{model.name}", heads=True),
        Column("role", lambda model: model.role),
        Column("architecture", lambda model: model.architecture),
        numeric("parameters", lambda model: model.parameters, lambda count: f"{count / 1e6:.2f} M"),
        numeric("MB", lambda model: model.size, lambda size: f"{size / 1e6:.1f}"),
        Column("sha256", lambda model: model.sha256, lambda sha256: sha256[:_HASH_CHARACTERS]),
        Column("licence", lambda model: model.licence),
    )
    print_table(table_console(), Table("models", "Models", columns, models))
