"""A tuning: the settings to try, the search in one run folder, and the measurement of its choice in another.

The second run is an ordinary run of an ordinary recipe with the baseline and the chosen arm. None of its blocks took
part in choosing, so its interval is not biased. It decides whether speculation pays at all.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchctl.analysis.verify_widths import edges
from benchctl.data.listing import list_runs
from benchctl.data.manifest import Tuning
from benchctl.data.store import RunData, open_run, resolve_run
from benchctl.engines.base import TunableEngine
from benchctl.errors import BenchctlError, UsageError
from benchctl.experiments.tune.halving import (
    KEPT_BACK,
    LEAST_BLOCKS,
    Halving,
    drafts,
    fit,
    fresh_design,
    guesses,
    measured_costs,
)
from benchctl.measurement.budget import time_baseline
from benchctl.measurement.prepare import Prepared, PreparedSetup, RecipeContext, lossy_of, with_arms
from benchctl.measurement.progress import RunProgress
from benchctl.measurement.resume import context_of_run, recipe_of, resume_run
from benchctl.measurement.run import start_run
from benchctl.measurement.widths import measure_at_kernels
from benchctl.recipes.schema import MAX_NAME, Arm, Recipe
from benchctl.recipes.speculation import NEEDS_DRAFT_MODEL, Speculation
from benchctl.text import one_line, spoken

WIDTHS_SHARE = 0.05
"""Most of the budget that timing a verify by its width may take."""
SEARCH, CHOSEN = "-search", "-tuned"
"""Suffixes of the two recipe names: of the search, and of the run that measures its choice."""
SHORT_KEYS = {"max": "d", "min": "min", "p_min": "p", "size_n": "n", "size_m": "m", "min_hits": "hits"}
"""Short forms of a speculation's keys in arm names."""


Prepare = Callable[[RecipeContext], Prepared]
"""`RecipeContext.prepare` with the command line's options filled in."""
PrepareAgain = Callable[[RunData], Prepared]
"""`benchctl.measurement.resume.prepare_again` with the command line's options filled in."""


def all_candidates(prepared: Prepared, *, only_arms: bool) -> Prepared:
    """Return the recipe with the arms to be searched.

    They are the recipe's arms, then the engine's suggested settings (not with `only_arms`). Arms that are lossy by
    design are left out, and of several drafts those arms whose type the draft is not made for. Raises UsageError where
    nothing is left to search, and for recipes of several conditions.
    """
    recipe = prepared.recipe
    conditions = {(arm.concurrency, arm.rate) for arm in recipe.arms}
    if len(set(map(recipe.group_of, recipe.arms))) > 1 or len(conditions) > 1 or any(rate for _, rate in conditions):
        raise UsageError(
            "A search measures under one condition, in a closed loop. It may vary the draft, but no other axis.",
            where=recipe.name,
            fix="Leave out rate, lists of concurrencies, temperatures and lengths, and what changes the target; "
            "--concurrency N searches for the fastest setting with N requests in flight.",
        )
    arms = list(recipe.arms)
    if len(prepared.setups) > 1:
        arms = [arm for arm in arms if _fits(arm, prepared.setups[arm.setup])]
    for setup, prepared_setup in (prepared.setups if not only_arms else {}).items():
        if not isinstance(prepared_setup.engine, TunableEngine):
            raise UsageError(
                f"For the engine {recipe.engine.kind} there is no list of settings to try.",
                fix="Write the arms in a recipe and give --only-arms.",
            )
        arms += _new_arms(prepared_setup.engine.search_space(prepared_setup.models), arms, setup)
    left_out = [arm.name for arm in recipe.arms if arm not in arms]
    if left_out:
        unfit = f"Left out, since the draft is made for another type: {', '.join(map(one_line, left_out))}."
        prepared = replace(prepared, warnings=[*prepared.warnings, unfit])
    result = with_arms(prepared, arms)
    lossless = [arm for arm in arms if not lossy_of(result.setups[arm.setup].recipe, arm, result.launches[arm.name])]
    if len(lossless) < 2:
        raise UsageError(
            "There is nothing to search: no arm but the baseline.",
            where=recipe.name,
            fix="Name settings: --type, --depth, or arms of a recipe.",
        )
    return result if len(lossless) == len(arms) else with_arms(prepared, lossless)


def _fits(arm: Arm, setup: PreparedSetup) -> bool:
    """Return whether an arm's type can draft with its setup's draft, of several: a head is made for a single type."""
    if arm.speculation is None or not isinstance(setup.engine, TunableEngine):
        return True
    suggested = {name for setting in setup.engine.search_space(setup.models) for name in setting.types}
    made_for = NEEDS_DRAFT_MODEL & suggested
    return not made_for or made_for >= NEEDS_DRAFT_MODEL & {*arm.speculation.types}


