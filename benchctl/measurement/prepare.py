"""Everything that is settled before the first engine starts, so that what cannot work is refused while it is cheap."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name

from benchctl.engines.base import Capabilities, Engine, Launch
from benchctl.engines.common.programs import program
from benchctl.engines.registry import make_engine
from benchctl.errors import EngineError, UsageError
from benchctl.measurement.memory import check_memory, tight_slots
from benchctl.measurement.plan import ArmCost, idle_slots
from benchctl.models.files import Notice, ResolvedModel, ResolvedPair
from benchctl.models.quantize import Program
from benchctl.models.sources import ModelSearch
from benchctl.permissions import permit, permit_program, permit_tool
from benchctl.prompts.context import load_context
from benchctl.prompts.load import Suite, load_suite
from benchctl.prompts.suite import IMAGES, Prompt, PromptItem
from benchctl.recipes.adapters import adapter_of, lossy_settings, registered
from benchctl.recipes.problems import did_you_mean, quoted
from benchctl.recipes.schema import Arm, Recipe
from benchctl.recipes.speculation import SPECULATION_TYPES
from benchctl.recipes.trust import is_typed
from benchctl.text import one_line

Recorded = Mapping[str | None, Mapping[str, object]]


@dataclass(frozen=True)
class PreparedSetup:
    """An engine with a pair of models, as this machine has them."""

    recipe: Recipe
    """The recipe of this setup alone. Its arms include the baseline of its group."""
    engine: Engine
    capabilities: Capabilities
    models: ResolvedPair

    @property
    def pair(self) -> list[ResolvedModel]:
        """The target, and the draft where it has a draft."""
        return [model for model in (self.models.target, self.models.draft) if model is not None]


@dataclass(frozen=True)
class Prepared:
    """A recipe that this machine can run."""

    recipe: Recipe
    recipe_folder: Path
    suite: Suite
    prompts: tuple[PromptItem, ...]
    launches: dict[str, Launch]
    warnings: list[str]
    setups: dict[str | None, PreparedSetup]
    """The setups by name. A recipe without axes has one, under `None`."""
    pace: ArmCost | None = None
    """What a process of the baseline cost before the plan was made; `None`: not timed."""

    def setup_of(self, arm: str) -> PreparedSetup:
        """Return what an arm runs on; raises KeyError."""
        return self.setups[self.recipe.arm(arm).setup]

    @property
    def of_baseline(self) -> PreparedSetup:
        """What the recipe's baseline runs on."""
        return self.setup_of(self.recipe.baseline)

    @property
    def engines(self) -> dict[str, Engine]:
        """What starts each arm."""
        return {arm.name: self.setups[arm.setup].engine for arm in self.recipe.arms}


