"""`benchctl models`: the models that come with benchctl."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from benchctl.cli.json_output import print_json
from benchctl.cli.options import JsonForText

if TYPE_CHECKING:
    from benchctl.models.sources import BundledModel

app = typer.Typer(
    help="List, inspect and quantize models; prompt suites.",
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
