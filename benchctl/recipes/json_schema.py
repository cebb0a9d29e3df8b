"""The JSON Schema of a recipe file, for editors: `Recipe`, plus what only the file form has (matrix, placeholders)."""

from __future__ import annotations

from typing import Any

from benchctl.recipes.schema import Recipe

_PLACEHOLDER = {
    "type": "string",
    "pattern": r"^\{[A-Za-z_][A-Za-z0-9_]*\}$",
    "description": "A key of the arm's matrix.",
}
_MATRIX = {
    "title": "Matrix",
    "description": "Values by key; the arm is repeated for every combination, and {key} is replaced in its values.",
    "type": "object",
    "minProperties": 1,
    "propertyNames": {"pattern": r"^[A-Za-z_][A-Za-z0-9_]*$"},
    "additionalProperties": {"type": "array", "minItems": 1, "items": {"type": ["number", "string", "boolean"]}},
    "examples": [{"depth": [2, 4, 8, 16]}],
}
_NAME_WITH_PLACEHOLDERS = r"^[A-Za-z0-9{][A-Za-z0-9_.+{}-]*$"


def recipe_json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a recipe file."""
    schema = Recipe.model_json_schema()
    parts = schema["$defs"]
    for name, field in parts["Speculation"]["properties"].items():
        if name == "type":
            field["anyOf"].append(_PLACEHOLDER)
        else:
            field["anyOf"].insert(1, _PLACEHOLDER)
    blocks = schema["properties"]["blocks"]
    number, mapping = blocks.pop("oneOf")
    blocks["anyOf"] = [number, {"const": "auto"}, mapping]
    arm = parts["Arm"]["properties"]
    arm["matrix"] = _MATRIX
    arm["name"]["pattern"] = _NAME_WITH_PLACEHOLDERS
    arm["name"]["examples"] = ["baseline", "spec_d{depth}"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "benchctl recipe",
        "description": "One benchmark of speculative decoding: engine, model pair, prompts, sampling and arms.",
    }
