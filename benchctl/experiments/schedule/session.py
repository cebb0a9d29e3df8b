"""From a run over concurrency to the setting by load that its engine takes, and to the recipe that measures it.

The recipe has the baseline, the fixed depth that serves a mixed load best, and the schedule, each under every
concurrency of the run. What the schedule gains is decided by that run alone: it was chosen on the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from typing import Any

from benchctl.analysis.conditions.results import Level
from benchctl.analysis.conditions.schedule import LoadStep, MixedLoad, find_schedule, mixed_load
from benchctl.analysis.conditions.split import closed_levels
from benchctl.analysis.results import Analysis
from benchctl.data.store import RunData, open_run
from benchctl.engines.base import LoadSchedulingEngine
from benchctl.errors import UsageError
from benchctl.lossless.judge.run import analyse_run
from benchctl.measurement.prepare import Prepared, RecipeContext
from benchctl.measurement.progress import RunProgress
from benchctl.measurement.resume import recipe_of, resume_run
from benchctl.measurement.run import start_run
from benchctl.recipes.load import EXPANDED, recipe_of_options
from benchctl.recipes.schema import MAX_NAME, Recipe
from benchctl.recipes.speculation import Speculation
from benchctl.words.schedule import load_range

Prepare = Callable[[RecipeContext], Prepared]
PrepareAgain = Callable[[RunData], Prepared]
"""`benchctl.measurement.resume.prepare_again` with the command line's options filled in."""
ARM = "schedule"
"""The name of the arm that has it."""


@dataclass(frozen=True)
class Schedule:
    """The depth by load that a run shows, of the type of speculation that gains most."""

    steps: list[LoadStep]
    setting: Speculation | None
    """How that type drafts, without a depth; `None` where no arm helps at any concurrency."""
    fixed: str | None
    """Of its arms that which serves a mixed load best."""
    mixed: list[MixedLoad]
    """Every arm against no speculation."""

    def arm_at(self, requests: int) -> str | None:
        """Return the recipe's arm for so many requests in flight; `None`: no speculation."""
        return next((step.arm for step in self.steps if step.first <= requests <= step.last), None)


def levels_of(run: RunData, analysis: Analysis) -> list[Level]:
    """Return the levels of a run over concurrency. Raises UsageError for other runs."""
    levels = closed_levels(analysis)
    if len({row.concurrency for row in levels}) < 2:
        raise UsageError(
            "A schedule takes a run over several concurrencies.",
            where=run.name,
            fix="matrix: {concurrency: [1, 2, 4, 8]}, as recipes/concurrency.yaml has it",
        )
    if len({row.work for row in levels}) > 1:
        raise UsageError(
            "A schedule takes a run that varies nothing but the concurrency.",
            where=run.name,
            fix="Leave out temperatures, lengths and axes.",
        )
    return levels


def schedule_of(levels: list[Level], baseline: str, by_type: dict[str, dict[str, int]]) -> Schedule:
    """Return the schedule that levels show; `by_type`: `fixed_depths`, `baseline`: the recipe's arm."""
    schedules = {key: find_schedule(levels, depths) for key, depths in by_type.items()}
    best = max(schedules, key=lambda key: _gained(schedules[key]), default=None)
    mixed = [
        load for arm in dict.fromkeys(row.of for row in levels) if arm != baseline
        if (load := mixed_load(levels, arm, baseline)) is not None
    ]  # fmt: skip
    if best is None or not _gained(schedules[best]):
        return Schedule([_off(levels)], None, None, mixed)
    of_type = [load for load in mixed if load.arm in by_type[best]]
    fixed = max(of_type, key=lambda load: load.ratio, default=None)
    return Schedule(
        schedules[best], Speculation.model_validate_json(best), fixed.arm if fixed else next(iter(by_type[best])), mixed
    )


def fixed_depths(run: RunData, engine: object) -> dict[str, dict[str, int]]:
    """Return by a setting without its depth, as JSON, the depth of every arm that has it at every load."""
    by_type: dict[str, dict[str, int]] = {}
    for arm in run.manifest.arms if run.manifest else []:
        setting = Speculation.model_validate(arm.speculation) if arm.speculation else None
        if setting is None or setting.max is None:
            continue
        if not (isinstance(engine, LoadSchedulingEngine) and engine.has_schedule(setting)):
            if (arm.of or arm.name) == ARM:
                message = f"An arm of a fixed depth is named {ARM}, as the schedule will be."
                raise UsageError(message, where=run.name, fix="Run the recipe with another name for that arm.")
            key = setting.model_copy(update={"max": None}).model_dump_json(exclude_none=True)
            by_type.setdefault(key, {})[arm.of or arm.name] = setting.max
    return by_type


def _gained(steps: list[LoadStep]) -> float:
    return sum((step.last - step.first + 1) * log(step.gain) for step in steps if step.gain)


def _off(levels: list[Level]) -> LoadStep:
    return LoadStep(1, max(row.concurrency for row in levels), 0, None, None)


@dataclass(frozen=True)
class Written:
    """A schedule as its engine takes it."""

    schedule: Schedule
    setting: Speculation | None
    """`None` where the engine takes none, or no depth is shown to help: an operator changes the command by load."""
    ready: Prepared | None
    """The recipe that measures it; `None` where speculation is off at every load."""
    commands: dict[str, Sequence[str]]
    """The command that serves it; of an engine that takes none a command for each range of load."""


