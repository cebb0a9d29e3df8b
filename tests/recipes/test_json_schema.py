"""The exported schema: current, strict, described, and in agreement with what the loader takes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchctl.recipes.document import read_document
from benchctl.recipes.load import recipe_json_schema, shipped_recipes

EXPORTED = Path(__file__).parents[2] / "docs" / "recipe.schema.json"


def test_the_exported_file_is_current() -> None:
    assert json.loads(EXPORTED.read_text("utf-8")) == recipe_json_schema(), "run: benchctl recipes schema -o " + str(
        EXPORTED
    )


def test_every_mapping_of_fixed_keys_refuses_others_and_describes_itself() -> None:
    schema = recipe_json_schema()
    parts = [schema, *schema["$defs"].values()]
    for part in parts:
        assert part["additionalProperties"] is False
        assert part["description"]
        assert part["title"]
        for name, field in part["properties"].items():
            described = field.get("description") or schema["$defs"].get(field.get("$ref", "").split("/")[-1])
            assert described, name


def disagreements(schema: dict[str, Any], value: Any, root: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield where `value` breaks `schema`: the few keywords that ours uses, and an error for any other."""
    ignored_keys = {"title", "description", "default", "examples", "discriminator", "$defs", "$schema"}
    for keyword, rule in schema.items():
        match keyword:
            case _ if keyword in ignored_keys:
                continue
            case "$ref":
                yield from disagreements(root["$defs"][rule.split("/")[-1]], value, root, path)
            case "anyOf":
                branches = [list(disagreements(branch, value, root, path)) for branch in rule]
                if all(branches):
                    yield from min(branches, key=len)
            case "oneOf":
                branches = [list(disagreements(branch, value, root, path)) for branch in rule]
                fitting = sum(not branch for branch in branches)
                if fitting > 1:
                    yield f"{path}: {fitting} branches fit"
                elif not fitting:
                    yield from min(branches, key=len)
            case "if":
                holds = not list(disagreements(rule, value, root, path))
                yield from disagreements(schema.get("then" if holds else "else", {}), value, root, path)
            case "then" | "else":
                continue
            case "type":
                kinds: dict[str, Any] = {"object": dict, "array": list, "string": str, "boolean": bool}
                kinds |= {"integer": int, "number": (int, float), "null": type(None)}
                wanted = [rule] if isinstance(rule, str) else rule
                fits = any(
                    isinstance(value, kinds[kind]) and (kind == "boolean") == isinstance(value, bool) for kind in wanted
                )
                if not fits:
                    yield f"{path}: {value!r} is no {rule}"
            case "const" | "enum":
                if value not in (rule if keyword == "enum" else [rule]):
                    yield f"{path}: {value!r} is not among {rule}"
            case "properties":
                for key in rule.keys() & (value.keys() if isinstance(value, dict) else set()):
                    yield from disagreements(rule[key], value[key], root, f"{path}.{key}")
            case "additionalProperties":
                if isinstance(value, dict):
                    for key in value.keys() - schema.get("properties", {}).keys():
                        if rule is False:
                            yield f"{path}: {key} is not allowed"
                        else:
                            yield from disagreements(rule, value[key], root, f"{path}.{key}")
            case "required":
                yield from (f"{path}: {key} is missing" for key in rule if isinstance(value, dict) and key not in value)
            case "items":
                for index, item in enumerate(value if isinstance(value, list) else []):
                    yield from disagreements(rule, item, root, f"{path}[{index}]")
            case "pattern":
                if isinstance(value, str) and not re.search(rule, value):
                    yield f"{path}: {value!r} does not match {rule}"
            case "minimum" | "maximum" | "exclusiveMinimum":
                number = isinstance(value, (int, float)) and not isinstance(value, bool)
                bad = (
                    {"minimum": value < rule, "maximum": value > rule, "exclusiveMinimum": value <= rule}
                    if number
                    else {}
                )
                if bad.get(keyword):
                    yield f"{path}: {value!r} against {keyword} {rule}"
            case "minItems" | "minLength" | "minProperties":
                if isinstance(value, (list, str, dict)) and len(value) < rule:
                    yield f"{path}: too short"
            case "maxLength":
                if isinstance(value, str) and len(value) > rule:
                    yield f"{path}: too long"
            case "patternProperties":
                for pattern, inner in rule.items():
                    for key in value if isinstance(value, dict) else ():
                        if re.search(pattern, key):
                            yield from disagreements(inner, value[key], root, f"{path}.{key}")
            case "propertyNames":
                yield from (d for key in value for d in disagreements(rule, key, root, f"{path}.{key}"))
            case _:
                raise AssertionError(f"this test does not know the keyword {keyword}")


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_editors_accept_every_shipped_recipe(name: str) -> None:
    schema = recipe_json_schema()
    assert list(disagreements(schema, read_document(shipped_recipes()[name]).data, schema)) == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"blcoks": 3}, ": blcoks is not allowed"),
        ({"blocks": 0}, ".blocks: 0 against minimum 1"),
        (
            {
                "engine": {"kind": "openai", "url": "http://127.0.0.1:1"},
                "arms": [{"name": "a", "speculation": {"type": "draft-smple"}}],
            },
            "draft-smple",
        ),
        ({"concurrency": [1, 0]}, ".concurrency: [1, 0] is no integer"),
        ({"concurrency": []}, ".concurrency: [] is no integer"),
        ({"rate": 0}, ".rate: 0 against exclusiveMinimum 0"),
        ({"sampling": {"temperature": [0, 11]}}, ".sampling.temperature: [0, 11] is no number"),
        ({"arms": [{"name": "a", "concurrency": 2}]}, ".arms[0]: concurrency is not allowed"),
        ({"arms": [{"name": "a", "matrix": {"depth": []}}]}, ".arms[0].matrix.depth: too short"),
    ],
)
def test_editors_refuse_what_the_loader_refuses(change: dict[str, Any], complaint: str) -> None:
    schema = recipe_json_schema()
    data = {**read_document(shipped_recipes()["quickstart"]).data, **change}
    assert complaint in "\n".join(disagreements(schema, data, schema))
