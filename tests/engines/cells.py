"""What the engine floor's tests build cells from: arms, recipes, models, and the faults of the scripted server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchctl.engines.llama_cpp.adapter import LlamaCppSpec
from benchctl.models.resolved import ModelFile, ResolvedModel
from benchctl.recipes.engine_spec import EngineSpec
from benchctl.recipes.schema import Arm, ModelPair, ModelSpec, PromptsSpec, Recipe
from benchctl.recipes.speculation import Speculation

HERE = Path(__file__).parent


def resolved(path: Path) -> ResolvedModel:
    """A model as it lies there; its hash plays no part in these tests."""
    return ResolvedModel(str(path), (ModelFile(path, path.stat().st_size if path.is_file() else 0, "0" * 64),))


def recipe_of(*arms: Arm, engine: EngineSpec | None = None, draft: bool = True) -> Recipe:
    """A recipe around `arms`."""
    return Recipe(
        name="test",
        engine=engine or LlamaCppSpec(),
        models=ModelPair(target=ModelSpec(source="t"), draft=ModelSpec(source="d") if draft else None),
        prompts=PromptsSpec(suite="s"),
        arms=list(arms),
    )


def arm_of(type_: Any = None, args: Sequence[str] = (), **words: Any) -> Arm:
    """An arm; without a type the target alone."""
    return Arm(name="arm", speculation=Speculation(type=type_, **words) if type_ else None, args=list(args))


def fault(name: str, **more: str) -> Mapping[str, str]:
    """The environment that has the scripted server misbehave."""
    return {"FAKE_FAULT": name, "FAKE_HELP": str(HERE / "data" / "help_current.txt"), **more}
