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
}
"""In the order in which they are told."""
