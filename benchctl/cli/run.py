"""`benchctl run`: measure a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe file, or the name of a shipped one (benchctl recipes list).")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where runs are kept.")] = Path("results"),
    resume: Annotated[str | None, typer.Option(help="Finish what this run lacks, instead of a new run.")] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the plan and the exact commands; start no engine. Missing models are fetched."
        ),
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="Measure only this arm and the baseline; may be given several times.")
    ] = None,
    blocks: Annotated[
        str | None, typer.Option(help="Blocks, instead of the recipe's: a number, or auto.", metavar="N|auto")
    ] = None,
    engine_binary: Annotated[
        str | None, typer.Option(help="The engine's binary: a path, or a name on PATH. The recipe's own wins.")
    ] = None,
    models_dir: Annotated[
        Path | None, typer.Option(help="Look for the models' files here before anywhere else.", file_okay=False)
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout at the end.")] = False,
) -> None:
    """Measure every arm of a recipe on the real engine: fresh processes, balanced blocks, every answer hashed.

    Ctrl-C ends a run cleanly; `--resume RUN` finishes it.
    """
    import sys

    from rich.console import Console

    from benchctl.data.store import open_run, resolve_run
    from benchctl.errors import UsageError
    from benchctl.measure.plan import keep_only, with_blocks
    from benchctl.measure.prepare import prepare
    from benchctl.measure.progress import progress_for
    from benchctl.measure.run import recipe_folder_of, recipe_of, resume_run, signals_interrupt, start_run
    from benchctl.recipes.load import find_recipe, load_recipe

    if (recipe is None) == (resume is None):
        raise UsageError(
            "Name either a recipe or a run to resume.", fix="benchctl run RECIPE, or benchctl run --resume RUN"
        )
    if resume is not None and (only or blocks):
        raise UsageError(
            "A resumed run keeps its arms and blocks.", where="--resume", fix="Leave out --only and --blocks."
        )

    progress = progress_for(Console(stderr=True), quiet=quiet or as_json)
    earlier = open_run(resolve_run(resume, out)) if resume is not None else None
    if earlier is not None:
        wanted, folder = recipe_of(earlier), recipe_folder_of(earlier)
    else:
        file = find_recipe(recipe or "")
        wanted, folder = load_recipe(file), file.parent
    if only:
        wanted = keep_only(wanted, only)
    if blocks:
        wanted = with_blocks(wanted, blocks)
    with signals_interrupt():  # a download or a quantization, too, ends cleanly
        prepared = prepare(
            wanted, recipe_folder=folder, binary=engine_binary, models_dir=models_dir, notice=progress.note
        )
    if dry_run:
        from benchctl.cli.show_plan import show_plan

        show_plan(prepared, earlier, out, as_json=as_json)
        return
    where = (
        resume_run(prepared, earlier, progress)
        if earlier is not None
        else start_run(prepared, out, progress, ["benchctl", *sys.argv[1:]])
    )

    from benchctl.cli.show_run import show_run

    show_run(where, as_json=as_json, quiet=quiet)
