"""A recipe file, found, read, expanded and checked (a `Recipe`, or everything that is wrong with it), and written.

`WrittenRecipe` is the form of a file: matrices, placeholders, and conditions that stand once for all arms. Its JSON
Schema is what editors check and complete with.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, Tag, ValidationError, WithJsonSchema

from benchctl.errors import UsageError
from benchctl.paths import shipped_folder
from benchctl.recipes.adapters import adapter_of, registered
from benchctl.recipes.axes import axes_of, lists_as_axes, merged, needs_draft, too_many_arms
from benchctl.recipes.document import Document, dump_document, read_document
from benchctl.recipes.engine_spec import EngineSpec
from benchctl.recipes.matrix import Combination, ExpandedArm, Messages, expand, replaced
from benchctl.recipes.problems import KeyPath, Plain, Problem, RecipeError, did_you_mean, value_at
from benchctl.recipes.relations import relation_problems
from benchctl.recipes.schema import (
    ABOUT_ARMS,
    ABOUT_MODELS,
    BLOCKS,
    BY_KIND,
    Arm,
    ArmBase,
    ArmName,
    AutoBlocks,
    CacheTypes,
    Conditions,
    KvType,
    Mapped,
    ModelPair,
    ModelSpec,
    Number,
    Recipe,
    RecipeBase,
)
from benchctl.recipes.speculation import DESCRIBED, SPECULATION_TYPES, Speculation, WrittenSpeculation
from benchctl.recipes.translate import translate
from benchctl.text import one_line

AXES_SCHEMA = {
    "type": "object",
    "minProperties": 1,
    "additionalProperties": {"anyOf": [{"type": "array", "minItems": 1}, {"type": "object", "minProperties": 1}]},
}
Axes = Annotated[Any, WithJsonSchema({"anyOf": [AXES_SCHEMA, {"type": "null"}]})]
"""Lists, or mappings of names to values, by axis; `benchctl.recipes.matrix` checks them."""
WRITTEN_NAME = {"type": "string", "pattern": r"^[A-Za-z0-9{][A-Za-z0-9_.+{}-]*$"}
"""JSON Schema of an arm's name, with placeholders that are not filled in yet."""


class WrittenArm(ArmBase):
    """A setting to be measured, or with a matrix a setting for every combination of its values."""

    name: Annotated[ArmName, WithJsonSchema(WRITTEN_NAME)] = Field(
        description="The arm's name, which is also its label in the records.", examples=["baseline", "spec_d{depth}"]
    )
    speculation: WrittenSpeculation | None = Field(default=None, description="Null: the target alone.")
    matrix: Axes = Field(
        default=None,
        description="Values by key, every combination of which is an arm; {key} is replaced in its values; with "
        "include and exclude.",
        examples=[{"depth": [2, 4, 8, 16]}],
    )


def _restrict_types_without_own_methods(schema: dict[str, Any]) -> None:
    """Let editors complete and check the types of engines that take benchctl's names alone."""
    restricted = [kind for kind, adapter in registered().adapters.items() if not adapter.own_methods]
    word = {"anyOf": [{"enum": list(SPECULATION_TYPES)}, DESCRIBED]}
    types = {"anyOf": [*word["anyOf"], {"type": "array", "items": word}]}
    speculation = {"if": {"type": "object"}, "then": {"properties": {"type": types}}}
    schema["if"] = {
        "required": ["engine"],
        "properties": {"engine": {"required": ["kind"], "properties": {"kind": {"enum": restricted}}}},
    }
    schema["then"] = {"properties": {"arms": {"items": {"properties": {"speculation": speculation}}}}}


class WrittenRecipe(Conditions, RecipeBase):
    """A benchmark of speculative decoding: engine, model pair, quantization, prompts, sampling and arms."""

    models: ModelPair | None = Field(default=None, description=ABOUT_MODELS)
    blocks: Annotated[Number | Annotated[Literal["auto"], Tag("word")] | Mapped, BY_KIND] = BLOCKS
    arms: list[WrittenArm] = Field(min_length=1, description=ABOUT_ARMS)
    cache_type: KvType | CacheTypes | None = Field(
        default=None,
        description="Type of the KV caches of target and draft, or of each; null: what the engine chooses.",
        examples=["q8_0", {"target": "f16", "draft": "q8_0"}],
    )
    matrix: Axes = Field(
        default=None,
        description="Axes: values by dotted key of the recipe, such as models.draft, cache_type or concurrency, every "
        "combination of which is measured; with include and exclude.",
        examples=[{"models.draft": [{"source": "d.gguf"}], "cache_type": ["f16", "q8_0"], "concurrency": [1, 8]}],
    )

    model_config = ConfigDict(title="benchctl recipe", json_schema_extra=_restrict_types_without_own_methods)


def recipe_json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a recipe file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **WrittenRecipe.model_json_schema()}


EXPANDED = "expanded"
"""The key of a file whose arms are written out: each with its setup and condition, as a run has them."""


