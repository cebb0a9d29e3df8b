"""`benchctl runs`: list, show and delete the runs of a results folder."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchctl.cli import options
from benchctl.cli.options import JsonForText, Results, of_run
from benchctl.errors import BenchctlError, UsageError
from benchctl.reports.json_output import print_json
from benchctl.text import one_line, plural

if TYPE_CHECKING:
    from benchctl.data.integrity import Integrity
    from benchctl.data.listing import ListedRun
    from benchctl.data.manifest import ArmIdentity, Manifest, ModelIdentity, SetupIdentity
    from benchctl.data.summary import ArmSummary, RunSummary

MOST_LISTED = 25
"""Runs that `runs list` shows unless it is asked for all."""

app = typer.Typer(help="List, show and delete runs.", no_args_is_help=True)


@app.command("list")
def list_all(
    results: Results = Path("results"),
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="KEY=TEXT",
            help="Only runs whose recipe, status, engine, machine, result or workload has this text; repeatable.",
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help=f"All runs, not the newest {MOST_LISTED}.")] = False,
    as_json: JsonForText = False,
) -> None:
    """List the runs, newest first, with their result.

    The result is the fastest arm that drafted, its speed-up over the baseline, and its verdict. It is computed once
    and kept in the user's cache.
    """
    from benchctl.data.listing import run_folders

    conditions = [_condition(text) for text in only or ()]
    folders = run_folders(results)
    chosen = folders if everything or conditions else folders[:MOST_LISTED]
    rows = [row for row in _listed(chosen) if all(row.matches(key, text) for key, text in conditions)]
    if as_json:
        print_json("runs list", [row.facts for row in rows])
    elif rows:
        _print_table(rows)
        if len(chosen) < len(folders):
            typer.echo(f"{len(folders) - len(chosen)} earlier runs: --all lists them.", err=True)
    else:
        typer.echo(f"There is no {'such ' if conditions and folders else ''}run in {results}.", err=True)


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
    counted = f"{len(folders)} {plural(len(folders), 'run')}"
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("Deleting runs has to be confirmed.", fix="Add --yes.")
        for folder in folders:
            typer.echo(f"  {one_line(str(folder))}")
        typer.confirm(f"Delete {counted}?", abort=True)
    remove_runs(folders)
    typer.echo(f"Deleted {counted}.")


KEYS = ("recipe", "status", "engine", "machine", "result", "workload")
"""What `--only` asks of a run."""


def _condition(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if key not in KEYS or not equals:
        raise UsageError(f"Expected one of {', '.join(KEYS)} and a text.", where=text, fix="Such as --only recipe=mine")
    return key, value


@dataclass(frozen=True)
class RunRow:
    """A run with its summary; `None` where it cannot be read."""

    run: ListedRun
    summary: RunSummary | None

    @property
    def best(self) -> ArmSummary | None:
        """The fastest arm that is compared with a baseline."""
        arms = self.summary.arms if self.summary else []
        compared = [arm for arm in arms if arm.compares and arm.speedup is not None]
        return max(compared, key=lambda arm: arm.speedup or 0.0, default=None)

    def matches(self, key: str, text: str) -> bool:
        """Whether a key of `KEYS` has this text, whatever its case."""
        return text.lower() in str(self.facts[key] or "").lower()

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The run as `runs list --json` has it."""
        manifest, best = self.run.manifest, self.best
        return {
            "folder": str(self.run.folder),
            "run": self.run.folder.name,
            "recipe": self.run.recipe,
            "status": manifest.status if manifest else None,
            "created_at": manifest.created_at if manifest else None,
            "engine": manifest.engine.kind if manifest else None,
            "version": manifest.engine.version if manifest else None,
            "machine": self.summary.machine if self.summary else None,
            "workload": self.summary.workload if self.summary else None,
            "arms": [arm.name for arm in manifest.arms] if manifest else None,
            "blocks": manifest.blocks if manifest else None,
            "finished_cells": self.run.finished_cells,
            "result": None if best is None else f"{best.name} {best.speedup:.2f}×, {best.lossless or 'not judged'}",
            "speedup": best.speedup if best else None,
            "verdict": best.lossless if best else None,
            "bytes": self.run.size,
            "problem": self.run.problem,
            "damage": self.run.damage,
        }


def _listed(folders: Sequence[Path]) -> list[RunRow]:
    """Return the runs with their summaries; those that the cache lacks are made."""
    from benchctl.data.listing import listed_run
    from benchctl.data.summary import look_up

    runs = [listed_run(folder) for folder in folders]
    entries = [look_up(run.folder) for run in runs if run.manifest is not None]
    summaries: Sequence[RunSummary | BenchctlError | None] = [entry.summary for entry in entries]
    if None in summaries:  # only then is everything imported that analyses a run
        from benchctl.analysis.comparison.summary import complete
        from benchctl.lossless.judge.run import judge

        summaries = complete(entries, judge)
    by_folder = {
        entry.run: None if isinstance(summary, BenchctlError) else summary
        for entry, summary in zip(entries, summaries, strict=True)
    }
    return [RunRow(run, by_folder.get(run.folder)) for run in runs]


def _print_table(rows: list[RunRow]) -> None:
    from benchctl.reports.columns import Column, Name, Table, numeric
    from benchctl.reports.terminal import Printout
    from benchctl.words import numbers

    columns: tuple[Column[RunRow], ...] = (
        Column("recipe", "run.recipe", Name, heads=True),
        Column("run", "run.folder.name"),
        Column("status", lambda row: row.facts["status"] or "unreadable"),
        Column("result", lambda row: row.facts["result"]),
        Column("engine", lambda row: row.facts["engine"], least_width=100),
        numeric("cells", "run.finished_cells", least_width=120),
        numeric("size", "run.size", numbers.size, least_width=110),
    )
    out = Printout()
    out.table(Table("runs", "Runs", columns, rows))
    for run in (row.run for row in rows):
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
