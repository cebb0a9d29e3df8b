"""How an arm speculates, in benchctl's names: as a file writes it, and with its placeholders filled in.

`{depth}` in a value of an arm stands for the values that the arm's matrix gives `depth`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Literal, TypeGuard, TypeVar, get_args

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from benchctl.recipes.engine_spec import Strict

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


SpeculationName = Literal[
    "draft-simple",
    "draft-eagle3",
    "draft-mtp",
    "draft-dflash",
    "draft-dspark",
    "ngram-simple",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "ngram-cache",
]
"""benchctl's own names: an adapter maps those that its engine has to the engine's."""
SPECULATION_TYPES: tuple[str, ...] = get_args(SpeculationName)
SpeculationType = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$", max_length=64)]
"""A name of benchctl's, or a method by the engine's own name, where its adapter takes such names and checks them."""
NEEDS_DRAFT_MODEL: frozenset[str] = frozenset({"draft-simple", "draft-eagle3", "draft-dflash", "draft-dspark"})
"""Types that cannot work without `models.draft`. `draft-mtp` may find its head inside the target."""

MAX_DEPTH = 64
"""No engine verifies more draft tokens a round than this; larger depths are taken for typing errors."""

DRAFTS = ("draft-simple", "draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark")
COPIES = ("ngram-simple", "ngram-map-k", "ngram-map-k4v")
_COPYING = ("ngram", "suffix", "prompt-lookup")


def copies(type_name: str) -> bool:
    """Whether a type, by benchctl's name or an engine's, drafts text that it saw before: as much as it finds of it."""
    return type_name.lower().startswith(_COPYING)


def drafts_by_model(kind: object) -> TypeGuard[str]:
    """Whether `type` of a setting is a single type by which a model drafts, or a part of it."""
    return isinstance(kind, str) and not copies(kind)


def takes_draft(types: Iterable[str]) -> bool:
    """Whether a draft model may have a part in these types; of methods that are the engine's own it is assumed."""
    return any(name in DRAFTS or name not in SPECULATION_TYPES for name in types)


TAKEN_BY: dict[str, tuple[str, ...]] = {
    "max": (*DRAFTS, *COPIES, "ngram-mod"),
    "min": (*DRAFTS, "ngram-mod"),
    "p_min": DRAFTS,
    "size_n": (*COPIES, "ngram-mod"),
    "size_m": COPIES,
    "min_hits": COPIES,
}
"""Which speculation types a key has a meaning for; everywhere else an engine would ignore it silently."""

OptionScalar = bool | int | float | str
OptionValue = OptionScalar | list[OptionScalar] | list[list[OptionScalar]] | dict[str, OptionScalar]

_TYPE = Field(
    description="A type, or several that work together; of some engines also a method by its own name.",
    examples=["draft-simple", "ngram-simple"],
)
_Max = Annotated[int | None, Field(ge=1, le=MAX_DEPTH, description="Draft depth k: most draft tokens a round.")]
_Min = Annotated[int | None, Field(ge=0, le=MAX_DEPTH, description="Fewest draft tokens worth verifying.")]
_PMin = Annotated[float | None, Field(ge=0, le=1, description="Drafting stops below this probability.")]
_SizeN = Annotated[int | None, Field(ge=1, le=1024, description="n-gram types: length of the looked-up key.")]
_SizeM = Annotated[int | None, Field(ge=1, le=1024, description="n-gram types: length of the copied draft.")]
_MinHits = Annotated[int | None, Field(ge=1, le=1024, description="n-gram types: hits before a draft is made.")]
_Options = Annotated[
    dict[str, OptionValue] | None,
    Field(
        description="Further settings by the engine's own keys, of engines that take their own methods.",
        examples=[{"suffix_decoding_max_tree_depth": 16}],
    ),
]


class Speculation(Strict):
    """A setting of speculation in benchctl's names; each adapter maps them to the flags of the binary at hand."""

    type: SpeculationType | list[SpeculationType] = _TYPE
    max: _Max = None
    min: _Min = None
    p_min: _PMin = None
    size_n: _SizeN = None
    size_m: _SizeM = None
    min_hits: _MinHits = None
    options: _Options = None

    @property
    def types(self) -> tuple[str, ...]:
        """The types as a tuple, whether a single type or several were named."""
        return (self.type,) if isinstance(self.type, str) else tuple(self.type)


class WrittenSpeculation(Strict):
    """A setting of speculation; a key of the arm's matrix may stand for any value."""

    type: OrPlaceholder[SpeculationType] | list[OrPlaceholder[SpeculationType]] = _TYPE
    max: OrPlaceholder[_Max] = None
    min: OrPlaceholder[_Min] = None
    p_min: OrPlaceholder[_PMin] = None
    size_n: OrPlaceholder[_SizeN] = None
    size_m: OrPlaceholder[_SizeM] = None
    min_hits: OrPlaceholder[_MinHits] = None
    options: _Options = None