def load_recipe(path: Path, *, overrides: Mapping[str, object] | None = None) -> Recipe:
    """Load a recipe file with its matrices expanded, and every arm under every condition.

    `overrides` replaces values by dotted key before anything is checked: `{"blocks": 5, "engine.binary": "/opt/x"}`.
    Where the file has axes, every arm is there under every combination of them. Raises RecipeError that lists every
    problem of the file.
    """
    document = read_document(path)
    for key, kind in _OTHER_FILES.items():
        if key in document.data and "arms" not in document.data:
            message = f"this is {kind}, not a recipe; an engine's own line is measured with: benchctl run -- LINE"
            raise RecipeError(path, [Problem(document.line((key,)), (), message)])
    return _recipe_of(document, overrides or {})


_OTHER_FILES = {
    "services": "a Compose file",
    "apiVersion": "a Kubernetes file",
    "model_list": "a configuration of LiteLLM",
    "schemaVersion": "a manifest of container images or of Ollama",
}
"""By a key of its top level, what a file is that has no arms."""


def recipe_of_options(data: Mapping[str, Any], overrides: Mapping[str, object] | None = None) -> Recipe:
    """Return the recipe that a command line's options make, from its plain data; errors as `load_recipe`."""
    return _recipe_of(Document(Path("the command line"), dict(data)), overrides or {})


def _recipe_of(document: Document, overrides: Mapping[str, object]) -> Recipe:
    data = dict(document.data)
    for key, value in overrides.items():
        data = replaced(data, key.split("."), value)
    if data.get(EXPANDED) is True:
        recipe, messages = _saved({key: value for key, value in data.items() if key != EXPANDED})
    else:
        data, elsewhere = lists_as_axes(data)
        if data.get("matrix") is None:
            recipe, messages = _loaded(data, Combination())
        else:
            recipe, messages = _with_axes(data, elsewhere)
    if messages or recipe is None:
        raise _recipe_error(document, messages)
    return recipe


def _saved(data: dict[str, Plain]) -> tuple[Recipe | None, Messages]:
    """Return the recipe of a file that benchctl saved with a run, whose arms are written out with their conditions."""
    try:
        recipe = stored_recipe(data)
    except ValidationError as error:
        return None, translate(error, data, Recipe)
    return recipe, [problem for part in recipe.parts.values() for problem in relation_problems(part)]


def _with_axes(data: dict[str, Plain], elsewhere: Mapping[str, KeyPath]) -> tuple[Recipe | None, Messages]:
    """Return the recipe of a file with axes, each combination loaded as a recipe of its own."""
    combinations, messages = axes_of(data["matrix"], elsewhere)
    messages += too_many_arms(combinations, len(expand(data.get("arms"))[0]))
    if messages:
        return None, messages
    drafts = [value_at(combination.filled(data), ("models", "draft")) for combination in combinations]
    only_with_draft = any(drafts) and not all(drafts)
    parts: list[tuple[Combination, Recipe]] = []
    for combination in combinations:
        recipe, problems = _loaded(data, combination, only_with_draft=only_with_draft)
        messages += problems
        if recipe is not None:
            parts.append((combination, recipe))
    if messages:
        return None, messages
    return merged(parts)


def _loaded(
    file_data: dict[str, Plain], combination: Combination, *, only_with_draft: bool = False
) -> tuple[Recipe | None, Messages]:
    """Return the recipe of a file's data under a combination of its axes, or what is wrong with it in the file.

    `only_with_draft`: an arm that needs a draft model is left out where there is none, instead of being refused.
    """
    data = combination.filled(file_data)
    arms, messages = expand(data.get("arms"))
    if only_with_draft and value_at(data, ("models", "draft")) is None:
        arms = [arm for arm in arms if not needs_draft(arm.data)]
    if isinstance(data.get("arms"), list):
        data["arms"] = [arm.data for arm in arms]
    recipe = None
    if arms or not messages:
        recipe, problems = _checked(data)
        messages += [(_in_file(path, arms), message) for path, message in problems]
    if not messages:
        return recipe, []
    return None, [(combination.in_file(path), message) for path, message in messages]


def _checked(data: dict[str, Plain]) -> tuple[Recipe | None, Messages]:
    """Return the recipe of data without any matrix, or what is wrong with it."""
    try:
        parsed = WrittenRecipe.model_validate(data)
    except ValidationError as error:
        return None, translate(error, data, WrittenRecipe)
    if parsed.models is None and adapter_of(parsed.engine.kind).model_format != "served":
        return None, [(("models",), f"this key is missing; expected {ABOUT_MODELS[0].lower()}{ABOUT_MODELS[1:]}")]
    recipe = _filled_in(parsed)
    return recipe, relation_problems(recipe)