def prepare(
    recipe: Recipe,
    *,
    recipe_folder: Path,
    binary: str | None = None,
    models_dir: Path | None = None,
    notice: Notice | None = None,
    trusted: bool = False,
    typed: Collection[str] = (),
    suite: Suite | None = None,
    recorded: Recorded | None = None,
    quantizes: bool = True,
) -> Prepared:
    """Find the engine, the models and the prompts, and check that they fit together.

    `trusted`: the recipe gets whatever it asks for; otherwise its typed keys, and of the others those in `typed`, which
    stand on the command line. `recorded`: of an earlier run, by setup the engine's hashes, compared before it is run.
    `quantizes`: what the recipe has quantized is made now; else its source stands in for it, with a warning.
    `suite`: the prompts, where they were loaded elsewhere, as on a cluster, together with the text that pads them.

    Raises UsageError for what the recipe needs and this binary or these files cannot give, EngineError when there is no
    engine.
    """
    builds = list(dict.fromkeys(part.binary for part in recipe.parts.values() if part.binary))
    if binary is not None and len(builds) > 1:
        raise UsageError(
            f"It names a single build, and the recipe compares {len(builds)}.",
            where="--engine-binary",
            fix=f"Name them all: --set 'engine.binary=[{', '.join(builds)}]'",
        )
    for part in recipe.parts.values():  # before any file is read
        permit(part, recipe_folder, trusted=trusted, typed=typed)
    loaded = suite is not None
    suite = suite or load_suite(recipe.prompts.suite, recipe_folder=recipe_folder, skip_bad=recipe.prompts.skip_bad)
    prompts = suite.select(recipe.prompts.tasks, recipe.prompts.limit)
    if not loaded and any(arm.context_length for arm in recipe.arms):
        load_context(recipe.prompts.context, recipe_folder=recipe_folder)  # refused here, where it is cheap
    for name, part in recipe.parts.items():  # before an engine is sought, built or run
        with _in_setup(name):
            adapter = adapter_of(part.engine.kind)
            local = ModelSearch(recipe_folder, models_dir).check(part.models, adapter.model_format)
            problems = unfit_types(part, local["target"], local.get("draft")) if "target" in local else []
            if problems:
                raise UsageError("\n".join(problems))
    engines: dict[str, tuple[Engine, Capabilities]] = {}
    setups: dict[str | None, PreparedSetup] = {}
    warnings = [f"{one_line(Path(recipe.prompts.suite).name, 120)}: {note}" for note in suite.notes]
    for name, part in recipe.parts.items():
        spec = part.engine.model_dump_json()
        if spec not in engines:
            before = None if recorded is None else recorded.get(name, {})
            try:
                engines[spec] = probed_engine(
                    part, recipe_folder, binary, trusted=trusted, typed=typed, recorded=before
                )
            except (EngineError, UsageError):
                _check_types(part)  # a mistyped name is said before an engine is built
                raise
        engine, capabilities = engines[spec]
        if adapter_of(part.engine.kind).lists_types:  # before files are hashed
            _check_types(part, capabilities.speculation_types)
        prompts = _sendable(prompts, capabilities)
        with _in_setup(name):
            find_tool = partial(permitted_tool, engine, folder=recipe_folder, trusted=trusted)
            may_run_code = trusted or is_typed("models", typed)
            search = ModelSearch(recipe_folder, models_dir, notice, find_tool, quantizes, may_run_code)
            models = search.pair(part.models, engine.model_format)
            warnings += unmade_models(models)
            warnings += engine.check(part, models)
            if part.schedule == "interleaved":
                check_memory(part, models, device_names(capabilities))
        if engine.model_format == "gguf":
            warnings += tight_slots(part, models, device_names(capabilities))
        setups[name] = PreparedSetup(part, engine, capabilities, models)
    warnings += idle_slots(recipe, len(prompts))
    return _launchable(Prepared(recipe, recipe_folder, suite, prompts, {}, warnings, setups))


def unmade_models(models: ResolvedPair) -> Iterator[str]:
    """Yield what of a pair is not quantized yet."""
    for role, model in (("target", models.target), ("draft", models.draft)):
        if model is not None and model.unmade is not None:
            yield (
                f"models.{role} is not quantized yet: a run quantizes {one_line(model.path.name, 120)} to "
                f"{model.unmade} first. Command, memory and time are shown with the file that it is made of."
            )


def unfit_types(recipe: Recipe, target: Path, draft: Path | None) -> list[str]:
    """Return a sentence for each type that these files cannot have, as far as their headers tell."""
    find = adapter_of(recipe.engine.kind).pair
    return [] if find is None else list(resolve_name(find)(recipe, target, draft))


def _check_types(recipe: Recipe, listed: Sequence[str] = ()) -> None:
    """Refuse a type of speculation that looks like a mistyped one; `listed`: what the engine itself lists."""
    for kind in dict.fromkeys(kind for arm in recipe.arms if arm.speculation for kind in arm.speculation.types):
        if kind not in (*SPECULATION_TYPES, *listed) and (meant := did_you_mean(kind, SPECULATION_TYPES)):
            raise UsageError(f"There is no speculation type {quoted(kind)}.", fix=meant.strip())


