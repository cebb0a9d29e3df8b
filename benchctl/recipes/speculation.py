"""How an arm speculates, in benchctl's names.

`{depth}` in a value of an arm stands for the values that the arm's matrix gives `depth`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeGuard, get_args

from pydantic import ConfigDict, Field

from benchctl.recipes.engine_spec import Strict

PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
DESCRIBED = {"type": "string", "pattern": f"^{PLACEHOLDER.pattern}$", "description": "A key of the arm's matrix."}
"""A placeholder in JSON Schema."""


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


class Speculation(Strict):
    """A setting of speculation in benchctl's names; each adapter maps them to the flags of the binary at hand."""

    type: SpeculationType | list[SpeculationType] = Field(
        description="A type, or several that work together; of some engines also a method by its own name.",
        examples=["draft-simple", "ngram-simple"],
    )
    max: int | None = Field(default=None, ge=1, le=MAX_DEPTH, description="Draft depth k: most draft tokens a round.")
    min: int | None = Field(default=None, ge=0, le=MAX_DEPTH, description="Fewest draft tokens worth verifying.")
    p_min: float | None = Field(default=None, ge=0, le=1, description="Drafting stops below this probability.")
    size_n: int | None = Field(default=None, ge=1, le=1024, description="n-gram types: length of the looked-up key.")
    size_m: int | None = Field(default=None, ge=1, le=1024, description="n-gram types: length of the copied draft.")
    min_hits: int | None = Field(default=None, ge=1, le=1024, description="n-gram types: hits before a draft is made.")
    options: dict[str, OptionValue] | None = Field(
        default=None,
        description="Further settings by the engine's own keys, of engines that take their own methods.",
        examples=[{"suffix_decoding_max_tree_depth": 16}],
    )

    @property
    def types(self) -> tuple[str, ...]:
        """The types as a tuple, whether a single type or several were named."""
        return (self.type,) if isinstance(self.type, str) else tuple(self.type)


def _take_placeholders(schema: dict[str, Any]) -> None:
    """Let editors take a placeholder for every value but `options`; it is filled in before a file is checked."""
    fields = schema["properties"]
    for key in fields.keys() - {"type", "options"}:
        fields[key]["anyOf"].append(DESCRIBED)
    word, words = fields["type"]["anyOf"]
    fields["type"]["anyOf"] = [word, DESCRIBED, words | {"items": {"anyOf": [words["items"], DESCRIBED]}}]


class WrittenSpeculation(Speculation):
    """A setting of speculation; a key of the arm's matrix may stand for any value."""

    model_config = ConfigDict(json_schema_extra=_take_placeholders)
