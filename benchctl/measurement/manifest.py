"""The manifest of a run that is about to start: what was prepared, as it is stored."""

from __future__ import annotations

from typing import Any

from benchctl import __version__
from benchctl.data.digests import canonical_sha256
from benchctl.data.identity import home_relative, model_identity, new_run_id, workload_sha256
from benchctl.data.manifest import ArmIdentity, EngineIdentity, Manifest, PromptIdentity, SetupIdentity
from benchctl.engines.base import Capabilities
from benchctl.machine.describe import describe_machine
from benchctl.machine.doctor import check_machine
from benchctl.measurement.memory import engine_bytes
from benchctl.measurement.prepare import Prepared, PreparedSetup, lossy_of
from benchctl.measurement.recording import now
from benchctl.prompts.load import prompt_sha256
from benchctl.recipes.adapters import remembers
from benchctl.recipes.groups import ComparedArm
from benchctl.recipes.schema import Arm, AutoBlocks


def new_manifest(prepared: Prepared, command: list[str]) -> Manifest:
    """Describe a run that is about to start."""
    recipe = prepared.recipe
    stored = recipe.model_dump(mode="json")
    for pair in (stored["models"], *(setup["models"] for setup in stored["setups"])):
        for model in filter(None, pair.values()):
            model["source"] = home_relative(model["source"])
    prompts = [
        PromptIdentity(
            task=item.task,
            prompt_idx=item.prompt_idx,
            sha256=prompt_sha256(item.prompt),
            constrained=item.constrained,
            answer=item.prompt.answer,
            rules=item.prompt.rules,
        )
        for item in prepared.prompts
    ]
    pairs = [setup.models for setup in prepared.setups.values()]
    arms, compared = {arm.name: arm for arm in recipe.arms}, recipe.compared
    return Manifest(
        run=new_run_id(),
        benchctl_version=__version__,
        status="started",
        created_at=now(),
        recipe_name=recipe.name,
        recipe=stored,
        recipe_folder=home_relative(prepared.recipe_folder.absolute()),
        recipe_sha256=canonical_sha256(stored),
        workload_sha256=workload_sha256(recipe, prompts, *pairs),
        baseline=recipe.baseline,
        blocks=0 if isinstance(recipe.blocks, AutoBlocks) else recipe.blocks,
        **_identities(next(iter(prepared.setups.values()))),
        arms=[_arm_identity(prepared, arms[name], compared[name]) for name in prepared.launches],
        setups=[
            SetupIdentity(
                name=setup.name, group=setup.group, axes=setup.axes, **_identities(prepared.setups[setup.name])
            )
            for setup in prepared.recipe.setups
            if setup.name in prepared.setups  # of others no arm is measured
        ],
        suite={name: getattr(prepared.suite, name) for name in ("name", "kind", "licence", "sha256")},
        prompts=prompts,
        machine=describe_machine(),
        command=[home_relative(word) for word in command],
        warnings=[
            *prepared.warnings,
            *(f"{check.seen} {check.why}" for check in check_machine() if check.state in {"warn", "fail"}),
        ],
    )


def setup_engines(prepared: Prepared) -> dict[str | None, EngineIdentity]:
    """Return the engine of every setup, as probing found it."""
    return {name: _engine_identity(setup.capabilities) for name, setup in prepared.setups.items()}


def _identities(setup: PreparedSetup) -> dict[str, Any]:
    """Return engine, target and draft as a manifest has them."""
    draft = setup.models.draft
    return {
        "engine": _engine_identity(setup.capabilities),
        "target": model_identity(setup.models.target),
        "draft": None if draft is None else model_identity(draft),
    }


def _engine_identity(capabilities: Capabilities) -> EngineIdentity:
    binary = None if capabilities.binary is None else home_relative(capabilities.binary)
    return EngineIdentity.model_validate(vars(capabilities) | {"binary": binary, "details": dict(capabilities.details)})


_OF_AN_ARM = {"name", "setup", "group", "of", "again", "concurrency", "rate", "temperature"}
_OF_AN_ARM |= {"context_length", "max_tokens"}
"""Keys of a recipe's arm that a manifest's has, too."""


def _arm_identity(prepared: Prepared, arm: Arm, compared: ComparedArm) -> ArmIdentity:
    launch = prepared.launches[arm.name]
    return ArmIdentity(
        **arm.model_dump(include=_OF_AN_ARM),
        baseline=compared.is_baseline if arm.setup else arm.name == prepared.recipe.baseline,
        memory_bytes=_memory(prepared.setups[arm.setup], arm),
        speculation=None if arm.speculation is None else arm.speculation.model_dump(mode="json", exclude_none=True),
        argv=[home_relative(word) for word in launch.argv],
        env=[f"{key}={home_relative(launch.env[key])}" for key in sorted(launch.set_by_us)],
        url=launch.url,
        lossy=lossy_of(prepared.setups[arm.setup].recipe, arm, launch),
        remembers=arm.speculation is not None
        and remembers(prepared.setups[arm.setup].recipe.engine.kind, arm.speculation.types),
    )


def _memory(setup: PreparedSetup, arm: Arm) -> int | None:
    """Return about what an arm's engine takes; `None` for models that are no GGUF files."""
    if setup.engine.model_format != "gguf" or not setup.models.target.files:
        return None
    return engine_bytes(arm, setup.models, setup.recipe.engine.context)
