"""What fits into a budget, and the least that does."""

from __future__ import annotations

import pytest

from benchctl.errors import UsageError
from benchctl.experiments.tune.halving import fit, fresh_design, guesses, rung_blocks
from benchctl.measurement.plan import ArmCost
from benchctl.recipes.schema import Arm, Recipe
from benchctl.recipes.speculation import Speculation

SECOND = ArmCost(overhead_s=1.0, answer_s=1.0)


def recipe_of(arms: int) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "toy",
            "models": {"target": {"source": "t.gguf"}, "draft": {"source": "d.gguf"}},
            "prompts": {"suite": "s.json"},
            "arms": [
                {"name": "baseline"},
                *({"name": f"a{n}", "speculation": {"type": "ngram-simple"}} for n in range(arms)),
            ],
        }
    )


def test_too_short_a_budget_is_refused_with_the_least() -> None:
    recipe = recipe_of(4)
    costs = dict.fromkeys((arm.name for arm in recipe.arms), SECOND)
    # Two blocks of two cells with one prompt each, three of two cells with one prompt of each of two tasks.
    shortest_s = 2 * 2 * 2 + 3 * 2 * 3
    with pytest.raises(UsageError, match="25 s is too short") as refused:
        fit(recipe, costs, 6, 2, shortest_s - 1)
    assert refused.value.fix is not None and "--budget 1m" in refused.value.fix
    assert fit(recipe, costs, 6, 2, shortest_s).arms == ("a0",), "what just fits is one arm"


def test_a_larger_budget_holds_more_arms_and_then_more_prompts() -> None:
    recipe = recipe_of(8)
    costs = dict.fromkeys((arm.name for arm in recipe.arms), SECOND)
    designs = [fit(recipe, costs, 6, 2, minutes * 60) for minutes in (1, 2, 4, 10)]
    sizes = [(len(design.arms), design.prompts_per_block) for design in designs]
    assert sizes == sorted(sizes) and sizes[0][0] < 8 == sizes[-1][0] and sizes[-1][1] == 6
    assert designs[0].left_out == tuple(f"a{n}" for n in range(len(designs[0].arms), 8))
    spent = fit(recipe, costs, 6, 2, 120, spent_s=60)
    assert spent == designs[0] or len(spent.arms) < len(designs[1].arms), "what is spent is not there"


def test_no_rung_trusts_a_single_block() -> None:
    assert rung_blocks(left_s=0.0, rungs=3, block_s=10.0) == 2
    assert rung_blocks(left_s=90.0, rungs=2, block_s=10.0) == 4
    assert rung_blocks(left_s=9000.0, rungs=1, block_s=10.0) == 8


def test_fresh_blocks_are_at_least_three_and_take_all_prompts_where_five_fit() -> None:
    assert fresh_design(0.0, 4, 3, SECOND, SECOND, 12) == (3, 1)
    assert fresh_design(5 * 2 * 13.0, 4, 3, SECOND, SECOND, 12) == (5, None)
    blocks, limit = fresh_design(5 * 2 * 7.0, 4, 3, SECOND, SECOND, 12)
    assert (blocks, limit) == (5, 2), "two prompts of each of three tasks"
    assert fresh_design(1e6, 4, 3, SECOND, SECOND, 12) == (12, None)


def test_an_arm_with_a_draft_model_is_taken_to_be_slower_before_it_is_seen() -> None:
    recipe = recipe_of(1)
    recipe.arms.append(Arm(name="d", speculation=Speculation(type="draft-simple")))
    result = guesses(recipe, SECOND)
    assert result["a0"] == result["baseline"] == SECOND
    assert result["d"].answer_s > SECOND.answer_s
