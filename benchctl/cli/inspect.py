"""`benchctl models inspect`: the facts of a model file, or what differs between two."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchctl.cli.json_output import print_json
from benchctl.cli.options import JsonForText, ModelsDir


def inspect(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A path, hf:ORG/REPO\\[/FILE] or bundled:NAME.")],
    diff: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Show what differs from MODEL to this one instead.")
    ] = None,
    tensors: Annotated[bool, typer.Option("--tensors", help="Also list every tensor.")] = False,
    models_dir: ModelsDir = None,
    as_json: JsonForText = False,
) -> None:
    """Show what a GGUF model is: architecture, tensors, vocabulary, template.

    Reads only the headers (of every shard), so it is quick and needs little memory.
    """
    from benchctl.models.inspection import compare_models, inspect_model
    from benchctl.models.sources import locate_model

    def first_file(source: str) -> Path:
        return locate_model(source, recipe_folder=Path.cwd(), models_dir=models_dir)[0]

    if diff is not None:
        found = compare_models(first_file(model), first_file(diff))
        if not as_json:
            from benchctl.cli.show_inspection import show_difference

            show_difference(found)
            return
        document = found.as_dict()
    else:
        inspection = inspect_model(first_file(model))
        if not as_json:
            from benchctl.cli.show_inspection import show_inspection, show_tensors

            show_inspection(inspection)
            if tensors:
                show_tensors(inspection.path)
            return
        document = inspection.as_dict()
    print_json("inspect", document)
