"""The speculation types that the server has: for which architectures, with which options, and where each is.

A further one is a file beside the others in `serving/drafters` and an entry here. Imports nothing heavy: recipes are
checked against this table before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchctl.engines.transformers.architectures import Kind

_ALL: frozenset[Kind] = frozenset({"parallel", "sequential", "attention"})
_DRAFTERS = "benchctl.engines.transformers.serving.drafters"


@dataclass(frozen=True)
class Option:
    """A setting of a method: a number between bounds, or where `of` is bool a switch."""

    of: type[int] | type[float] | type[bool]
    low: float = 0
    high: float = 1
    """Bounds, both allowed."""

    def problem(self, value: object) -> str | None:
        """Return what is wrong with a value, as the rest of a sentence."""
        if self.of is bool:
            return None if isinstance(value, bool) else "is true or false"
        fits = not isinstance(value, bool) and isinstance(value, int if self.of is int else (int, float))
        if fits and self.low <= value <= self.high:  # type: ignore[operator]
            return None
        return f"is {'a whole number' if self.of is int else 'a number'} from {self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Method:
    """One speculation type."""

    place: str
    """`module:class` of its drafter, which is called with the decoder and the options."""
    kinds: frozenset[Kind] = _ALL
    lacking: str = ""
    """What the architectures of other kinds lack, as the end of a sentence."""
    options: Mapping[str, Option] = field(default_factory=dict)
    assisted: bool = False
    """Whether transformers' own assisted generation does it; its class is also given the depth and the draft model."""
    draft: bool = False
    """Whether it needs models.draft."""
    words: tuple[str, ...] = ()
    """Words of a recipe's speculation that mean something to it, beside `type`, `max` and `options`."""


def _assisted(name: str, *words: str, draft: bool = False, options: Mapping[str, Option] | None = None) -> Method:
    return Method(
        "benchctl.engines.transformers.serving.assisted:" + name,
        frozenset({"attention"}),
        "keeps a recurrent state, which transformers' assisted generation does not roll back; it refuses such models",
        options or {},
        assisted=True,
        draft=draft,
        words=words,
    )


_ENSEMBLE = {"assistant_ensemble_weight": Option(float, 0, 1)}
"""Lossy: what the draft says then counts, too."""
METHODS: Mapping[str, Method] = {
    "self-ssm": Method(
        f"{_DRAFTERS}.components:SelfSsm", frozenset({"parallel"}), "has no recurrence beside its attention"
    ),
    "self-linear": Method(
        f"{_DRAFTERS}.components:SelfLinear",
        frozenset({"sequential"}),
        "has no recurrent layers between attention layers",
        {"mlp": Option(bool)},
    ),
    "self-layerskip": Method(f"{_DRAFTERS}.layers:SelfLayerSkip", options={"skip": Option(float, 0.01, 0.99)}),
    "self-early-exit": Method(f"{_DRAFTERS}.layers:SelfEarlyExit", options={"exit_layer": Option(int, 1, 10_000)}),
    "assisted": _assisted("Assisted", draft=True, options=_ENSEMBLE),
    "assisted-universal": _assisted("AssistedUniversal", draft=True),
    "prompt-lookup": _assisted("PromptLookup", "size_n", "size_m"),
    "early-exit": _assisted("EarlyExit", options={"exit_layer": Option(int, 1, 10_000)}),
}
"""In the order in which they are told."""
ALIASES: Mapping[str, str] = {"draft-simple": "assisted", "ngram-simple": "prompt-lookup"}
"""benchctl's words for the same."""
_NOT_YET = "this version of benchctl does not have it"
REFUSED: Mapping[str, str] = {
    "self-swift": _NOT_YET,
    "self-clasp": _NOT_YET,
    "self-del": _NOT_YET,
    "self-knapspec": _NOT_YET,
    "draft-mtp": "transformers drafts with a multi-token head only in architectures whose class has one, and none of "
    "those that this server runs does",
}
"""Words that name something, and why it does not run here."""


def method_of(name: str) -> str:
    """Return the name of a method by any of its words."""
    return ALIASES.get(name, name)
