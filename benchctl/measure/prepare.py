"""Everything that is settled before the first engine starts, so that what cannot work is refused while it is cheap."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchctl import __version__
from benchctl.data.identity import canonical_sha256, home_relative, model_identity, new_run_id, workload_sha256
from benchctl.data.manifest import ArmIdentity, EngineIdentity, Manifest, PromptIdentity
from benchctl.engines.base import Capabilities, Engine, Launch
from benchctl.engines.common.programs import program
from benchctl.engines.registry import make_engine
from benchctl.machine.describe import describe_machine
from benchctl.machine.doctor import check_machine
from benchctl.measure.memory import check_memory, tight_slots
from benchctl.measure.plan import idle_slots
from benchctl.measure.recording import now
from benchctl.models.resolved import ResolvedPair
from benchctl.models.sources import resolve_pair
from benchctl.prompts.load import Suite, load_suite, prompt_sha256
from benchctl.prompts.suite import PromptItem
from benchctl.recipes.adapters import lossy_settings
from benchctl.recipes.schema import Arm, AutoBlocks, Recipe
from benchctl.recipes.trust import find_openings, refuse
from benchctl.text import one_line

Notice = Callable[[str], None]


@dataclass(frozen=True)
class Prepared:
    """A recipe that this machine can run."""

    recipe: Recipe
    recipe_folder: Path
    engine: Engine
    capabilities: Capabilities
    models: ResolvedPair
    suite: Suite
    prompts: tuple[PromptItem, ...]
    launches: dict[str, Launch]
    warnings: list[str]


def prepare(
    recipe: Recipe,
    *,
    recipe_folder: Path,
    binary: str | None = None,
    models_dir: Path | None = None,
    notice: Notice | None = None,
    trusted: bool = False,
) -> Prepared:
    """Find the engine, the models and the prompts, and check that they fit together.

    `trusted`: the recipe may open the machine (`benchctl.recipes.trust`).

    Raises UsageError for what the recipe asks and this binary or these files cannot give, EngineError when there is no
    engine.
    """
    engine, capabilities, openings = probed_engine(recipe, recipe_folder, binary, notice, trusted=trusted)
    suite = load_suite(recipe.prompts.suite, recipe_folder=recipe_folder)
    prompts = suite.select(recipe.prompts.tasks, recipe.prompts.limit)
    models = resolve_pair(
        recipe.models,
        recipe_folder=recipe_folder,
        models_dir=models_dir,
        on_progress=notice,
        find_tool=lambda name: program(engine.tool(name)),
        form=engine.model_format,
    )
    warnings = [*openings, *engine.check(recipe, models)]
    if recipe.schedule == "interleaved":
        check_memory(recipe, models, seen_devices(capabilities))
    warnings += idle_slots(recipe, len(prompts))
    if engine.model_format == "gguf":
        warnings += tight_slots(recipe, models, seen_devices(capabilities))
    launches = {arm.name: engine.launch(arm, models) for arm in recipe.arms}
    warnings += _lossy_arms(recipe, launches)
    return Prepared(
        recipe=recipe,
        recipe_folder=recipe_folder,
        engine=engine,
        capabilities=capabilities,
        models=models,
        suite=suite,
        prompts=prompts,
        launches=launches,
        warnings=warnings,
    )


def files_of(prepared: Prepared) -> list[Path]:
    """Return the files that must stay as they are while a run measures: the engine's binary and the models'."""
    models = [model for model in (prepared.models.target, prepared.models.draft) if model is not None]
    binary = prepared.capabilities.binary
    return [*([] if binary is None else [binary]), *(file.path for model in models for file in model.files)]


def probed_engine(
    recipe: Recipe, folder: Path, binary: str | None, notice: Notice | None, *, trusted: bool
) -> tuple[Engine, Capabilities, list[str]]:
    """Return the recipe's engine, what its binary can do, and sentences about options that do more than measure.

    Raises UsageError for a recipe that opens the machine and is not `trusted`, before anything that it names is run.
    """
    refuse(find_openings(recipe, folder), trusted=trusted)
    engine = make_engine(recipe.engine, binary=binary)
    if recipe.binary is not None and notice is not None:
        path = shutil.which(Path(recipe.binary).expanduser()) or recipe.binary
        notice(f"The recipe names the program that is run: {one_line(str(path))}")
    capabilities = engine.probe()
    return engine, capabilities, refuse(find_openings(recipe, folder, capabilities.option_names), trusted=trusted)


def seen_devices(capabilities: Capabilities) -> list[str]:
    """Return the names of the devices that the engine's binary sees; none where it does not tell."""
    devices = capabilities.details.get("devices")
    return [str(name) for name in devices] if isinstance(devices, list) else []


