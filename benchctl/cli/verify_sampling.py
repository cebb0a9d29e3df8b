"""`benchctl verify-lossless --sampling`: does an arm sample from the target's distribution?"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from benchctl.data.store import RunData
    from benchctl.recipes.schema import Recipe


def verify_sampling(
    target: str | None,
    wanted: Mapping[str, Any],
    *,
    results: Path,
    baseline: str | None = None,
    arms: Sequence[str] = (),
    offline: bool = False,
    engine_binary: str | None = None,
    models_dir: Path | None = None,
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Check the arms of a recipe or a run, or (offline) judge the latest stored check of a run again.

    `target` as a user names it: a recipe's file, a run, a recipe's name, the folder of a check; `None` for the latest
    run. `wanted` holds the fields of `CheckPlan` that the user set. Exits with 0 when no arm shows a difference, with 1
    when one does, is lossy by design or undetermined; raises EngineError when an engine failed.
    """
    from benchctl.analysis.sampling.judge import judge_sampling
    from benchctl.data.sampling import open_check
    from benchctl.errors import EngineError, UsageError

    if not offline:
        folder = _draw(target, wanted, results, baseline, arms, engine_binary, models_dir, quiet=quiet or as_json)
    elif wanted or arms or baseline:
        raise UsageError("A stored check is judged as it was drawn.", where="--offline", fix="Leave the others out.")
    else:
        folder = _stored(target, results)
    found = judge_sampling(open_check(folder))
    if as_json:
        sys.stdout.write(json.dumps({"schema": 1, "folder": str(folder), **found.model_dump()}) + "\n")
    elif not quiet:
        from benchctl.cli.show_sampling import print_sampling

        print_sampling(found, folder)
    if found.failed_arms:
        arm, reason = next(iter(found.failed_arms.items()))
        raise EngineError(
            f"The engine of {arm} failed: {reason}", kind="crash", where=str(folder), fix="Read its log there."
        )
    if any(arm.verdict != "no difference found" for arm in found.arms):
        raise typer.Exit(1)


def _stored(target: str | None, results: Path) -> Path:
    from benchctl.data.sampling import CHECK, FOLDER, latest_check
    from benchctl.data.store import resolve_run

    for folder in (Path(target), results / target) if target is not None else ():
        if (folder / CHECK).is_file() or (folder / FOLDER).is_dir():
            return latest_check(folder)
    return latest_check(resolve_run(target, results))


def _draw(
    target: str | None,
    wanted: Mapping[str, Any],
    results: Path,
    baseline: str | None,
    arms: Sequence[str],
    engine_binary: str | None,
    models_dir: Path | None,
    *,
    quiet: bool,
) -> Path:
    """Run the engines and return the folder of the new check."""
    from rich.console import Console

    from benchctl.measure.prepare import prepare
    from benchctl.measure.progress import progress_for
    from benchctl.measure.run import signals_interrupt
    from benchctl.measure.sampling import CheckPlan, is_greedy, run_check, sampled_recipe

    plan = replace(CheckPlan(), **wanted)
    run, recipe, folder = _what(target, results)
    recipe = _with_baseline(recipe, baseline, arms)
    sampled = sampled_recipe(recipe, plan, arms)
    progress = progress_for(Console(stderr=True), quiet=quiet)
    if is_greedy(recipe.sampling):
        heat = sampled.sampling.temperature
        progress.note(f"The recipe is greedy; this check samples at temperature {heat:g} from the whole vocabulary.")
    with signals_interrupt():
        prepared = prepare(
            sampled, recipe_folder=folder, binary=engine_binary, models_dir=models_dir, notice=progress.note
        )
        parent = results / recipe.name if run is None else run.folder
        return run_check(prepared, plan, parent, progress, ["benchctl", *sys.argv[1:]])


def _what(target: str | None, results: Path) -> tuple[RunData | None, Recipe, Path]:
    """Tell a run from a recipe: a YAML file is a recipe, a name that has runs is its latest run."""
    from benchctl.data.store import open_run, resolve_run
    from benchctl.errors import UsageError
    from benchctl.measure.run import recipe_folder_of, recipe_of
    from benchctl.recipes.load import find_recipe, load_recipe

    if target is None or Path(target).suffix not in (".yaml", ".yml"):
        try:
            run = open_run(resolve_run(target, results))
        except UsageError:
            if target is None:
                raise
        else:
            return run, recipe_of(run), recipe_folder_of(run)
    file = find_recipe(target)
    return None, load_recipe(file), file.parent


def _with_baseline(recipe: Recipe, baseline: str | None, arms: Sequence[str]) -> Recipe:
    """Return the recipe with its baseline or the named one. Raises UsageError for arms that cannot be compared."""
    from benchctl.errors import UsageError

    names = [arm.name for arm in recipe.arms]
    chosen = baseline or recipe.baseline
    condition = recipe.arm(chosen).condition if chosen in names else None  # arms of another are not comparable
    others = [arm.name for arm in recipe.arms if arm.name != chosen and condition in (None, arm.condition)]
    for option, name, known in [("--baseline", chosen, names), *(("--arm", name, others) for name in arms)]:
        if name not in known:
            raise UsageError(f"There is no arm {name!r}.", where=option, fix=f"The arms are: {', '.join(known)}.")
    if not others:
        raise UsageError("There is only the baseline, so there is nothing to compare.", where=recipe.name)
    if recipe.arm(chosen).speculation is not None:
        raise UsageError(
            f"{chosen} speculates itself, so it does not show how the target samples.",
            where="baseline",
            fix="Choose an arm without speculation.",
        )
    return recipe.model_copy(update={"baseline": chosen})
