"""Pydantic's errors in a recipe's own terms: where in the file, what was expected, what is there."""

from __future__ import annotations

import json
import math
import types
from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from benchctl.recipes.adapters import registered
from benchctl.recipes.engine_spec import Strict
from benchctl.recipes.problems import KeyPath, Plain, did_you_mean, excerpt, quoted
from benchctl.recipes.speculation import PLACEHOLDER

Annotation: TypeAlias = Any
"""A type annotation as `typing` hands it out at run time."""

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
_BOUNDS: dict[str, tuple[str, str]] = {
    "greater_than_equal": ("ge", "at least {}"),
    "greater_than": ("gt", "more than {}"),
    "less_than_equal": ("le", "at most {}"),
    "less_than": ("lt", "less than {}"),
}


def translate(errors: Iterable[ErrorDetails], data: Plain, model: type[BaseModel]) -> list[tuple[KeyPath, str]]:
    """Return (key path, message) for every error of validating `data` as `model`.

    Errors of union branches that the value is not meant for are left out: of `type: 5`, only that a name was expected,
    not also that a list was.
    """
    found: dict[tuple[KeyPath, str], None] = {}
    for error in errors:
        path = _data_path(error["loc"], data, missing=error["type"] in {"missing", "extra_forbidden"})
        if error["type"] == "too_short" and path is not None and value_at(data, path):
            continue  # pydantic counts the good items only; what is wrong with the others is reported already
        if path is not None and error["type"] == "union_tag_invalid":
            path = (*path, "kind")  # the only union that is told apart by a key of its own
        if path is not None:
            value = path[-1] if error["loc"][-1:] == ("[key]",) else value_at(data, path)
            found[(path, _message(error, path, value, data, model))] = None
    return list(found)


def _data_path(loc: tuple[int | str, ...], data: Plain, *, missing: bool) -> KeyPath | None:
    """Drop the union tags from pydantic's location; None for a branch that the value is not meant for.

    `missing`: the last part is a key, whether the data has it or not.
    """
    path: list[str | int] = []
    here = data
    for index, part in enumerate(part for part in loc if part != "[key]"):
        last = missing and index == len(loc) - 1
        if isinstance(here, dict) and (part in here or last):
            here = here.get(part)
        elif isinstance(here, list) and isinstance(part, int) and part < len(here):
            here = here[part]
        else:
            expects_list = str(part).startswith(("list[", "tuple["))
            if expects_list != isinstance(here, list):
                return None
            continue
        path.append(part)
    return tuple(path)


def _message(error: ErrorDetails, path: KeyPath, value: Plain, data: Plain, model: type[BaseModel]) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        if path[:-1] == ("engine",) and (takers := _kinds_that_take(str(path[-1]))):
            return f"{path[-1]} has no meaning for {_kind_of(data)}: it is for {', '.join(takers)}."
        parts = _parts_at(model, path[:-1], data)
        for part in parts:
            if issubclass(part, Strict) and (place := part.elsewhere.get(str(path[-1]))) is not None:
                return f"unknown key{place}."
        known = [field.alias or key for part in parts for key, field in part.model_fields.items()]
        near = did_you_mean(path[-1], known)
        return f"unknown key.{near}" if near else f"unknown key; known here: {', '.join(known)}."
    if kind == "missing":
        return f"this key is missing; expected {_what_belongs(model, path)}."
    got = f"got {quoted(value)}"
    if kind == "union_tag_invalid":
        if isinstance(value, str) and value in registered().broken:
            return f"{value} cannot run: {excerpt(registered().broken[value])}."
        choices = list(registered().adapters)
        return f"expected one of {', '.join(choices)}; {got}.{did_you_mean(value, choices)}"
    if isinstance(value, str) and PLACEHOLDER.search(value):
        return f"{quoted(value)} is a placeholder, but nothing fills it; give the arm a `matrix` with that key."
    if kind == "literal_error":
        choices = _literal_choices(model, path)
        return f"expected one of {', '.join(choices)}; {got}.{did_you_mean(value, choices)}"
    if kind in _BOUNDS:
        if isinstance(value, float) and not math.isfinite(value):
            return f"expected a finite number, {got}."
        key, phrase = _BOUNDS[kind]
        bound = context[key]
        return f"expected {phrase.format(int(bound) if bound == int(bound) else bound)}, {got}."
    if kind == "string_pattern_mismatch":
        return f"expected {_NAME_RULE}, {got}."
    if kind == "string_too_long":
        return f"expected at most {context.get('max_length')} characters, got {len(str(value))}."
    if kind in {"too_short", "string_too_short"}:
        if kind == "string_too_short":
            return "expected text, got an empty one."
        return "expected a list of at least one item, got an empty one."
    if kind in _KINDS:
        remedy = _remedy(kind, value) or _as_mapping(kind, value, _models(_annotation(model, path)))
        return f"expected {_KINDS[kind]}, {got}.{remedy}"
    if kind == "value_error":  # a validator's own sentence
        return f"{context['error']}."
    return f"{excerpt(error['msg'])}, {got}."


