"""Pydantic's errors in a recipe's own terms: where in the file, what was expected, what is there."""

from __future__ import annotations

import json
import math
import re
from functools import cache
from typing import Any, TypeAlias

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from benchctl.recipes.adapters import registered
from benchctl.recipes.problems import KeyPath, Plain, did_you_mean, excerpt, quoted, value_at
from benchctl.recipes.speculation import PLACEHOLDER

JsonSchema: TypeAlias = dict[str, Any]

_NAME_RULE = "a name of letters, digits, '_', '.', '+' and '-' that starts with a letter or digit"

_KINDS: dict[str, str] = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing_size": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_SENTENCES = {
    "string_pattern_mismatch": f"expected {_NAME_RULE}, {{got}}.",
    "string_too_short": "expected text, got an empty one.",
    "too_short": "expected a list of at least one item, got an empty one.",
}
_BOUNDS: dict[str, tuple[str, str]] = {
    "greater_than_equal": ("ge", "at least {}"),
    "greater_than": ("gt", "more than {}"),
    "less_than_equal": ("le", "at most {}"),
    "less_than": ("lt", "less than {}"),
}


def translate(error: ValidationError, data: Plain, model: type[BaseModel]) -> list[tuple[KeyPath, str]]:
    """Return (key path, message) for everything that is wrong with `data` as `model`.

    Errors of union branches that the value is not meant for are left out: of `type: 5`, only that a name was expected,
    not also that a list was.
    """
    messages: dict[tuple[KeyPath, str], None] = {}
    for detail in error.errors(include_url=False, include_input=False):
        path = _data_path(detail["loc"], data, missing=detail["type"] in {"missing", "extra_forbidden"})
        if path is None or (detail["type"] == "too_short" and value_at(data, path)):
            continue  # pydantic counts the good items only; what is wrong with the others is reported already
        if detail["type"] == "union_tag_invalid":
            path = (*path, "kind")  # the only union that is told apart by a key of its own
        value = path[-1] if detail["loc"][-1:] == ("[key]",) else value_at(data, path)
        messages[path, _message(detail, path, value, data, model)] = None
    return list(messages)


def _data_path(loc: tuple[int | str, ...], data: Plain, *, missing: bool) -> KeyPath | None:
    """Drop the union tags from pydantic's location; None for a branch that the value is not meant for."""
    path: list[str | int] = []
    value = data
    for index, part in enumerate(part for part in loc if part != "[key]"):
        last = missing and index == len(loc) - 1
        if isinstance(value, dict) and (part in value or last):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            expects_list = str(part).startswith(("list[", "tuple["))
            if expects_list != isinstance(value, list):
                return None
            continue
        path.append(part)
    return tuple(path)


def _message(error: ErrorDetails, path: KeyPath, value: Plain, data: Plain, model: type[BaseModel]) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown(path, data, model)
    if kind == "missing":
        return f"this key is missing; expected {_what_belongs(path, model)}."
    got = f"got {quoted(value)}"
    if kind == "union_tag_invalid":
        if isinstance(value, str) and value in registered().broken:
            return f"{value} cannot run: {excerpt(registered().broken[value])}."
        choices = list(registered().adapters)
        return f"expected one of {', '.join(choices)}; {got}.{did_you_mean(value, choices)}"
    if isinstance(value, str) and PLACEHOLDER.search(value):
        return f"{quoted(value)} is a placeholder, but nothing fills it; give the arm a `matrix` with that key."
    if kind == "literal_error":
        choices = re.findall("'([^']*)'", context["expected"])
        return f"expected one of {', '.join(choices)}; {got}.{did_you_mean(value, choices)}"
    if kind in _BOUNDS:
        if isinstance(value, float) and not math.isfinite(value):
            return f"expected a finite number, {got}."
        key, phrase = _BOUNDS[kind]
        bound = context[key]
        return f"expected {phrase.format(int(bound) if bound == int(bound) else bound)}, {got}."
    if kind == "string_too_long":
        return f"expected at most {context.get('max_length')} characters, got {len(str(value))}."
    if kind in _SENTENCES:
        return _SENTENCES[kind].format(got=got)
    if kind in _KINDS:
        remedy = _remedy(kind, value) or _as_mapping(kind, value, _parts_at(model, path))
        return f"expected {_KINDS[kind]}, {got}.{remedy}"
    if kind == "value_error":  # a validator's own sentence
        return f"{context['error']}."
    return f"{excerpt(error['msg'])}, {got}."