def _lossy_arms(recipe: Recipe, launches: Mapping[str, Launch]) -> Iterator[str]:
    """Yield a warning for every arm that does not even try to answer as the target alone would."""
    for arm in recipe.arms:
        found = _lossy(recipe, arm, launches[arm.name])
        if found:
            yield f"Arm {arm.name} is lossy by design ({', '.join(found)}): its text is not the target's."


def _lossy(recipe: Recipe, arm: Arm, launch: Launch) -> list[str]:
    """Return the settings of an arm that are lossy by design; nothing is accepted where nothing is drafted."""
    named = {name: launch.env[name] for name in launch.set_by_us}
    return lossy_settings(recipe.engine.kind, launch.argv, named) if arm.speculation else []


def new_manifest(prepared: Prepared, command: list[str]) -> Manifest:
    """Describe a run that is about to start."""
    recipe = prepared.recipe
    written = recipe.model_dump(mode="json")
    for model in filter(None, written["models"].values()):
        model["source"] = home_relative(model["source"])
    prompts = [
        PromptIdentity(task=item.task, prompt_idx=item.prompt_idx, sha256=prompt_sha256(item.prompt))
        for item in prepared.prompts
    ]
    draft = prepared.models.draft
    return Manifest(
        run=new_run_id(),
        benchctl_version=__version__,
        status="started",
        created_at=now(),
        recipe_name=recipe.name,
        recipe=written,
        recipe_folder=home_relative(prepared.recipe_folder.absolute()),
        recipe_sha256=canonical_sha256(written),
        workload_sha256=workload_sha256(recipe, prompts, prepared.models),
        baseline=recipe.baseline,
        blocks=0 if isinstance(recipe.blocks, AutoBlocks) else recipe.blocks,
        engine=_engine_identity(prepared.capabilities),
        target=model_identity(prepared.models.target),
        draft=None if draft is None else model_identity(draft),
        arms=[_arm_identity(prepared, name) for name in prepared.launches],
        suite=_suite_identity(prepared.suite),
        prompts=prompts,
        machine=describe_machine(),
        command=[home_relative(word) for word in command],
        warnings=[
            *prepared.warnings,
            *(f"{check.seen} {check.why}" for check in check_machine() if check.state in {"warn", "fail"}),
        ],
    )


def _engine_identity(found: Capabilities) -> EngineIdentity:
    return EngineIdentity(
        kind=found.kind,
        binary=None if found.binary is None else home_relative(found.binary),
        found_in=found.found_in,
        version=found.version,
        build=found.build,
        commit=found.commit,
        speculation_types=list(found.speculation_types),
        details=dict(found.details),
    )


def _arm_identity(prepared: Prepared, name: str) -> ArmIdentity:
    arm, launch = prepared.recipe.arm(name), prepared.launches[name]
    return ArmIdentity(
        name=name,
        baseline=name == prepared.recipe.baseline,
        speculation=None if arm.speculation is None else arm.speculation.model_dump(mode="json", exclude_none=True),
        argv=[home_relative(word) for word in launch.argv],
        env=[f"{key}={home_relative(launch.env[key])}" for key in sorted(launch.set_by_us)],
        url=launch.url,
        of=arm.of,
        concurrency=arm.concurrency,
        rate=arm.rate,
        temperature=arm.temperature,
        lossy=_lossy(prepared.recipe, arm, launch),
    )


def _suite_identity(suite: Suite) -> dict[str, Any]:
    return {"name": suite.name, "kind": suite.kind, "licence": suite.licence, "sha256": suite.sha256}
