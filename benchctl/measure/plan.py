"""The plan: which cell runs when, and which prompts each still has to answer."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from benchctl.data.store import RunData, is_conflict
from benchctl.errors import UsageError
from benchctl.prompts.suite import PromptItem
from benchctl.recipes.schema import MAX_BLOCKS, Arm, AutoBlocks, Recipe
from benchctl.text import one_line

T = TypeVar("T")

Key = tuple[int, str, str, int]
"""(block, arm, task, prompt_idx): `benchctl.data.record.Record.key`."""


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


def rotated(arms: Sequence[T], block: int) -> list[T]:
    """Return the arms in the order of `block`: block 0 as the recipe has them, each further one begins one arm later.

    So no arm always runs first on a cool machine or last on a warm one.
    """
    order = deque(arms)
    order.rotate(-block)
    return list(order)


def arms_of_block(recipe: Recipe, block: int) -> list[Arm]:
    """Return the recipe's arms in the order of `block`: its conditions rotated, and the arms of each condition too.

    The arms of a condition stay neighbours, since each is compared with the baseline of that condition.
    """
    conditions: dict[tuple[int, float | None, float | None], list[Arm]] = {}
    for arm in recipe.arms:
        conditions.setdefault(arm.condition, []).append(arm)
    return [arm for arms in rotated(list(conditions.values()), block) for arm in rotated(arms, block)]


def make_plan(
    recipe: Recipe, prompts: Sequence[PromptItem], done: Collection[Key] = (), blocks: Iterable[int] | None = None
) -> list[CellPlan]:
    """Lay out blocks x arms x prompts, without what is `done`; a cell with nothing left is not in the plan.

    `blocks` numbers the blocks to lay out, from 0; by default those that the recipe is sure to measure.
    """
    cells = []
    for block in range(recipe.first_blocks) if blocks is None else blocks:
        for order, arm in enumerate(arms_of_block(recipe, block)):
            left = tuple(item for item in prompts if (block, arm.name, item.task, item.prompt_idx) not in done)
            if left:
                cells.append(CellPlan(block=block, order=order, arm=arm, prompts=left))
    return cells


def turns(cells: Sequence[CellPlan]) -> Iterator[tuple[int, PromptItem, int]]:
    """Yield whose turn it is among cells whose engines are up together: (place in `cells`, prompt, order to record).

    Every prompt goes round the cells before the next one does, and each begins one cell later than the one before it. A
    cell that is alone keeps its place within the block as its order.
    """
    if len(cells) == 1:
        yield from ((0, item, cells[0].order) for item in cells[0].prompts)
        return
    wanted = [{(item.task, item.prompt_idx): item for item in cell.prompts} for cell in cells]
    every = dict.fromkeys(key for prompts in wanted for key in prompts)
    for number, key in enumerate(every):
        for order, place in enumerate(rotated(range(len(cells)), number)):
            if key in wanted[place]:
                yield place, wanted[place][key], order


def measured(run: RunData, prompts: int) -> set[Key]:
    """Return the measurements of `run` that need not be made again; `prompts` is how many each cell is asked.

    A cell that answered everything and was then cut off, before its engine was attested for the last time, is not
    among them: nothing is missing that could finish it, and what it measured was never confirmed. Nor is one of
    overlapping requests that no one process answered whole: it had less company than its condition says.
    """
    processes: dict[tuple[int, str], dict[Key, int]] = defaultdict(dict)
    for record in run.records:
        if record.phase == "measure" and (record.error is None or is_conflict(record)):
            processes[record.key[:2]][record.key] = record.attempt
    arms, cells = (run.manifest.arms, run.manifest.cells) if run.manifest else ([], [])
    together = {arm.name for arm in arms if arm.overlapping}
    status = {(cell.block, cell.arm): cell.status for cell in cells}
    done: set[Key] = set()
    for cell, answers in processes.items():
        complete = len(answers) >= prompts
        in_part = cell[1] in together and (not complete or len(set(answers.values())) > 1)
        if not in_part and (not complete or status.get(cell) == "finished"):
            done |= answers.keys()
    return done


def idle_slots(recipe: Recipe, prompts: int) -> list[str]:
    """Return a sentence for every concurrency that so many prompts cannot keep up to the end of a cell."""
    asked = sorted({arm.concurrency for arm in recipe.arms if arm.rate is None and arm.concurrency > 1})
    return [
        f"Concurrency {one}: with {prompts} prompts there are less than {one} requests in flight for much of a cell. "
        f"Ask {2 * one} prompts at least."
        for one in asked
        if prompts < 2 * one
    ]


def with_blocks(recipe: Recipe, text: str) -> Recipe:
    """Return the recipe with another number of blocks, or `auto` and its own limits for that. Raises UsageError."""
    if text == "auto":
        return recipe if isinstance(recipe.blocks, AutoBlocks) else recipe.model_copy(update={"blocks": AutoBlocks()})
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= MAX_BLOCKS:
        got = one_line(text, 40)
        raise UsageError(f"Expected 1 to {MAX_BLOCKS} blocks, or auto; got '{got}'.", where="--blocks")
    return recipe.model_copy(update={"blocks": int(text)})


def keep_only(recipe: Recipe, names: Sequence[str]) -> Recipe:
    """Return the recipe with only the named arms and their baselines, in the recipe's order. Raises UsageError.

    An arm that is measured under several conditions may be named with one of them, or without: then under all.
    """
    known = dict.fromkeys(name for arm in recipe.arms for name in (arm.of, arm.name) if name is not None)
    for name in names:
        if name not in known:
            raise UsageError(f"There is no arm {name!r}.", where="--only", fix=f"The arms are: {', '.join(known)}.")
    asked = [arm for arm in recipe.arms if arm.name in names or arm.of in names]
    wanted = {arm.name for arm in asked} | {recipe.baseline_of(arm).name for arm in asked}
    arms = [arm for arm in recipe.arms if arm.name in wanted]
    return recipe.model_copy(update={"arms": arms, "baseline": recipe.baseline_of(arms[0]).name})
