"""What a replay finds at a fork: margins of the target alone, and its own noise. Plain, serialisable results."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from benchctl.analysis.result import Result


class ShapeMargin(Result):
    """The target alone at a fork, reading the common prefix in one way."""

    shape: Literal["decode", "verify", "prefill"]
    """Token by token, `width` tokens of the answer at a time, or prompt and answer at once."""
    width: int
    """Tokens in the last batch."""
    margin: float | None
    """How far it prefers the baseline's token to the arm's, in nats; negative when it prefers the arm's."""
    prefers: Literal["baseline", "arm", "another"]
    """Whose token is its likeliest."""


class Fork(Result):
    """The first token at which two answers differ."""

    index: int
    """Token index within the answer; by characters where token ids are absent (`unit`)."""
    unit: Literal["token", "character"]
    agreed_text: str
    """The end of the common text."""
    baseline_text: str
    arm_text: str
    """The two continuations. Untrusted text."""
    baseline_token: int | None = None
    arm_token: int | None = None
    width: int | None = None
    """Tokens that the arm verified in a round of this answer: 1 when it drafted nothing, `None` when not reported."""
    margin: float | None = None
    """How far the target alone prefers the baseline's token to the arm's, decoding as the baseline did; in nats."""
    margin_is_least: bool = False
    """Whether the margin may be larger still: the arm's token is not among the likeliest requested."""
    noise_floor: float | None = None
    """How far margins move at this width: `NoiseFloor.floor`."""
    shapes: tuple[ShapeMargin, ...] = ()
    shapes_absent: dict[str, str] = Field(default_factory=dict)
    """Shapes that this engine cannot read in, and why."""


class NoiseFloor(Result):
    """How far the target's margins move when it reads `width` tokens at once instead of one, without speculation."""

    width: int
    floor: float | None
    """Nats; 0 when nothing moved on any prefix, `None` when too few were measured."""
    method: str
    """How the floor was made, with its quantile and its sample."""
    prefixes: int
    """At which it was measured, chosen without regard to forks."""
    changed: int
    """Of these, how many moved at all."""
    median: float | None
    largest: float | None
    largest_at_small: float | None = None
    """The largest change at small margins, where tokens flip."""
    null_places: int
    """The null control: prefixes at which both likeliest tokens are known."""
    null_forks: int
    """Of these, at how many the target forks from itself."""
    by_prefill: bool = False
    """Whether it is the change when everything is read at once, for an engine that cannot read `width` tokens."""
