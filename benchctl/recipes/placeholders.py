"""Placeholders: `{depth}` in a value of an arm stands for the values that the arm's matrix gives `depth`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, TypeVar

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
DESCRIBED = {"type": "string", "pattern": f"^{PLACEHOLDER.pattern}$", "description": "A key of the arm's matrix."}
"""A placeholder in JSON Schema."""


class _TakesPlaceholder:
    """Lets a placeholder pass where the type behind it would not take it."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(_value_or_placeholder, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        inner = handler(schema)
        branches = inner.pop("anyOf", None) or [inner]
        about = {} if branches == [inner] else inner
        return {**about, "anyOf": [*branches, DESCRIBED]}


def _value_or_placeholder(value: object, validate: core_schema.ValidatorFunctionWrapHandler) -> object:
    return value if isinstance(value, str) and PLACEHOLDER.fullmatch(value) else validate(value)


Value = TypeVar("Value")
if TYPE_CHECKING:
    OrPlaceholder = Annotated[Value | str, None]
else:

    class OrPlaceholder:
        """`OrPlaceholder[int]` is an integer, or the text `{key}`."""

        def __class_getitem__(cls, item: object) -> object:
            return Annotated[item, _TakesPlaceholder()]