def permitted_tool(engine: Engine, name: str, *, folder: Path, trusted: bool) -> Program:
    """Return a program that comes with the engine. Raises UsageError where only the engine itself is known."""
    file, engine_program = engine.tool(name), engine.locate()
    if engine_program is not None:
        permit_tool(file, engine_program.path, folder, trusted=trusted)
    return program(file)


@contextmanager
def _in_setup(name: str | None) -> Iterator[None]:
    """Add to an error in which setup of a recipe's axes it was found."""
    try:
        yield
    except UsageError as error:
        if name is None:
            raise
        where = ": ".join(filter(None, (f"setup {name}", error.where)))
        raise UsageError(error.what, where=where, fix=error.fix) from None


def _sendable(prompts: Sequence[PromptItem], capabilities: Capabilities) -> tuple[PromptItem, ...]:
    """Return the prompts with what constrains their answers. Raises UsageError for what this engine is not sent."""
    adapter = registered().adapters.get(capabilities.kind)
    sent_fields = capabilities.request_fields | {"seed"} | (adapter.sampling if adapter else frozenset())
    for item in prompts:
        calls = {"tool_calls": item.prompt.calls} if item.prompt.calls else {}
        calls |= {IMAGES: ()} if item.prompt.images else {}
        for name, value in (item.prompt.sent | calls).items():
            if not _takes(sent_fields, name, value, item.prompt):
                shown = f"`{name}: {value}`" if isinstance(value, str) else f"`{name}`"
                raise UsageError(
                    f"{shown} cannot be sent to this engine ({capabilities.kind})",
                    where=item.where,
                    fix="Leave it out of the prompt, choose other prompts (prompts.tasks), or measure an "
                    "OpenAI-compatible endpoint that takes it.",
                )
    return tuple(
        item.model_copy(update={"constrained": item.constrained or item.prompt.constraint(sent_fields)})
        for item in prompts
    )


def _takes(sent_fields: frozenset[str], name: str, value: object, prompt: Prompt) -> bool:
    """Whether an engine is sent a key of a prompt. A forced call may be sent as the schema of the answer."""
    if name == "regex" and prompt.grammar is not None:
        return True  # the grammar says the same
    if name == "tool_choice" and value != "none":
        name = "tools" if value == "auto" else "response_format"
    return name in sent_fields or (name == "tool_calls" and "tools" in sent_fields)


def with_arms(prepared: Prepared, arms: Sequence[Arm]) -> Prepared:
    """Return the same with other arms, their baseline among them, checked as `prepare` does. Raises UsageError."""
    recipe = prepared.recipe.model_copy(update={"arms": list(arms)})
    setups = {name: replace(prepared.setups[name], recipe=part) for name, part in recipe.parts.items()}
    warnings = [*prepared.warnings]
    for name, setup in setups.items():
        with _in_setup(name):
            warnings += setup.engine.check(setup.recipe, setup.models)
    return _launchable(replace(prepared, recipe=recipe, warnings=warnings, setups=setups))


def _launchable(prepared: Prepared) -> Prepared:
    """Return the same with how each arm is started, and a warning for every arm that is lossy by design."""
    launches: dict[str, Launch] = {}
    warnings = [*prepared.warnings]
    for arm in prepared.recipe.arms:
        setup = prepared.setups[arm.setup]
        launches[arm.name] = setup.engine.launch(arm, setup.models)
        if reasons := lossy_of(setup.recipe, arm, launches[arm.name]):
            warnings.append(f"Arm {arm.name} is lossy by design ({', '.join(reasons)}): its text is not the target's.")
    return replace(prepared, launches=launches, warnings=list(dict.fromkeys(warnings)))


