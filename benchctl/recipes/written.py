"""The recipe as a file has it: matrices, placeholders, and conditions that stand once for all arms.

Its JSON Schema is what editors check and complete with; `benchctl.recipes.load` expands it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, Tag, WithJsonSchema

from benchctl.recipes.adapters import registered
from benchctl.recipes.axes import CONDITIONS
from benchctl.recipes.schema import (
    ABOUT_ARMS,
    ABOUT_MODELS,
    BLOCKS,
    BY_KIND,
    ArmBase,
    CacheTypes,
    Concurrency,
    ContextLength,
    KvType,
    Mapped,
    ModelPair,
    Number,
    Rate,
    RecipeBase,
)
from benchctl.recipes.speculation import DESCRIBED, SPECULATION_TYPES, WrittenSpeculation

AXES_SCHEMA = {
    "type": "object",
    "minProperties": 1,
    "additionalProperties": {"anyOf": [{"type": "array", "minItems": 1}, {"type": "object", "minProperties": 1}]},
}
Axes = Annotated[Any, WithJsonSchema({"anyOf": [AXES_SCHEMA, {"type": "null"}]})]
"""Lists, or mappings of names to values, by axis; `benchctl.recipes.matrix` checks them."""


class WrittenArm(ArmBase):
    """One setting to be measured, or with a matrix a setting for every combination of its values."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9{][A-Za-z0-9_.+{}-]*$")] = Field(
        description="The arm's name, which is also its label in the records.", examples=["baseline", "spec_d{depth}"]
    )
    speculation: WrittenSpeculation | None = Field(default=None, description="Null: the target alone.")
    matrix: Axes = Field(
        default=None,
        description="Values by key, every combination of which is an arm; {key} is replaced in its values; with "
        "include and exclude.",
        examples=[{"depth": [2, 4, 8, 16]}],
    )
    elsewhere: ClassVar[Mapping[str, str]] = (
        dict.fromkeys(("of", "setup", "group"), "")
        | {"cache_type": " of an arm; it is set once for all arms, as `cache_type`"}
        | {key.rpartition(".")[2]: f" of an arm; it is set once for all arms, as `{key}`" for key in CONDITIONS}
    )


def _restrict_types_without_own_methods(schema: dict[str, Any]) -> None:
    """Let editors complete and check the types of engines that take benchctl's names alone."""
    others = [kind for kind, adapter in registered().adapters.items() if not adapter.own_methods]
    word = {"anyOf": [{"enum": list(SPECULATION_TYPES)}, DESCRIBED]}
    types = {"anyOf": [*word["anyOf"], {"type": "array", "items": word}]}
    speculation = {"if": {"type": "object"}, "then": {"properties": {"type": types}}}
    schema["if"] = {
        "required": ["engine"],
        "properties": {"engine": {"required": ["kind"], "properties": {"kind": {"enum": others}}}},
    }
    schema["then"] = {"properties": {"arms": {"items": {"properties": {"speculation": speculation}}}}}


class WrittenRecipe(RecipeBase):
    """One benchmark of speculative decoding: engine, model pair, quantization, prompts, sampling and arms."""

    models: ModelPair | None = Field(default=None, description=ABOUT_MODELS)
    blocks: Annotated[Number | Annotated[Literal["auto"], Tag("word")] | Mapped, BY_KIND] = BLOCKS
    arms: list[WrittenArm] = Field(min_length=1, description=ABOUT_ARMS)
    concurrency: Concurrency = Field(default=1, description="Most requests in flight at a time.")
    rate: Rate | None = Field(
        default=None, description="Requests sent a second, whatever is in flight; null: as they end."
    )
    context_length: ContextLength | None = Field(
        default=None, description="Pad or cut prompts before their question to so many tokens."
    )
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
