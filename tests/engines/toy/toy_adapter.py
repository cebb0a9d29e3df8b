"""`toy-serve`, declared: what recipes may say of it, and where its code is. It imports floor 0 alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from benchctl.recipes.adapters import Adapter
from benchctl.recipes.engine_spec import LaunchedEngineSpec
from benchctl.recipes.options import read_flags


class ToySpec(LaunchedEngineSpec):
    """The keys of `engine` in a recipe of `kind: toy`: those of every engine that is launched, and one of its own."""

    kind: Literal["toy"] = Field(description="toy-serve, which repeats its prompt.")
    greeting: str | None = Field(default=None, description="What it says when it starts.")


def lossy(argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """With `--guess` it accepts what it looked up without comparing."""
    return ["guessed acceptance"] if any(name == "guess" for name, _ in read_flags(argv)) else []


ADAPTER = Adapter(
    spec=ToySpec,
    engine="tests.engines.toy.toy_engine:ToyEngine",
    inventory="tests.engines.toy.toy_engine:inventory",
    model_format="gguf",
    lossy=lossy,
)