def write(run: RunData, analysis: Analysis, context: RecipeContext, prepare: Prepare) -> Written:
    """Return the schedule that a run over concurrency shows. Raises UsageError, also for other runs.

    `context`: the run's recipe. `prepare`: `RecipeContext.prepare` with the command line's options filled in.
    """
    levels = levels_of(run, analysis)
    prepared = prepare(context)
    engine = prepared.of_baseline.engine
    schedule = schedule_of(levels, analysis.baseline, fixed_depths(run, engine))
    setting = None
    if schedule.setting is not None and isinstance(engine, LoadSchedulingEngine):
        steps = [(step.first, step.last, step.depth) for step in schedule.steps]
        _, last, depth = steps[-1]
        beyond = [(last + 1, last + 1, 0)] if depth else []  # where nothing was measured
        setting = engine.with_schedule(schedule.setting, [*steps, *beyond])
    if setting is None:
        by_range = {load_range(step): _command(prepared, step.arm, step.last) for step in schedule.steps}
        of_arms = None if schedule.setting is None else prepare(recipe_with(context, schedule, None))
        return Written(schedule, None, of_arms, by_range)
    ready = prepare(recipe_with(context, schedule, setting))
    return Written(schedule, setting, ready, {ARM: _command(ready, ARM, schedule.steps[-1].last)})


def _command(prepared: Prepared, of: str | None, requests: int) -> Sequence[str]:
    """Return the command of the recipe's arm `of` (`None`: the baseline) for so many requests at least."""
    compared = prepared.recipe.compared
    name = compared[prepared.recipe.baseline].of if of is None else of
    fitting = [arm for arm in prepared.recipe.arms if compared[arm.name].of == name and arm.concurrency >= requests]
    return prepared.launches[min(fitting, key=lambda arm: arm.concurrency).name].argv


@contextmanager
def resumed_by(command: str) -> Iterator[None]:
    """Let Ctrl-C name `command` in place of `benchctl run --resume`.

    A run that is resumed alone does not tell which arm the schedule has at which load.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.args = (str(stop).replace("benchctl run --resume", command),)
        raise


def measure(written: Written, out: Path, progress: RunProgress, command: list[str]) -> RunData:
    """Measure a schedule beside no speculation and the best fixed depth. Raises as `start_run`, and UsageError."""
    if written.ready is None:
        raise UsageError("There is no schedule to measure: no depth is shown to help.", where="--measure")
    return open_run(start_run(written.ready, out, progress, command))


def resume(written: Written, begun: RunData, prepare_again: PrepareAgain, progress: RunProgress) -> RunData:
    """Measure what a run of `measure` lacks. Raises UsageError for another schedule, else as `resume_run`."""
    if written.ready is None or recipe_of(begun).arms != written.ready.recipe.arms:
        raise UsageError("This run does not measure the schedule that the first run shows.", where=str(begun.folder))
    if begun.manifest is not None and begun.manifest.status == "finished":
        return begun
    return open_run(resume_run(prepare_again(begun), begun, progress))


def compare(written: Written, run: RunData) -> tuple[Analysis, list[MixedLoad]]:
    """Return a schedule that was measured against no speculation and against the best fixed depth.

    Of an engine that takes no schedule the levels of the arms that it is made of are its levels.
    """
    analysis, schedule = analyse_run(run), written.schedule
    levels = closed_levels(analysis)
    if written.setting is None:
        parts = [row for row in levels if row.of == (schedule.arm_at(row.concurrency) or analysis.baseline)]
        levels += [row.model_copy(update={"of": ARM}) for row in parts]
    others = [analysis.baseline, *([schedule.fixed] if schedule.fixed else [])]
    return analysis, [load for other in others if (load := mixed_load(levels, ARM, other)) is not None]


def recipe_with(context: RecipeContext, schedule: Schedule, setting: Speculation | None) -> RecipeContext:
    """Return the run's recipe with the baseline, the best fixed depth and the schedule, under each concurrency.

    `setting`: the schedule as its engine takes it; `None`: the arms that it is made of, each at its loads.
    """
    recipe = context.recipe
    data: dict[str, Any] = {EXPANDED: True, **recipe.model_dump(mode="json")}
    data["arms"] = []
    for arm in recipe.arms:
        if recipe.compared[arm.name].is_baseline:
            suffix = arm.name.removeprefix(arm.of or arm.name)
            plain: Mapping[str, Any] = arm.model_dump(mode="json")
            data["arms"] += [plain]
            if setting is not None:
                new = {"name": f"{ARM}{suffix}", "of": ARM, "speculation": setting.model_dump(mode="json")}
                data["arms"] += [{**plain, **new}]
        elif arm.of == schedule.fixed or (setting is None and arm.of == schedule.arm_at(arm.concurrency)):
            data["arms"] += [arm.model_dump(mode="json")]
    data["name"] = f"{recipe.name[: MAX_NAME - len(ARM) - 1]}-{ARM}"
    made: Recipe = recipe_of_options(data)
    return replace(context, recipe=made)
