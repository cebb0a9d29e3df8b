"""What a shell completes: recipes, runs, suites, arms, tasks, engines. Reads only names, and never prints an error."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import typer

Complete = Callable[[typer.Context, str], list[str]]


def _completer(names: Callable[[typer.Context], Iterable[str]]) -> Complete:
    """Keep the names that begin as the word does; any error completes nothing."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        try:
            return sorted({name for name in names(ctx) if name.startswith(incomplete)})
        except Exception:
            return []

    complete.__doc__ = names.__doc__
    return complete


@_completer
def recipes(ctx: typer.Context) -> Iterable[str]:
    """Shipped recipes, and the YAML files of this folder."""
    from benchctl.recipes.load import shipped_recipes

    return [*shipped_recipes(), *(path.name for path in Path().glob("*.y*ml"))]


@_completer
def runs(ctx: typer.Context) -> Iterable[str]:
    """Ids of the runs in the results folder, the recipes that have runs, and the runs' folders."""
    results = Path(ctx.params.get("results") or ctx.params.get("out") or "results")
    for manifest in results.glob("*/*/manifest.json"):
        yield from (manifest.parent.name, manifest.parent.parent.name, str(manifest.parent))


@_completer
def suites(ctx: typer.Context) -> Iterable[str]:
    """Shipped suites, and the files of this folder that may hold prompts."""
    from benchctl.paths import shipped_folder

    yield from (path.stem for path in shipped_folder("prompts").glob("*.json"))
    yield from (path.name for ending in ("json", "jsonl", "txt") for path in Path().glob(f"*.{ending}"))


@_completer
def kinds(ctx: typer.Context) -> Iterable[str]:
    """Engines."""
    from benchctl.recipes.adapters import kinds as registered_kinds

    return registered_kinds()


@_completer
def types_of_speculation(ctx: typer.Context) -> Iterable[str]:
    """Speculation types."""
    from benchctl.recipes.speculation import SPECULATION_TYPES

    return SPECULATION_TYPES


@_completer
def arms(ctx: typer.Context) -> Iterable[str]:
    """Arms of the recipe or the run that the command line names, or of the latest run."""
    import json

    from benchctl.data.store import MANIFEST, resolve_run
    from benchctl.errors import BenchctlError
    from benchctl.recipes.load import load_recipe

    if file := _recipe():
        return [arm.name for arm in load_recipe(file).arms]
    for word in [*_words(), None]:
        with suppress(BenchctlError, OSError):
            manifest = resolve_run(word, Path(ctx.params.get("results") or "results")) / MANIFEST
            return [arm["name"] for arm in json.loads(manifest.read_text("utf-8"))["arms"]]
    return []


@_completer
def tasks_and_arms(ctx: typer.Context) -> Iterable[str]:
    """Arms of the recipe, and tasks of its suite."""
    from benchctl.prompts.load import load_suite
    from benchctl.recipes.load import load_recipe

    yield from arms(ctx, "")
    if file := _recipe():
        asked = load_recipe(file).prompts
        suite = load_suite(asked.suite, recipe_folder=file.parent, skip_bad=asked.skip_bad)
        yield from (item.task for item in suite.select(None, None))


def _words() -> list[str]:
    """Return the words of the line that a shell completes: one that ends in an option without value is not parsed."""
    line = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS") or ""
    return [word for word in line.split()[2:] if not word.startswith("-")]


def _recipe() -> Path | None:
    from benchctl.recipes.load import shipped_recipes

    shipped = shipped_recipes()
    for word in _words():
        if word in shipped or (Path(word).suffix in (".yaml", ".yml") and Path(word).is_file()):
            return shipped.get(word, Path(word))
    return None
