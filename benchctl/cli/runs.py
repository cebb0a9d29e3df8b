"""`benchctl runs`: list, show and delete the runs of a results folder."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchctl.cli import options
from benchctl.cli.options import JsonForText, Results, of_run
from benchctl.errors import UsageError
from benchctl.reports.json_output import print_json
from benchctl.text import one_line

if TYPE_CHECKING:
    from benchctl.data.integrity import Integrity
    from benchctl.data.listing import ListedRun
    from benchctl.data.manifest import ArmIdentity, Manifest, ModelIdentity, SetupIdentity

app = typer.Typer(help="List, show and delete runs.", no_args_is_help=True)


@app.command("list")
def list_all(results: Results = Path("results"), as_json: JsonForText = False) -> None:
    """List the runs, newest first: recipe, id, status, engine, arms, blocks, size."""
    from benchctl.data.listing import list_runs

    found = list_runs(results)
    if as_json:
        print_json("runs list", [_as_dict(run) for run in found])
    elif found:
        _print_table(found)
    else:
        typer.echo(f"There is no run in {results}.", err=True)


@app.command("show")
def show(run: options.LatestRun = None, results: Results = Path("results"), as_json: JsonForText = False) -> None:
    """Show a run: models, engine, machine, every arm's command line, and the status of its cells."""
    from benchctl.data.store import open_run, read_manifest, resolve_run

    folder = resolve_run(run, results)
    if not folder.is_dir():
        raise UsageError("This is a file of records without a manifest.", where=str(folder))
    manifest = read_manifest(folder)
    integrity = open_run(folder, as_stored=True).integrity
    if as_json:
        stored = manifest.model_dump(mode="json", by_alias=True)
        print_json("runs show", stored | {"integrity": integrity.as_dict()})
    else:
        _print_run(folder, manifest, integrity)


@app.command("rm")
def remove(
    runs: Annotated[list[str], of_run(metavar="RUN…", help="Folders, recipes (their latest run) or ids.")],
    results: Results = Path("results"),
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete runs with their records, logs and replays. This cannot be undone."""
    from benchctl.data.listing import remove_runs
    from benchctl.data.store import resolve_run

    folders = list(dict.fromkeys(resolve_run(run, results) for run in runs))
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("Deleting runs has to be confirmed.", fix="Add --yes.")
        for folder in folders:
            typer.echo(f"  {one_line(str(folder))}")
        typer.confirm(f"Delete {_runs(len(folders))}?", abort=True)
    remove_runs(folders)
    typer.echo(f"Deleted {_runs(len(folders))}.")


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _as_dict(run: ListedRun) -> dict[str, Any]:
    manifest = run.manifest
    return {
        "folder": str(run.folder),
        "run": run.folder.name,
        "recipe": run.recipe,
        "status": manifest.status if manifest else None,
        "created_at": manifest.created_at if manifest else None,
        "engine": manifest.engine.kind if manifest else None,
        "version": manifest.engine.version if manifest else None,
        "arms": [arm.name for arm in manifest.arms] if manifest else None,
        "blocks": manifest.blocks if manifest else None,
        "finished_cells": run.finished_cells,
        "bytes": run.size,
        "problem": run.problem,
        "damage": run.damage,
    }


def _print_table(found: list[ListedRun]) -> None:
    from benchctl.reports import numbers
    from benchctl.reports.columns import Column, Name, Table, numeric
    from benchctl.reports.terminal import Printout

    columns: tuple[Column[ListedRun], ...] = (
        Column("recipe", "recipe", Name, heads=True),
        Column("run", "folder.name"),
        Column("status", lambda run: run.manifest.status if run.manifest else "unreadable"),
        Column("engine", lambda run: run.manifest.engine.kind if run.manifest else None, least_width=90),
        numeric("arms", lambda run: len(run.manifest.arms) if run.manifest else None),
        numeric("blocks", lambda run: run.manifest.blocks if run.manifest else None, least_width=110),
        numeric("cells", "finished_cells", least_width=110),
        numeric("size", "size", numbers.size),
    )
    out = Printout()
    out.table(Table("runs", "Runs", columns, found))
    for run in found:
        if run.damage:
            out.say(f"{run.folder.name} is damaged: {run.damage[0]}", "yellow", whole=True, most=300)


def _print_run(folder: Path, manifest: Manifest, integrity: Integrity) -> None:
    from benchctl.reports.columns import Code, Column, Name, Table
    from benchctl.reports.terminal import Printout

    machine = manifest.machine
    setups: Sequence[Manifest | SetupIdentity] = manifest.setups or [manifest]
    engines = [setup.engine for setup in setups]

    def each(values: Iterable[str]) -> str:
        return "; ".join(dict.fromkeys(values))

    ended: dict[str, int] = {}
    for status in {(cell.block, cell.arm): cell.status for cell in manifest.cells}.values():
        ended[status] = ended.get(status, 0) + 1
    rows = [
        ("run", f"{folder} ({manifest.status})"),
        ("recipe", manifest.recipe_name),
        ("started", manifest.created_at),
        ("engine", each(" ".join(filter(None, (e.kind, e.version, f"({e.found_in})"))) for e in engines)),
        ("target", each(_model(setup.target) for setup in setups)),
        ("draft", each("none" if setup.draft is None else _model(setup.draft) for setup in setups)),
        ("machine", ", ".join(str(machine[key]) for key in ("cpu", "os") if machine.get(key))),
        ("prompts", f"{len(manifest.prompts)} of the suite {manifest.suite.get('name', 'not recorded')}"),
        ("cells", ", ".join(f"{count} {status}" for status, count in ended.items()) or "none yet"),
        ("files", integrity.sentence.removeprefix("Files: ")),
    ]
    out = Printout()
    out.facts(rows)
    out.say()
    columns: tuple[Column[ArmIdentity], ...] = (
        Column("arm", "name", Name, heads=True),
        Column("command", "argv", cell=lambda arm: Code(arm.url or " ".join(arm.argv)), wrap=True),
    )
    out.table(Table("arms", "Arms", columns, manifest.arms))


def _model(model: ModelIdentity) -> str:
    digests = ", ".join(file.sha256[:12] for file in model.files)
    return f"{model.source} ({digests})" if digests else model.source