def _filled_in(recipe: WrittenRecipe) -> Recipe:
    """Return the recipe of a file whose matrices are expanded, each arm with what the file sets once for all."""
    cache = recipe.cache_type
    conditions: dict[str, Any] = {key: getattr(recipe, key) for key in Conditions.model_fields}
    conditions["cache_type"] = CacheTypes(target=cache, draft=cache) if isinstance(cache, str) else cache
    expanded = {
        "models": recipe.models or ModelPair(target=ModelSpec(source="served:")),
        "blocks": AutoBlocks() if recipe.blocks == "auto" else recipe.blocks,
        "arms": [
            Arm(
                name=arm.name,
                speculation=arm.speculation and Speculation(**dict(arm.speculation)),
                args=arm.args,
                url=arm.url,
                **conditions,
            )
            for arm in recipe.arms
        ],
    }
    return Recipe(**{key: getattr(recipe, key) for key in RecipeBase.model_fields} | expanded)


def find_recipe(name_or_path: str) -> Path:
    """Return the file of a recipe: a path, or the name of a shipped recipe. Raises UsageError."""
    path = Path(name_or_path).expanduser()
    if path.exists():
        return path
    shipped = shipped_recipes()
    if name_or_path in shipped:
        return shipped[name_or_path]
    near = did_you_mean(path.stem if path.suffix in {".yaml", ".yml"} else name_or_path, shipped).strip()
    raise UsageError(
        f"there is no recipe file '{one_line(name_or_path, 200)}', and benchctl ships none of that name.",
        fix=near or "List the shipped recipes: benchctl recipes list",
    )


def shipped_recipes() -> dict[str, Path]:
    """Return the recipes that benchctl ships, by name."""
    return {path.stem: path for path in sorted(shipped_folder("recipes").glob("*.yaml"), key=lambda path: path.stem)}


def _in_file(path: KeyPath, arms: list[ExpandedArm]) -> KeyPath:
    """Return where in the file the value at an expanded path stands."""
    if len(path) > 1 and path[0] == "arms" and isinstance(path[1], int):
        return ("arms", arms[path[1]].index, *path[2:])
    return path


def _recipe_error(document: Document, messages: Messages) -> RecipeError:
    problems = {Problem(document.line(path), path, message): None for path, message in messages}
    return RecipeError(document.file, sorted(problems, key=lambda problem: problem.line))


def stored_recipe(document: Mapping[str, Any]) -> Recipe:
    """Return a manifest's recipe; older ones have keys of other engines. Raises ValidationError, UsageError."""
    engine = document.get("engine")
    if isinstance(engine, Mapping) and isinstance(engine.get("kind"), str):
        fields = adapter_of(engine["kind"]).spec.model_fields
        specs = [adapter.spec.model_fields for adapter in registered().adapters.values()]
        silent = {key: field.get_default(call_default_factory=True) for spec in specs for key, field in spec.items()}
        used = {key: value for key, value in engine.items() if key in fields or silent.get(key, ...) != value}
        document = {**document, "engine": used}
    return Recipe.model_validate(document)


RECIPE = "recipe.yaml"
"""The file of it in a run's folder."""


def recipe_text(recipe: Recipe, folder: Path) -> str:
    """Return the recipe that is run as a file that means the same anywhere.

    `folder`: what its relative paths start from. A recipe of several conditions or setups has every arm written out.
    """
    data: dict[str, Any] = recipe.model_dump(mode="json", exclude_defaults=True)
    data["engine"] = _portable(recipe.engine, data.get("engine", {}))
    for setup, setup_data in zip(recipe.setups, data.get("setups", []), strict=True):
        setup_data["engine"] = _portable(setup.engine, setup_data.get("engine", {}))
    for key, places in (("suite", (folder, Path.cwd())), ("context", (folder,))):
        if data["prompts"].get(key) is not None:
            data["prompts"][key] = absolute(data["prompts"][key], *places)
    for pair in (data["models"], *(setup_data["models"] for setup_data in data.get("setups", []))):
        for model in filter(None, pair.values()):
            model["source"] = absolute(model["source"], folder)
    data["arms"] = [arm for arm in data["arms"] if not arm.get("again")]
    if recipe.setups or any(arm.keys() - WrittenArm.model_fields for arm in data["arms"]):
        data[EXPANDED] = True
    data = {key: data[key] for key in (EXPANDED, *Recipe.model_fields) if key in data}
    head = f"# {one_line(recipe.description or recipe.name)}\n# As it was run; again with: benchctl run THIS-FILE\n"
    return head + dump_document(data)


def _portable(engine: EngineSpec, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return an engine's data with its kind, and a program in the working directory by its whole path."""
    portable = {"kind": engine.kind, **data}
    if "/" in (portable.get("binary") or ""):
        portable["binary"] = absolute(portable["binary"], Path.cwd())
    return portable


def absolute(name: str, *folders: Path | None) -> str:
    """Return a file of the first folder that has it by its whole path, so that a recipe means it wherever it lies."""
    places = (folder / Path(name).expanduser() for folder in folders if folder is not None)
    return next((str(path.resolve()) for path in places if path.exists()), name)
