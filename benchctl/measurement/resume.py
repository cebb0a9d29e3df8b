"""A run that was started before: its recipe, whether everything is as it was, and what it still lacks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from benchctl.data.digests import canonical_sha256
from benchctl.data.identity import workload_sha256
from benchctl.data.manifest import Manifest
from benchctl.data.store import MANIFEST, RunData, open_run
from benchctl.data.writer import RunWriter
from benchctl.errors import StorageError, UsageError
from benchctl.measurement.plan import make_plan, measured
from benchctl.measurement.prepare import Prepared, RecipeContext, Recorded
from benchctl.measurement.progress import RunProgress
from benchctl.measurement.run import execute, signals_interrupt
from benchctl.measurement.runner import Nodes, Search
from benchctl.models.files import Notice
from benchctl.permissions import is_own_run
from benchctl.recipes.load import stored_recipe
from benchctl.recipes.schema import Recipe


def recipe_of(run: RunData) -> Recipe:
    """Return the recipe that a run was started with, arms and overrides as they were."""
    if run.manifest is None:
        raise UsageError("Only a run of benchctl can be resumed.", where=str(run.folder))
    try:
        return stored_recipe(run.manifest.recipe)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in ("recipe", *first["loc"]))
        raise StorageError(
            f"The run's recipe cannot be read: {key}: {first['msg']}.",
            where=str(run.folder / MANIFEST),
            fix="Another version of benchctl wrote it: use that one, or start a new run.",
        ) from None


def context_of_run(run: RunData, *, trusted: bool = False) -> RecipeContext:
    """Return a run's recipe and whether it is trusted: by the command line (`trusted`), or as a run of this machine.

    Any other run is a stranger's: its recipe lies in the run's own folder, whatever its manifest says. Raises
    UsageError, StorageError.
    """
    recipe, manifest = recipe_of(run), run.manifest
    assert manifest is not None
    trusted = trusted or is_own_run(manifest.run, manifest.recipe, manifest.recipe_folder)
    return RecipeContext(recipe, Path(manifest.recipe_folder or ".").expanduser() if trusted else run.folder, trusted)


def prepare_again(
    run: RunData,
    *,
    binary: str | None = None,
    models_dir: Path | None = None,
    notice: Notice | None = None,
    trusted: bool = False,
) -> Prepared:
    """Prepare a run's recipe as it was; its engines are compared with those that ran before they are run again.

    Raises as `prepare` does, and UsageError where the manifest's recipe is not what was started.
    """
    manifest = run.manifest
    context = context_of_run(run, trusted=trusted)
    assert manifest is not None
    recipe_must_be_unchanged(manifest, run.folder)
    return context.prepare(binary, models_dir, notice, recorded=recorded_engines(manifest))


def recorded_engines(manifest: Manifest) -> Recorded:
    """Return what a run recorded of its engines, by setup."""
    details: dict[str | None, Mapping[str, object]] = {setup.name: setup.engine.details for setup in manifest.setups}
    return details or {None: manifest.engine.details}


def recipe_must_be_unchanged(manifest: Manifest, folder: Path) -> None:
    """Raise UsageError where the stored recipe is not what a run was started with."""
    if canonical_sha256(manifest.recipe) != manifest.recipe_sha256:
        raise UsageError(
            "The recipe in this run's manifest was changed since the run was started (its hash differs).",
            where=str(folder / MANIFEST),
            fix="Restore the manifest, or start a new run with the recipe that you want.",
        )


def must_be_unchanged(prepared: Prepared, manifest: Manifest, folder: Path) -> None:
    """A run is a single experiment: what is measured later must be the same thing."""
    pairs = [setup.models for setup in prepared.setups.values()]
    workload = workload_sha256(prepared.recipe, manifest.prompts, *pairs)
    suite = prepared.suite.sha256 == manifest.suite.get("sha256")
    recorded = recorded_engines(manifest)
    engine = all(
        setup.capabilities.details.get(part) == recorded.get(name, {}).get(part)
        for name, setup in prepared.setups.items()
        for part in ("sha256", "siblings")
    )
    changed = [
        changed_part
        for changed_part, same in (
            ("the models or the sampling", workload == manifest.workload_sha256),
            ("the prompts", suite),
            ("the engine's binary or its libraries", engine),
        )
        if not same
    ]
    if changed:
        raise UsageError(
            f"Since this run was started, {' and '.join(changed)} changed.",
            where=str(folder),
            fix="Restore what it was started with, or start a new run.",
        )


def resume_run(
    prepared: Prepared,
    run: RunData,
    progress: RunProgress,
    *,
    stop_at_failure: bool = False,
    on: Nodes | None = None,
    search: Search | None = None,
) -> Path:
    """Measure what a run lacks, and nothing twice. Raises UsageError when engine, models or prompts have changed.

    On a cluster a group of which something is left is measured anew, whole, since it belongs on a single machine.
    `search`: what goes on choosing the cells where the run is one of `tune`.
    """
    manifest = run.manifest
    if manifest is None:
        raise UsageError("Only a run of benchctl can be resumed.", where=str(run.folder))
    if run.integrity.damage:
        fix = "Restore it from a copy, or start a new run without --resume."
        raise StorageError(run.integrity.damage[0], where=str(run.folder), fix=fix)
    recipe_must_be_unchanged(manifest, run.folder)
    must_be_unchanged(prepared, manifest, run.folder)
    _must_resume_where_begun(manifest, on, run.folder)
    manifest.status = "started"  # before the first record: more may follow than the manifest knows
    with signals_interrupt(), RunWriter(run.folder, manifest) as writer:
        earlier = open_run(run.folder, as_stored=True)  # as it is now that nobody else writes
        if on is not None:
            done = measured(earlier, len(prepared.prompts))
            blocks = range(max(prepared.recipe.first_blocks, manifest.blocks))
            remaining = make_plan(prepared.recipe, prepared.prompts, done, blocks, ended=manifest.ended())
            on.discard_unfinished(writer, prepared.recipe, remaining)
            earlier = open_run(run.folder, as_stored=True)
        done = measured(earlier, len(prepared.prompts))
        progress.note(f"Run folder: {run.folder} ({len(done)} measurements are there already)")
        execute(prepared, writer, earlier, progress, stop_at_failure=stop_at_failure, on=on, search=search)
    return run.folder


def _must_resume_where_begun(manifest: Manifest, on: Nodes | None, folder: Path) -> None:
    """A run that began on a cluster is resumed there, and a run that began here is resumed here."""
    if manifest.cells and (on is None) != (not manifest.machines):
        begun, fix = (
            ("a cluster", "Add --on and the cluster.") if manifest.machines else ("this machine", "Leave out --on.")
        )
        raise UsageError(f"This run was begun on {begun}.", where=str(folder), fix=fix)
