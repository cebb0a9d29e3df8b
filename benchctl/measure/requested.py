"""The recipe that a command line asks for: a file, a shipped one, a run's own once more, or made of options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchctl.data.store import MANIFEST, RunData, open_run
from benchctl.errors import UsageError
from benchctl.measure.run import Standing, standing_of
from benchctl.permissions import ALL_KEYS, settle
from benchctl.recipes.from_options import (
    DRAFT_TYPE,
    parse_settings,
    parse_sweep,
    prompt_settings,
    recipe_from_options,
    recipe_of_urls,
)
from benchctl.recipes.load import find_recipe, load_recipe, recipe_of_options, shipped_recipes
from benchctl.recipes.saved import with_settings, with_types
from benchctl.recipes.source import names_a_model
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
    recipe: str | None,
    out: Path,
    *,
    target: str | None = None,
    draft: str | None = None,
    kind: str | None = None,
    types: list[str] | None = None,
    depth: str | None = None,
    sweep: list[str] | None = None,
    prompts: str | None = None,
    limit: int | None = None,
    settings: list[str] | None = None,
    trust: bool = False,
    url: str | None = None,
    arm_url: str | None = None,
) -> Standing:
    """Return the recipe that is named or that the options make, and what it may do. Raises UsageError, StorageError."""
    overrides = parse_settings(settings or [])
    sweeps = parse_sweep([*([f"depth={depth}"] if depth else []), *(sweep or [])])
    again = None if recipe is None else _earlier(recipe, out)
    if again is not None:
        standing = standing_of(again, trusted=trust)
        overrides |= prompt_settings(prompts, limit)
        found = with_settings(standing.recipe, overrides)
        settle(found, standing.folder, typed=overrides)
        changed = with_types(found, types or [], sweeps) if types or sweeps else found
        return Standing(changed, standing.folder, standing.trusted)
    if url is not None:
        if arm_url is None:
            raise UsageError(
                "One server alone gives nothing to compare: none that benchctl knows switches speculation per request.",
                where="--url",
                fix="Start a second server that speculates, and name it: --arm-url http://HOST:PORT/v1",
            )
        depths = sweeps.pop("depth", [])
        if sweeps or len(depths) > 1 or len(types or []) > 1:
            raise UsageError(
                "A server that runs has one type of speculation and one depth.",
                where="--type, --depth, -L",
                fix="Name what it was started with; several servers go into a recipe: recipes/endpoint.yaml.",
            )
        servers = recipe_of_urls(
            url,
            arm_url,
            kind=(types or [DRAFT_TYPE])[0],
            depth=depths[0] if depths else None,
            prompts=prompts,
            limit=limit,
            folder=Path.cwd(),
            settings=overrides,
        )
        return standing_of_data(servers, trust=trust)
    if target is None and (types or sweeps):
        raise UsageError(
            "These options make a recipe, but this command line already names a recipe.",
            where="--type, --depth, -L",
            fix="Name the target with -t, or write it in the recipe; of a run's folder they replace the arms.",
        )
    if target is not None:
        options = recipe_from_options(
            target=target,
            draft=draft,
            engine=kind,
            types=types or [],
            sweeps=sweeps,
            prompts=prompts,
            limit=limit,
            folder=Path.cwd(),
            settings=overrides,
        )
        return standing_of_data(options, trust=trust)
    file = find_recipe(recipe or "")
    beside = file.parent / MANIFEST
    base = standing_of(open_run(file.parent)).folder if beside.is_file() else file.parent
    overrides |= prompt_settings(prompts, limit)
    loaded = load_recipe(file, overrides=overrides)
    return Standing(loaded, base, settle(loaded, base, file, typed=overrides, trusted=trust))


def standing_of_data(data: Mapping[str, Any], *, trust: bool = False) -> Standing:
    """Return a recipe that was typed by who runs it: what every key of it opens was asked for. Raises UsageError."""
    made = recipe_of_options(dict(data))
    return Standing(made, Path.cwd(), settle(made, Path.cwd(), typed=ALL_KEYS, trusted=trust))


def _earlier(name: str, out: Path) -> RunData | None:
    """Return the run whose recipe is to be run again: by its folder, or by its id; `None` for a recipe."""
    path = Path(name).expanduser()
    if (path / MANIFEST).is_file():
        return open_run(path, as_stored=True)
    if path.exists() or name in shipped_recipes():
        return None
    by_id = [file for file in out.glob(f"*/*/{MANIFEST}") if file.parent.name == name]
    return open_run(by_id[0].parent, as_stored=True) if by_id else None
