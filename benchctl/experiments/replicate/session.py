"""Another's run and the same work here: found or measured, verified, and held against each other's claims."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from huggingface_hub.constants import HF_HUB_CACHE
from rich.console import Console

from benchctl.analysis.comparison.compare import compare_runs
from benchctl.analysis.comparison.replication import Replication, replication_of, replication_of_imported
from benchctl.analysis.comparison.workload import OtherModelsError, require_same_workload
from benchctl.cli.options import Here
from benchctl.data.manifest import ModelIdentity
from benchctl.data.store import RunData, open_run, resolve_run
from benchctl.errors import UsageError
from benchctl.lossless.analysed import analyse_run, judge
from benchctl.lossless.session import Request, explain
from benchctl.measure.plan import keep_only, with_second_baseline
from benchctl.measure.prepare import new_manifest
from benchctl.measure.progress import progress_for
from benchctl.measure.requested import Standing, recipe_must_be_unchanged, requested_recipe, standing_of
from benchctl.measure.run import signals_interrupt, start_run
from benchctl.models.files import file_sha256
from benchctl.paths import cache_folder
from benchctl.permissions import settle
from benchctl.recipes.from_options import with_settings
from benchctl.recipes.load import shipped_recipes


def replication(
    theirs: str,
    measured_by: str | None,
    results: Path,
    arms: Sequence[str],
    sources: Mapping[str, str],
    here: Here,
    *,
    quiet: bool,
) -> Replication:
    """Compare a run with the same work here.

    `measured_by`: a run that was made here already, or a recipe; `None`: the recipe of their run is measured.
    `sources`: of `target` and `draft`, as far as they were named. Raises UsageError where it is other work than theirs,
    EngineError, StorageError.
    """
    run = open_run(resolve_run(theirs, results))
    if measured_by is None:
        own = _measured(run, _their_recipe(run, sources, here), results, arms, here, quiet=quiet)
    elif Path(measured_by).suffix in (".yaml", ".yml") or measured_by in shipped_recipes():
        settings = [f"models.{role}.source={source}" for role, source in sources.items()]
        standing = requested_recipe(measured_by, results, settings=settings, trust=here.trust_recipe)
        own = _measured(run, standing, results, arms, here, quiet=quiet)
    else:
        own = open_run(resolve_run(measured_by, results))
    if run.manifest is None:
        return replication_of_imported(run.records, analyse_run(own), str(run.folder), str(own.folder))
    return replication_of(compare_runs(run, own, judge=judge, arms=arms or None))


def _their_recipe(run: RunData, sources: Mapping[str, str], here: Here) -> Standing:
    """Return the recipe of a run with the models as they lie here. Raises UsageError where it was changed."""
    manifest = run.manifest
    if manifest is None:
        raise UsageError(
            "These records have no recipe, so what they measured is not known.",
            where=str(run.folder),
            fix=f"Write a recipe of the same work and name it: benchctl compare --replicate {run.folder} RECIPE",
        )
    recipe_must_be_unchanged(manifest, run.folder)
    standing = standing_of(run, trusted=here.trust_recipe)
    settings: dict[str, Any] = {}
    for role, model in (("target", manifest.target), ("draft", manifest.draft)):
        if model is not None and not manifest.setups and (source := sources.get(role) or _by_hash(model, here)):
            settings[f"models.{role}"] = {"source": str(Path(source).absolute()), "quantize": None}
    binary = standing.recipe.binary
    if binary is not None and "/" in binary and not Path(binary).expanduser().is_file():
        settings["engine.binary"] = None  # theirs lies elsewhere here
    recipe = with_settings(standing.recipe, settings)
    if settings:
        settle(recipe, standing.folder, typed=[key for key in settings if key != "engine.binary"])
    return replace(standing, recipe=recipe)


def _by_hash(model: ModelIdentity, here: Here) -> Path | None:
    """Return a model's GGUF file in the usual folders, by size and SHA-256; `None`: not there, or several files."""
    if len(model.files) != 1:
        return None
    (wanted,) = model.files
    below = [folder.expanduser() for folder in (here.models_dir, Path(HF_HUB_CACHE), cache_folder()) if folder]
    inside = (Path.cwd(), Path.cwd() / "models", Path.home() / "models")
    places = [*((folder, "**/*.gguf") for folder in below), *((folder, "*.gguf") for folder in inside)]
    for path in (path for folder, pattern in places for path in sorted(folder.glob(pattern))):
        with suppress(OSError):
            if path.stat().st_size == wanted.size and file_sha256(path) == wanted.sha256:
                return path
    return None


def _measured(
    run: RunData, standing: Standing, results: Path, arms: Sequence[str], here: Here, *, quiet: bool
) -> RunData:
    """Measure a recipe, verify its output, and return the run. Raises UsageError where it is other work than theirs."""
    progress = progress_for(Console(stderr=True), quiet=quiet)
    recipe = with_second_baseline(keep_only(standing.recipe, arms) if arms else standing.recipe)
    with signals_interrupt():
        try:
            progress.waiting("checking the engine, the models and the prompts")
            prepared = standing.prepare(here.engine_binary, here.models_dir, progress.note, recipe)
        except UsageError as error:
            if (error.where or "").startswith("models."):
                error.fix = f"{error.fix or ''} Or name the files: --target FILE --draft FILE".strip()
            raise
        finally:
            progress.end()
    if run.manifest is not None:
        planned = replace(run, manifest=new_manifest(prepared, []), folder=Path("here"))
        try:
            require_same_workload(run, planned)
        except OtherModelsError as error:
            error.fix = "Name their files: --target FILE --draft FILE"
            raise
    own = open_run(start_run(prepared, results, progress, ["benchctl", *sys.argv[1:]]))
    binary, models_dir = here.engine_binary, here.models_dir
    explain(own, Request(binary=binary, models_dir=models_dir, trusted=standing.trusted, quiet=quiet))
    return open_run(own.folder)
