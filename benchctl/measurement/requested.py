"""The recipe that a command line asks for: a file, a shipped recipe, a run's own once more, or made of options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchctl.data.store import MANIFEST, RunData, open_run
from benchctl.errors import UsageError
from benchctl.measurement.prepare import RecipeContext
from benchctl.measurement.resume import context_of_run
from benchctl.permissions import is_trusted
from benchctl.recipes.engine_line import read_engine_line
from benchctl.recipes.from_options import (
    NO_OPTIONS,
    RecipeOptions,
    prompt_settings,
    recipe_from_options,
    recipe_of_line,
    recipe_of_urls,
    with_settings,
    with_types,
)
from benchctl.recipes.load import find_recipe, load_recipe, recipe_of_options, shipped_recipes
from benchctl.recipes.source import names_a_model
from benchctl.recipes.trust import ALL_KEYS
from benchctl.text import one_line


def subject_of(
    words: Sequence[str], target: str | None, draft: str | None
) -> tuple[str | None, str | None, str | None]:
    """Return recipe, target and draft of a command line: its words may be a recipe, or a target and its draft.

    Raises UsageError where a model is named twice, and where more is named than there is a place for.
    """
    if not words:
        return None, target, draft
    first, *drafts = words
    if not names_a_model(first):
        if drafts:
            raise UsageError(
                "Expected one recipe or run, or a target and its draft.",
                where=one_line(drafts[0], 80),
                fix="A model is a .gguf file, a folder with config.json, hf:ORG/REPO or bundled:NAME; else use -t, -d.",
            )
        return first, target, draft
    if target is not None or (drafts and draft is not None) or len(drafts) > 1:
        raise UsageError(
            "A model is named twice.",
            where=one_line(" ".join(words), 200),
            fix="benchctl run TARGET DRAFT, or benchctl run -t TARGET -d DRAFT",
        )
    return None, first, drafts[0] if drafts else draft


def requested_recipe(
    options: RecipeOptions,
    results: Path,
    *,
    trust: bool = False,
    url: str | None = None,
    arm_url: str | None = None,
) -> RecipeContext:
    """Return the recipe that a command line names or makes, and what it may do. Raises UsageError, StorageError.

    `url`, `arm_url`: two servers that run, in place of a recipe.
    """
    if arm_url is not None and url is None:
        raise UsageError("Name the server without speculation, too.", where="--arm-url", fix="--url URL --arm-url URL")
    line = read_engine_line(options.subject or ())
    if line is not None:
        if any((options.target, options.draft, options.engine, url)):
            raise UsageError("The engine's line names the models.", where="--target, --draft, --engine, --url")
        return context_of_data(recipe_of_line(options, line, Path.cwd()), trust=trust)
    recipe, target, draft = subject_of(options.subject or (), options.target, options.draft)
    if [recipe, target, url].count(None) != 2:
        fix = "`benchctl recipes list` shows the shipped recipes."
        raise UsageError("Name either a recipe or a target.", fix=fix)
    if target is None and (draft or options.engine):
        raise UsageError(
            "These options make a recipe, but this command line already names a recipe or a run.",
            where="--draft, --engine",
            fix="Name the target with -t, or write it in the recipe.",
        )
    if target is not None:
        return context_of_data(recipe_from_options(options, target, draft, Path.cwd()), trust=trust)
    if url is not None:
        return context_of_data(recipe_of_urls(options, url, arm_url, Path.cwd()), trust=trust)
    return named_recipe(recipe or "", results, options, trust=trust)


def named_recipe(
    name: str, results: Path, options: RecipeOptions = NO_OPTIONS, *, trust: bool = False
) -> RecipeContext:
    """Return a recipe by its name or file, or a run's own, with what `options` change. Raises as `requested_recipe`."""
    overrides = prompt_settings(options) | options.overrides
    repeated = _run_to_repeat(name, results)
    if repeated is not None:
        context = context_of_run(repeated, trusted=trust)
        changed = with_settings(context.recipe, overrides)
        if options.types or options.sweeps:
            changed = with_types(changed, options)
        return replace(context, recipe=changed, typed=frozenset(overrides))
    if options.types or options.sweeps:
        raise UsageError(
            "These options make a recipe, but this command line already names a recipe.",
            where="--type, --depth, -L",
            fix="Name the target with -t, or write it in the recipe; of a run's folder they replace the arms.",
        )
    file = find_recipe(name)
    of_run = (file.parent / MANIFEST).is_file()  # a file that anybody may have changed since the run
    base = context_of_run(open_run(file.parent)).folder if of_run else file.parent
    loaded = load_recipe(file, overrides=overrides)
    return RecipeContext(loaded, base, trust or (not of_run and is_trusted(base)), frozenset(overrides))


def context_of_data(data: Mapping[str, Any], *, trust: bool = False) -> RecipeContext:
    """Return a recipe whose every key was typed by who runs it. Raises UsageError."""
    return RecipeContext(recipe_of_options(dict(data)), Path.cwd(), trust, ALL_KEYS)


def _run_to_repeat(name: str, out: Path) -> RunData | None:
    """Return the run whose recipe is to be run again: by its folder, or by its id; `None` for a recipe."""
    path = Path(name).expanduser()
    if (path / MANIFEST).is_file():
        return open_run(path, as_stored=True)
    if path.exists() or name in shipped_recipes():
        return None
    by_id = [file for file in out.glob(f"*/*/{MANIFEST}") if file.parent.name == name]
    return open_run(by_id[0].parent, as_stored=True) if by_id else None