def _remedy(kind: str, value: object) -> str:
    if kind == "string_type" and isinstance(value, (int, float)):
        return f" Put it in quotes: {json.dumps(str(value).lower())}."
    if kind.startswith("int") and isinstance(value, float) and value.is_integer():
        return f" Write {int(value)}."
    return ""


def _as_mapping(kind: str, value: object, models: list[type[BaseModel]]) -> str:
    """`speculation: draft-simple` is nearly right: show the mapping that it stands for."""
    required = [name for part in models for name, field in part.model_fields.items() if field.is_required()]
    if kind.startswith("model") and isinstance(value, str) and len(required) == 1:
        return f" Write {{{required[0]}: {excerpt(value)}}}."
    return ""


def value_at(data: Plain, path: KeyPath) -> Plain:
    """Return what stands at `path` in plain data; None where nothing does."""
    for part in path:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _kind_of(data: Plain) -> str:
    """Return the engine that a file is for, as it names it or by default."""
    kind = value_at(data, ("engine", "kind"))
    return kind if isinstance(kind, str) else next(iter(registered().adapters))


def _kinds_that_take(key: str) -> list[str]:
    return [kind for kind, adapter in registered().adapters.items() if key in adapter.spec.model_fields]


def _parts_at(model: type[BaseModel], path: KeyPath, data: Plain) -> list[type[BaseModel]]:
    """Return the models that the mapping at `path` of `data` may be."""
    if path == ("engine",):
        return [registered().adapters[_kind_of(data)].spec]
    return _models(_annotation(model, path))


def _what_belongs(model: type[BaseModel], path: KeyPath) -> str:
    part = _models(_annotation(model, path[:-1]))
    field = part[0].model_fields.get(str(path[-1])) if part else None
    if field is not None and field.description:
        return field.description[0].lower() + field.description[1:].rstrip(".")
    return "a value"


def _literal_choices(model: type[BaseModel], path: KeyPath) -> list[str]:
    return [str(word) for literal in _literals(_annotation(model, path)) for word in get_args(literal)]


def _annotation(model: Annotation, path: KeyPath) -> Annotation:
    """Walk type annotations along a path of keys and list indices."""
    here = model
    for part in path:
        if isinstance(part, int):
            here = next((get_args(listed)[0] for listed in _lists(here)), None)
            continue
        fields = [m.model_fields[part].annotation for m in _models(here) if part in m.model_fields]
        values = [get_args(member)[1] for member in _flatten(here) if _origin_of(member) is dict]
        here = next(iter(fields + values), None)
    return here


def _models(annotation: Annotation) -> list[type[BaseModel]]:
    return [part for part in _flatten(annotation) if isinstance(part, type) and issubclass(part, BaseModel)]


def _lists(annotation: Annotation) -> list[Annotation]:
    return [part for part in _flatten(annotation) if _origin_of(part) in {list, tuple}]


def _literals(annotation: Annotation) -> list[Annotation]:
    """Return the `Literal`s that a value, or an item of a list value, may be."""
    inside = [get_args(part)[0] for part in _lists(annotation)]
    parts = [part for outer in (annotation, *inside) for part in _flatten(outer)]
    return list(dict.fromkeys(part for part in parts if _origin_of(part) is Literal))


def _origin_of(annotation: Annotation) -> Annotation:
    return get_origin(annotation)


def _flatten(annotation: Annotation) -> list[Annotation]:
    """Return the members of unions and the inside of `Annotated`."""
    if _origin_of(annotation) is Annotated:
        return _flatten(get_args(annotation)[0])
    if get_origin(annotation) in {Union, types.UnionType}:
        return [part for member in get_args(annotation) for part in _flatten(member)]
    return [annotation]