def files_of(prepared: Prepared) -> list[Path]:
    """Return the files that must stay as they are while a run measures: the engines' binaries and the models'."""
    files: dict[Path, None] = {}
    for setup in prepared.setups.values():
        binary = setup.capabilities.binary
        files |= dict.fromkeys([] if binary is None else [binary])
        files |= dict.fromkeys(file.path for model in setup.pair for file in model.files)
    return list(files)


def model_files(prepared: Prepared) -> dict[str, list[str]]:
    """Return, by setup ("" where there are no axes), the SHA-256 of every file of the models, the target's first."""
    return {
        name or "": [file.sha256 for model in setup.pair for file in model.files]
        for name, setup in prepared.setups.items()
    }


def probed_engine(
    recipe: Recipe,
    folder: Path,
    binary: str | None,
    *,
    trusted: bool,
    typed: Collection[str] = (),
    recorded: Mapping[str, object] | None = None,
) -> tuple[Engine, Capabilities]:
    """Return the recipe's engine and what its binary can do.

    `recorded`: hashes that the engine must have. Raises UsageError for a recipe that asks for what is neither `typed`
    nor `trusted`, before anything that it names is run or sent anything.
    """
    permit(recipe, folder, trusted=trusted, typed=typed)
    engine = make_engine(recipe.engine, binary=binary)
    require_permitted(engine, folder, trusted=trusted, typed=is_typed("engine.binary", typed), recorded=recorded)
    return engine, engine.probe()


def require_permitted(
    engine: Engine,
    folder: Path,
    *,
    trusted: bool,
    typed: bool = False,
    recorded: Mapping[str, object] | None = None,
    named_by: str = "recipe",
) -> None:
    """Find the engine's program and print it where the user did not name it. Raises UsageError where it may not be run,
    or is not that of the hashes in `recorded`, before it is run. `typed`: its path stands on the command line."""
    program = engine.locate()
    if program is None:
        return
    if recorded is not None and any(recorded.get(part) != value for part, value in program.hashes.items()):
        raise UsageError(
            "Since this run was started, the engine's binary or its libraries changed (its hash differs).",
            where=one_line(str(program.path), 400),
            fix="Restore what it was started with, or start a new run.",
        )
    permit_program(program.path, "option" if typed else program.found_in, folder, trusted=trusted, named_by=named_by)


def device_names(capabilities: Capabilities) -> list[str]:
    """Return the names of the devices that the engine's binary finds; none where it does not report them."""
    devices = capabilities.details.get("devices")
    return [str(name) for name in devices] if isinstance(devices, list) else []


def lossy_of(recipe: Recipe, arm: Arm, launch: Launch) -> list[str]:
    """Return the settings of an arm that are lossy by design; nothing is accepted where nothing is drafted."""
    named = {name: launch.env[name] for name in launch.set_by_us}
    return lossy_settings(recipe.engine.kind, launch.argv, named) if arm.speculation else []


@dataclass(frozen=True)
class RecipeContext:
    """What a run may do when its engines are started again."""

    recipe: Recipe
    folder: Path
    """What relative paths of the recipe start from."""
    trusted: bool
    """Whether it gets whatever it asks for: by `--trust-recipe`, its folder, or as a run of this machine."""
    typed: frozenset[str] = frozenset()
    """Keys of the recipe whose values stand on the command line."""

    def prepare(
        self,
        binary: str | None = None,
        models_dir: Path | None = None,
        notice: Notice | None = None,
        recipe: Recipe | None = None,
        recorded: Recorded | None = None,
        *,
        quantizes: bool = True,
    ) -> Prepared:
        """Prepare its recipe, or `recipe` in its place; raises as `prepare`."""
        return prepare(
            recipe or self.recipe,
            recipe_folder=self.folder,
            binary=binary,
            models_dir=models_dir,
            notice=notice,
            trusted=self.trusted,
            typed=self.typed,
            recorded=recorded,
            quantizes=quantizes,
        )