def _remedy(kind: str, value: object) -> str:
    if kind == "string_type" and isinstance(value, (int, float)):
        return " Put it in quotes." if isinstance(value, bool) else f" Put it in quotes: {json.dumps(str(value))}."
    if kind.startswith("int") and isinstance(value, float) and value.is_integer():
        return f" Write {int(value)}."
    return ""


def _as_mapping(kind: str, value: object, parts: list[JsonSchema]) -> str:
    """`speculation: draft-simple` is nearly right: show the mapping that it stands for."""
    if isinstance(value, str) and value in registered().adapters:
        return f" Write {{kind: {value}}}."
    required = [name for part in parts for name in part.get("required", ())]
    if kind.startswith("model") and isinstance(value, str) and len(required) == 1:
        return f" Write {{{required[0]}: {excerpt(value)}}}."
    return ""


def _kind_of(data: Plain) -> str:
    """Return the engine that a file is for, as it names it or by default."""
    kind = value_at(data, ("engine", "kind"))
    return kind if isinstance(kind, str) else next(iter(registered().adapters))


def _unknown(path: KeyPath, data: Plain, model: type[BaseModel]) -> str:
    """Return what is known in place of a key: whose it is, where it is set for all arms, or the nearest name."""
    outer, key = path[:-1], str(path[-1])
    valid = _keys(model, outer)
    if outer == ("engine",):
        valid = _keys(registered().adapters[_kind_of(data)].spec, ())
        if takers := [kind for kind, adapter in registered().adapters.items() if key in adapter.spec.model_fields]:
            return f"{key} has no meaning for {_kind_of(data)}: it is for {', '.join(takers)}."
    if outer[:1] == ("arms",) and len(outer) == 2:
        for section in ((), ("sampling",)):
            if key in _keys(model, section):
                recipe_key = ".".join((*section, key))
                return f"unknown key of an arm; it is set once for all arms, as `{recipe_key}`."
    near = did_you_mean(key, valid)
    return f"unknown key.{near}" if near else f"unknown key; known here: {', '.join(valid)}."


def _what_belongs(path: KeyPath, model: type[BaseModel]) -> str:
    """Return what a missing key is for, as its description says."""
    about = _keys(model, path[:-1]).get(str(path[-1]), {}).get("description", "a value")
    return f"{about[0].lower()}{about[1:].rstrip('.')}"


def _keys(model: type[BaseModel], path: KeyPath) -> dict[str, JsonSchema]:
    """Return the keys that a mapping at a place of a model may have, with the JSON Schema of each."""
    return {key: inner for part in _parts_at(model, path) for key, inner in part.get("properties", {}).items()}


def _parts_at(model: type[BaseModel], path: KeyPath) -> list[JsonSchema]:
    """Return the branches of a model's JSON Schema at a path of keys and list indices."""
    schema = _schema_of(model)
    parts = _branches(schema, schema)
    for key in path:
        parts = [branch for part in parts for inner in _inside(part, key) for branch in _branches(inner, schema)]
    return parts


@cache
def _schema_of(model: type[BaseModel]) -> JsonSchema:
    return model.model_json_schema()


def _inside(part: JsonSchema, key: str | int) -> list[JsonSchema]:
    if isinstance(key, int):
        return [part["items"]] if "items" in part else []
    of_any_key = [*part.get("patternProperties", {}).values(), part.get("additionalProperties")]
    inner_parts = [part["properties"][key]] if key in part.get("properties", {}) else of_any_key
    return [inner for inner in inner_parts if isinstance(inner, dict)]


def _branches(part: JsonSchema, schema: JsonSchema) -> list[JsonSchema]:
    if "$ref" in part:
        return _branches(schema["$defs"][part["$ref"].rpartition("/")[2]], schema)
    branches = part.get("anyOf") or part.get("oneOf")
    return [part] if branches is None else [inner for branch in branches for inner in _branches(branch, schema)]
