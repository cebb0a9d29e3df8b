"""The recipe as a file writes it: matrices, placeholders, and conditions that stand once for all arms.

Its JSON Schema is what editors check and complete with; `benchctl.recipes.load` expands it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

from pydantic import ConfigDict, Field, Tag, WithJsonSchema

from benchctl.recipes.adapters import registered
from benchctl.recipes.placeholders import DESCRIBED
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
    SamplingBase,
    Temperature,
)
from benchctl.recipes.speculation import SPECULATION_TYPES, WrittenSpeculation

Value = TypeVar("Value")
OneOrSeveral: TypeAlias = Value | Annotated[list[Value], Field(min_length=1)]
"""A condition: one value, or several, under each of which every arm is measured."""

MatrixKey = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Matrix = Annotated[dict[MatrixKey, Annotated[list[int | float | str | bool], Field(min_length=1)]], Field(min_length=1)]


AXES_SCHEMA = {"type": "object", "additionalProperties": {"anyOf": [{"type": "array"}, {"type": "object"}]}}
Axes = Annotated[dict[str, Any], WithJsonSchema(AXES_SCHEMA)]
"""Lists, or mappings of names to values, by axis; `benchctl.recipes.axes` checks them."""


PLACES: dict[str, tuple[str, ...]] = {
    "context_length": ("context_length",),
    "concurrency": ("concurrency",),
    "rate": ("rate",),
    "temperature": ("sampling", "temperature"),
}
"""Where in a file the condition of an arm's field stands, in the order of the suffix."""


class WrittenSampling(SamplingBase):
    """How tokens are chosen. The default is greedy."""

    temperature: OneOrSeveral[Temperature] = Field(
        default=0.0, description="0 is greedy; a list: every arm under each of them."
    )


class WrittenArm(ArmBase):
    """One setting to be measured, or with a matrix one for every combination of its values."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9{][A-Za-z0-9_.+{}-]*$")] = Field(
        description="The arm's name, which is also its label in the records.", examples=["baseline", "spec_d{depth}"]
    )
    speculation: WrittenSpeculation | None = Field(default=None, description="Null: the target alone.")
    matrix: Matrix | None = Field(
        default=None,
        description="Values by key; the arm is repeated for every combination, and {key} is replaced in its values.",
        examples=[{"depth": [2, 4, 8, 16]}],
    )
    elsewhere: ClassVar[Mapping[str, str]] = (
        dict.fromkeys(("of", "setup", "group"), "")
        | {"cache_type": " of an arm; it is set once for all arms, as `cache_type`"}
        | {key: f" of an arm; it is set once for all arms, as `{'.'.join(place)}`" for key, place in PLACES.items()}
    )


def _restrict_types_without_own_methods(schema: dict[str, Any]) -> None:
    """Let editors complete and check the types of engines that take benchctl's names alone."""
    own = [kind for kind, adapter in registered().adapters.items() if adapter.own_methods]
    word = {"anyOf": [{"enum": list(SPECULATION_TYPES)}, DESCRIBED]}
    types = {"anyOf": [*word["anyOf"], {"type": "array", "items": word}]}
    speculation = {"if": {"type": "object"}, "then": {"properties": {"type": types}}}
    schema["if"] = {
        "required": ["engine"],
        "properties": {"engine": {"required": ["kind"], "properties": {"kind": {"enum": own}}}},
    }
    schema["else"] = {"properties": {"arms": {"items": {"properties": {"speculation": speculation}}}}}


class WrittenRecipe(RecipeBase):
    """One benchmark of speculative decoding: engine, model pair, quantization, prompts, sampling and arms."""

    models: ModelPair | None = Field(default=None, description=ABOUT_MODELS)
    sampling: WrittenSampling = WrittenSampling()
    blocks: Annotated[Number | Annotated[Literal["auto"], Tag("word")] | Mapped, BY_KIND] = BLOCKS
    arms: list[WrittenArm] = Field(min_length=1, description=ABOUT_ARMS)
    concurrency: OneOrSeveral[Concurrency] = Field(
        default=1, description="Most requests in flight at a time; a list: every arm under each of them."
    )
    rate: OneOrSeveral[Rate] | None = Field(
        default=None,
        description="Requests sent a second, whatever is in flight; null: as they end; a list: every arm under each.",
    )

    context_length: OneOrSeveral[ContextLength] | None = Field(
        default=None,
        description="Pad or cut prompts before their question to so many tokens; a list: every arm under each.",
    )
    cache_type: KvType | CacheTypes | None = Field(
        default=None,
        description="Type of the KV caches of target and draft, or of each; null: what the engine chooses.",
        examples=["q8_0", {"target": "f16", "draft": "q8_0"}],
    )
    matrix: Axes | None = Field(
        default=None,
        description="Axes: values by dotted key of the recipe, such as models.draft or cache_type, every combination "
        "of which is measured; with include and exclude.",
        examples=[{"models.draft": [{"source": "d.gguf"}], "cache_type": ["f16", "q8_0"]}],
    )

    model_config = ConfigDict(title="benchctl recipe", json_schema_extra=_restrict_types_without_own_methods)


def recipe_json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a recipe file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **WrittenRecipe.model_json_schema()}
