"""What a stress test starts with: its recipe, how engines are started, and the texts."""

from __future__ import annotations

from dataclasses import dataclass

from benchctl.engines.base import Launch
from benchctl.engines.in_use import EngineInUse
from benchctl.errors import UsageError
from benchctl.experiments.stress.plan import Material, ScenarioName, turns_of
from benchctl.measurement.plan import by_turns
from benchctl.measurement.prepare import Prepared
from benchctl.prompts.context import load_context
from benchctl.prompts.load import load_suite
from benchctl.recipes.schema import Recipe


@dataclass(frozen=True)
class StressSettings:
    """What a stress test is asked for."""

    scenarios: tuple[ScenarioName, ...]
    named: frozenset[ScenarioName] = frozenset()
    """Those of them that must be possible with the engine; others are left out where they are not."""
    seed: int = 1
    budget_s: float = 600.0


def stressed_recipe(recipe: Recipe) -> Recipe:
    """Return the recipe as it is stressed: the baseline and the arms of its first condition, greedy answers.

    Raises UsageError where no arm speculates under that condition.
    """
    baseline = recipe.arm(recipe.baseline)
    group = recipe.group_of(baseline)
    arms = [arm for arm in recipe.arms if arm.speculation and recipe.group_of(arm) == group]
    if not arms:
        raise UsageError("The recipe has no arm that speculates, so there is nothing to stress.", where=recipe.name)
    greedy = recipe.sampling.model_copy(update={"temperature": 0.0, "top_k": 1, "ignore_eos": False})
    changes = {"sampling": greedy, "blocks": 1, "schedule": "blocks", "arms": [baseline, *arms]}
    return recipe.model_copy(update=changes)


def in_use(prepared: Prepared) -> dict[str, Launch]:
    """Return how each arm is started with its engine's own defaults. Raises UsageError where it cannot be."""
    launches = {}
    for arm in prepared.recipe.arms:
        setup = prepared.setup_of(arm.name)
        if not isinstance(setup.engine, EngineInUse):
            kind = setup.capabilities.kind
            fix = "Start two servers, without speculation and with it: --url URL --arm-url URL."
            raise UsageError(f"benchctl starts {kind} for measuring only.", where="engine.kind", fix=fix)
        launches[arm.name] = setup.engine.launch_in_use(arm, setup.models)
    return launches


def inapplicable(prepared: Prepared, settings: StressSettings) -> dict[str, str]:
    """Return the scenarios that an arm's engine cannot be put into, and why.

    Raises UsageError where such a one is named, or none is left.
    """
    reasons: dict[str, str] = {}
    for arm in prepared.recipe.arms:
        engine = prepared.setup_of(arm.name).engine
        if isinstance(engine, EngineInUse):
            reasons |= {name: engine.unprovoked[name] for name in settings.scenarios if name in engine.unprovoked}
    for name, reason in reasons.items():
        if name in settings.named or len(reasons) == len(settings.scenarios):
            raise UsageError(f"There is no {name} with this engine: {reason}.", where="--only", fix="Leave it out.")
    return reasons


def material_of(prepared: Prepared) -> Material:
    """Return the recipe's prompts and shipped ones in turn, so that drafts are rejected, too, and the load."""
    shipped = load_suite("many.json", recipe_folder=prepared.recipe_folder)
    others = [item.prompt for item in by_turns(shipped.select(None, None))]
    ours = [item.prompt for item in by_turns(prepared.prompts)]
    pairs = zip(ours[:16], others, strict=False)
    prompts = [turns_of(prompt) for pair in pairs for prompt in pair]
    load = [turns_of(prompt)[-1].text for prompt in others[len(ours[:16]) :]]
    return Material(tuple(prompts), tuple(load), load_context(None, recipe_folder=prepared.recipe_folder))
