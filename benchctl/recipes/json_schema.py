"""The JSON Schema of a recipe file, for editors: `Recipe`, and what only files have (matrix, placeholders, lists)."""

from __future__ import annotations

from typing import Any

from benchctl.recipes.schema import OF_CONDITIONS, SPECULATION_WORDS, Recipe

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


_OWN_METHODS = {
    "required": ["engine"],
    "properties": {"engine": {"required": ["kind"], "properties": {"kind": {"enum": ["vllm", "sglang"]}}}},
}
"""Engines whose methods may be named by the engine's own words."""


def _words_only() -> dict[str, Any]:
    """For every other engine, a speculation type is one of benchctl's words: editors complete and check it."""
    word = {"anyOf": [{"enum": list(SPECULATION_WORDS)}, _PLACEHOLDER]}
    allowed = {"anyOf": [*word["anyOf"], {"type": "array", "items": word}]}
    speculation = {"if": {"type": "object"}, "then": {"properties": {"type": allowed}}}
    return {"properties": {"arms": {"items": {"properties": {"speculation": speculation}}}}}


def recipe_json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a recipe file."""
    schema = Recipe.model_json_schema()
    schema["required"].remove("models")  # an endpoint's may be left out
    parts = schema["$defs"]
    for name, field in parts["Speculation"]["properties"].items():
        if name == "type":
            field["anyOf"].append(_PLACEHOLDER)
        elif name != "options":
            field["anyOf"].insert(1, _PLACEHOLDER)
    blocks = schema["properties"]["blocks"]
    number, mapping = blocks.pop("oneOf")
    blocks["anyOf"] = [number, {"const": "auto"}, mapping]
    arm = parts["Arm"]["properties"]
    taken = {key: arm.pop(key) for key in OF_CONDITIONS}
    for key, default in (("concurrency", 1), ("rate", None)):
        schema["properties"][key] = _one_or_several(taken[key], default)
    temperature = parts["Sampling"]["properties"]["temperature"]
    parts["Sampling"]["properties"]["temperature"] = _one_or_several(temperature, temperature["default"])
    arm["matrix"] = _MATRIX
    arm["name"]["pattern"] = _NAME_WITH_PLACEHOLDERS
    arm["name"]["examples"] = ["baseline", "spec_d{depth}"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "if": _OWN_METHODS,
        "else": _words_only(),
        "title": "benchctl recipe",
        "description": "One benchmark of speculative decoding: engine, model pair, prompts, sampling and arms.",
    }


def _one_or_several(field: dict[str, Any], default: float | None) -> dict[str, Any]:
    """Return the schema of a condition: a value, or a list of values to measure every arm under."""
    about = {key: field[key] for key in ("title", "description")}
    value = {key: rule for key, rule in field.items() if key not in {*about, "default"}}
    number = next((one for one in value.get("anyOf", []) if one != {"type": "null"}), value)
    several = {"type": "array", "minItems": 1, "items": number}
    about["description"] = about["description"].rstrip(".") + "; a list: every arm under each of them."
    return {**about, "anyOf": [*value.get("anyOf", [value]), several], "default": default}