def search(
    prepared: Prepared, out: Path, budget_s: float, progress: RunProgress, command: list[str], *, only_arms: bool
) -> RunData:
    """Search for the fastest arm of `prepared` within the search's share of the budget, in a new run folder.

    Without `only_arms` the depths that follow from the widths are tried, too. Raises UsageError for a budget in which
    no arm can be measured, before anything is measured.
    """
    began = time.perf_counter()
    if not only_arms:
        prepared = _with_depths_by_width(prepared, WIDTHS_SHARE * budget_s, progress)
    recipe = prepared.recipe
    progress.note("Timing the baseline once, to size the blocks.")
    with tempfile.TemporaryDirectory(prefix="benchctl-") as scratch:
        baseline = time_baseline(prepared, Path(scratch) / "timing.log")
    costs = guesses(recipe, baseline)
    per_task = Counter(item.task for item in prepared.prompts)
    timing_s = time.perf_counter() - began
    fewest = _fewest_prompts(recipe, len(prepared.prompts))
    design = fit(recipe, costs, len(prepared.prompts), len(per_task), budget_s, timing_s, fewest)
    arms = [arm for arm in recipe.arms if arm.name in design.arms or arm.name == recipe.baseline]
    searched = with_arms(prepared, arms)
    plain = {"name": _named_run(recipe.name, SEARCH), "blocks": LEAST_BLOCKS, "schedule": "blocks"}
    searched = replace(searched, recipe=searched.recipe.model_copy(update=plain))
    if design.left_out:
        progress.note(
            f"The budget is too short for {len(design.left_out)} settings, the last ones of the list: "
            f"{', '.join(map(one_line, design.left_out))}."
        )
    progress.note(
        f"Searching {len(design.arms)} settings in {spoken(budget_s)}, blocks of {design.prompts_per_block} "
        f"{'prompt' if design.prompts_per_block == 1 else 'prompts'}; the chosen setting is then measured afresh."
    )
    tuning = Tuning(
        budget_s=budget_s,
        prompts_per_block=design.prompts_per_block,
        timing_s=timing_s,
        guessed={arm: (cost.overhead_s, cost.answer_s) for arm, cost in costs.items()},
        left_out=list(design.left_out),
    )
    return open_run(start_run(searched, out, progress, command, tuning=tuning, search=Halving))


def _fewest_prompts(recipe: Recipe, prompts: int) -> int:
    """Return how many prompts a block has at least: twice the requests in flight, so that they are in flight."""
    at_once = max(arm.concurrency for arm in recipe.arms)
    return 1 if at_once == 1 else min(prompts, 2 * at_once)


def _with_depths_by_width(prepared: Prepared, most_s: float, progress: RunProgress) -> Prepared:
    """Return the same with arms at the depths that the target's widths suggest; as it is where they cannot be timed."""
    if _fewest_prompts(prepared.recipe, 2) > 1:
        return prepared  # a verify of several requests' drafts has another width
    if len(prepared.setups) > 1 or not any(map(_with_depth, prepared.recipe.arms)):
        return prepared
    progress.note("Timing verify steps by their width, to find the draft depths that cost least.")
    try:
        widths = measure_at_kernels(prepared, lambda step, done, total: None, most_s)
        named = edges(widths.curve) if widths.steady else []
        arms = at_depths(prepared.recipe.arms, [edge.depth for edge in named])
        for sentence in widths.statements if named or not widths.steady else ():
            progress.note(sentence)
        return with_arms(prepared, arms) if len(arms) > len(prepared.recipe.arms) else prepared
    except BenchctlError as error:
        progress.note(f"Verify steps could not be timed by their width: {error.what}")
        return prepared


def at_depths(arms: Sequence[Arm], depths: Sequence[int]) -> list[Arm]:
    """Return the arms, and after the first of each type by which a model drafts, that type at the depths it lacks."""
    extended: list[Arm] = []
    for arm in arms:
        extended.append(arm)
        setting = arm.speculation
        alike = [other for other in map(_with_depth, arms) if other and setting and other.types == setting.types]
        if setting is None or not alike or alike[0] is not setting:
            continue
        missing = sorted({*depths} - {other.max for other in alike})
        deeper = [Speculation.model_validate({"type": setting.type, "max": depth}) for depth in missing]
        extended += _new_arms(deeper, [*arms, *extended], arm.setup)
    return extended


def _with_depth(arm: Arm) -> Speculation | None:
    """Return the setting of an arm for which a model drafts to a depth; else `None`."""
    setting = arm.speculation
    return setting if drafts(setting) and setting is not None and setting.max is not None else None


