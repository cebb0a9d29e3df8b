"""The plan: which cell runs when, and which prompts each still has to answer."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from benchctl.errors import UsageError
from benchctl.prompts.suite import PromptItem
from benchctl.recipes.schema import Arm, Recipe
from benchctl.runs.store import RunData

Key = tuple[int, str, str, int]
"""(block, arm, task, prompt_idx): `benchctl.records.Record.key`."""


@dataclass(frozen=True)
class CellPlan:
    """One engine process: an arm in a block, and the prompts it is asked."""

    block: int
    order: int
    """Position within the block, from 0."""
    arm: Arm
    prompts: tuple[PromptItem, ...]

    @property
    def name(self) -> str:
        """Such as `block 1, spec_d4`: what messages call it."""
        return f"block {self.block + 1}, {self.arm.name}"


def rotated(arms: Sequence[Arm], block: int) -> list[Arm]:
    """Return the arms in the order of `block`: block 0 as the recipe has them, each further one begins one arm later.

    So no arm always runs first on a cool machine or last on a warm one.
    """
    order = deque(arms)
    order.rotate(-block)
    return list(order)


def make_plan(recipe: Recipe, prompts: Sequence[PromptItem], done: Collection[Key] = ()) -> list[CellPlan]:
    """Lay out blocks x arms x prompts, without what is `done`; a cell with nothing left is not in the plan."""
    cells = []
    for block in range(recipe.blocks):
        for order, arm in enumerate(rotated(recipe.arms, block)):
            left = tuple(item for item in prompts if (block, arm.name, item.task, item.prompt_idx) not in done)
            if left:
                cells.append(CellPlan(block=block, order=order, arm=arm, prompts=left))
    return cells


def measured(run: RunData, prompts: int) -> set[Key]:
    """Return the measurements of `run` that need not be made again; `prompts` is how many each cell is asked.

    A cell that answered everything and was then cut off, before its engine was attested for the last time, is not
    among them: nothing is missing that could finish it, and what it measured was never confirmed.
    """
    done = {record.key for record in run.records if record.phase == "measure" and record.error is None}
    cells = run.manifest.cells if run.manifest else []
    status = {(cell.block, cell.arm): cell.status for cell in cells}
    answers = Counter(key[:2] for key in done)
    unconfirmed = {cell for cell, count in answers.items() if count >= prompts and status.get(cell) != "finished"}
    return {key for key in done if key[:2] not in unconfirmed}


def keep_only(recipe: Recipe, names: Sequence[str]) -> Recipe:
    """Return the recipe with only the named arms and its baseline, in the recipe's order. Raises UsageError."""
    known = [arm.name for arm in recipe.arms]
    for name in names:
        if name not in known:
            raise UsageError(f"There is no arm {name!r}.", where="--only", fix=f"The arms are: {', '.join(known)}.")
    wanted = {*names, recipe.baseline}
    return recipe.model_copy(update={"arms": [arm for arm in recipe.arms if arm.name in wanted]})