def resume_search(name: str, out: Path, prepare_again: PrepareAgain, progress: RunProgress) -> RunData:
    """Resume an interrupted search. `name`: the search, or the run that measured its choice. Raises UsageError."""
    run = open_run(resolve_run(name, out))
    if run.manifest is not None and run.manifest.tuned_in is not None:
        run = open_run(resolve_run(run.manifest.tuned_in, run.folder.parents[1]))
    if run.manifest is None or run.manifest.tuning is None:
        raise UsageError("This run is not a search.", where=str(run.folder), fix="Try: benchctl run --resume RUN")
    if run.manifest.tuning.ended:
        return run
    return open_run(resume_run(prepare_again(run), run, progress, search=Halving))


def measure_chosen(
    searched: RunData, prepare: Prepare, prepare_again: PrepareAgain, progress: RunProgress, command: list[str]
) -> RunData | None:
    """Measure what a search chose in a new run, or resume that run; `None` where the search chose nothing.

    It is written beside the search.
    """
    out = searched.folder.parents[1]
    begun = _fresh_run_of(searched, out)
    if begun is not None:
        if begun.manifest is not None and begun.manifest.status == "finished":
            return begun
        return open_run(resume_run(prepare_again(begun), begun, progress))
    recipe = _chosen_recipe(searched)
    if recipe is None:
        return None
    progress.note(f"Measuring {recipe.arms[-1].name} again on fresh data: {recipe.blocks} blocks.")
    prepared = prepare(replace(context_of_run(searched), recipe=recipe))
    return open_run(start_run(prepared, out, progress, command, tuned_in=searched))


def _chosen_recipe(searched: RunData) -> Recipe | None:
    """Return the recipe that measures afresh what was chosen, sized to what is left of the budget."""
    manifest = searched.manifest
    assert manifest is not None and manifest.tuning is not None
    tuning, recipe = manifest.tuning, recipe_of(searched)
    if tuning.chosen is None:
        return None
    costs = measured_costs(searched)
    per_task = Counter(prompt.task for prompt in manifest.prompts)
    blocks, limit = fresh_design(
        (1 - KEPT_BACK) * (tuning.budget_s - tuning.timing_s - manifest.spent_s),
        max(per_task.values()),
        len(per_task),
        costs[recipe.baseline],
        costs[tuning.chosen],
        len(manifest.prompts),
    )
    if limit is not None:
        limit = max(limit, -(-_fewest_prompts(recipe, len(manifest.prompts)) // len(per_task)))
    prompts = recipe.prompts if limit is None else recipe.prompts.model_copy(update={"limit": limit})
    chosen = recipe.arm(tuning.chosen)
    updates = {"setup": None, "group": None}
    arms = [arm.model_copy(update=updates) for arm in (recipe.arm(recipe.baseline), chosen)]
    pair = next((setup for setup in recipe.setups if setup.name == chosen.setup), recipe)
    return recipe.model_copy(
        update={
            "engine": pair.engine,
            "models": pair.models,
            "setups": [],
            "name": _named_run(recipe.name.removesuffix(SEARCH), CHOSEN),
            "description": f"What the search {searched.name} chose, against no speculation",
            "arms": arms,
            "blocks": blocks,
            "prompts": prompts,
        }
    )


def _fresh_run_of(searched: RunData, out: Path) -> RunData | None:
    """Return the run below `out` that measures afresh what was chosen, begun or done; else `None`."""
    assert searched.manifest is not None
    folder = out / _named_run(searched.manifest.recipe_name.removesuffix(SEARCH), CHOSEN)
    runs = list_runs(folder) if folder.is_dir() else []
    mine = [run for run in runs if run.manifest is not None and run.manifest.tuned_in == searched.name]
    return open_run(mine[0].folder) if mine else None


def _named_run(name: str, end: str) -> str:
    return name[: MAX_NAME - len(end)] + end


def _new_arms(settings: Sequence[Speculation], arms: Sequence[Arm], setup: str | None) -> Iterator[Arm]:
    """Yield an arm for every setting that no arm has yet.

    After the first setup, only settings that use its draft model.
    """
    first = arms[0].setup == setup
    existing = [(arm.setup if drafts(arm.speculation) else None, arm.speculation) for arm in arms]
    names = {arm.name for arm in arms}
    for setting in settings:
        if ((setup if drafts(setting) else None), setting) in existing or not (first or drafts(setting)):
            continue
        keys = setting.model_dump(exclude_none=True, exclude={"type", "options"})
        parts = [
            "+".join(setting.types).replace("-", "_"),
            *(f"{SHORT_KEYS[key]}{value:g}" for key, value in keys.items()),
        ]
        parts += [f"{key}{value}" for key, value in (setting.options or {}).items()]
        name = "_".join(parts)[:MAX_NAME] + (f"-{setup}" if setup and drafts(setting) else "")
        if name not in names:
            names.add(name)
            like = arms[0].model_dump(
                include={"concurrency", "rate", "context_length", "max_tokens", "temperature", "group"}
            )
            yield Arm.model_validate({**like, "name": name, "speculation": setting, "setup": setup})
