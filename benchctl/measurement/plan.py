"""The plan: which cell runs when, and which prompts each still has to answer."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby, zip_longest
from types import MappingProxyType
from typing import Protocol, TypeVar

from benchctl.data.record import Record
from benchctl.data.store import RunData, is_conflict
from benchctl.errors import UsageError
from benchctl.prompts.suite import PromptItem
from benchctl.recipes.groups import GroupKey
from benchctl.recipes.schema import MAX_BLOCKS, MAX_NAME, Arm, AutoBlocks, Recipe
from benchctl.text import one_line

T = TypeVar("T")

Key = tuple[int, str, str, int]
"""(block, arm, task, prompt_idx): `benchctl.data.record.Record.key`."""
CellKey = tuple[int, str]
"""(block, arm)."""
SEED_BITS = 31
"""Every engine takes seeds of so many bits, unsigned."""


@dataclass(frozen=True)
class CellPlan:
    """An engine process: an arm in a block, and its prompts; none, where it only has to be attested."""

    block: int
    order: int
    """Position within the block, from 0."""
    arm: Arm
    prompts: tuple[PromptItem, ...]
    group: GroupKey
    """The group of its arm (`Recipe.group_of`)."""

    @property
    def name(self) -> str:
        """Its name in messages, such as `block 1, spec_d4`."""
        return f"block {self.block + 1}, {self.arm.name}"


@dataclass(frozen=True)
class ArmCost:
    """Cost of a process of an arm."""

    overhead_s: float
    """Seconds for starting, warming up and stopping."""
    answer_s: float
    """Seconds for a prompt."""

    def cell(self, prompts: int) -> float:
        """Return the seconds of a process that answers so many prompts."""
        return self.overhead_s + prompts * self.answer_s

    def slower(self, factor: float) -> ArmCost:
        """Return the cost with everything slower by a factor, also the warm-up in the overhead."""
        return ArmCost(self.overhead_s * factor, self.answer_s * factor)


@dataclass(frozen=True)
class GroupPlan:
    """A group of a block: a baseline and its arms under a condition, as they must run on the same machine, in turn."""

    block: int
    key: GroupKey
    cells: tuple[CellPlan, ...]
    """In the order in which they run; of a resumed run those that are left."""

    @property
    def name(self) -> str:
        """Its name in messages, such as `block 1, kv_q8_0`."""
        return ", ".join(filter(None, (f"block {self.block + 1}", self.key.setups)))

    @property
    def setups(self) -> list[str | None]:
        """The setups whose engines and models it takes."""
        return list(dict.fromkeys(cell.arm.setup for cell in self.cells))


def groups_of(plan: Iterable[CellPlan]) -> list[GroupPlan]:
    """Return the groups of a plan in the order in which they run: what a machine measures without another between."""
    return [
        GroupPlan(block, key, tuple(cells))
        for (block, key), cells in groupby(plan, key=lambda cell: (cell.block, cell.group))
    ]


def rotated(values: Sequence[T], block: int) -> list[T]:
    """Return the values in the order of `block`: block 0 as they are, each further block begins a value later."""
    order = deque(values)
    order.rotate(-block)
    return list(order)


def mirrored(values: Sequence[T], block: int) -> list[T]:
    """Return the values in the order of `block` by a Williams design (E. J. Williams, 1949), in pairs of blocks.

    The second block of a pair is the first backwards: what drifts steadily meets every value alike, and what an
    arm leaves behind (heat, a clock, a cache) meets another arm after as few blocks as can be. Over n blocks where n is
    even, over 2n where it is odd, every value stands at every place, and follows every other, equally often.
    """
    count, pair = len(values), block // 2
    # An odd number has as many pairs as values: so that early ones differ in what follows what, they step by its half.
    shift = pair * (count + 1) // 2 if count % 2 else pair % (count // 2)
    row = [(index + 1) // 2 if index % 2 else -(index // 2) for index in range(count)]  # 0, 1, n-1, 2, n-2, ...
    return [values[(index + shift) % count] for index in (reversed(row) if block % 2 else row)]


def arms_of_block(recipe: Recipe, block: int) -> list[Arm]:
    """Return the recipe's arms in the order of `block`: its groups in turn, and the arms of each group, too.

    The arms of a group (and condition) stay neighbours, since each is compared with the baseline of that group.
    """
    groups: dict[GroupKey, list[Arm]] = {}
    for arm in recipe.arms:
        groups.setdefault(recipe.group_of(arm), []).append(arm)
    return [arm for arms in mirrored(list(groups.values()), block) for arm in mirrored(arms, block)]


def make_plan(
    recipe: Recipe,
    prompts: Sequence[PromptItem],
    done: Collection[Key] = (),
    blocks: Iterable[int] | None = None,
    *,
    unclosed: Collection[CellKey] = (),
    ended: Mapping[str, int] = MappingProxyType({}),
) -> list[CellPlan]:
    """Lay out blocks x arms x prompts, without what is `done`; a cell with nothing left is not in the plan.

    `blocks` numbers the blocks to lay out, from 0; by default those that the recipe is sure to measure. A cell that is
    `unclosed` is in the plan without a prompt. The prompts of each block begin a prompt later than those of the block
    before, so that the warm-up of an engine does not always fall on the same ones. `ended`: after how many blocks an
    arm ends; the others keep the order that they have with it, so that they stay balanced.
    """
    cells = []
    for block in range(recipe.first_blocks) if blocks is None else blocks:
        ordered = rotated(prompts, block)
        arms = [arm for arm in arms_of_block(recipe, block) if block < ended.get(arm.name, block + 1)]
        for order, arm in enumerate(arms):
            remaining = tuple(item for item in ordered if (block, arm.name, item.task, item.prompt_idx) not in done)
            if remaining or (block, arm.name) in unclosed:
                cells.append(CellPlan(block, order, arm, remaining, recipe.group_of(arm)))
    return cells


def turns(cells: Sequence[CellPlan]) -> Iterator[tuple[int, PromptItem, int]]:
    """Yield whose turn it is among cells whose engines are up together: (place in `cells`, prompt, order to record).

    Every prompt goes round the cells before the next does, in an order that is balanced over the prompts. A cell
    that is alone keeps its place within the block as its order.
    """
    if len(cells) == 1:
        yield from ((0, item, cells[0].order) for item in cells[0].prompts)
        return
    by_cell = [{(item.task, item.prompt_idx): item for item in cell.prompts} for cell in cells]
    keys = dict.fromkeys(key for prompts in by_cell for key in prompts)
    for number, key in enumerate(keys):
        for order, index in enumerate(mirrored(range(len(cells)), number)):
            if key in by_cell[index]:
                yield index, by_cell[index][key], order


def measured(run: RunData, prompts: int) -> set[Key]:
    """Return the measurements of `run` that need not be made again; `prompts`: how many each cell has.

    Every good answer counts, whichever process gave it. Overlapping requests alone are measured again where no
    single process answered all of them: fewer were in flight than their condition has.
    """
    answers: dict[CellKey, dict[Key, int]] = defaultdict(dict)
    for record in run.records:
        if record.phase == "measure" and (record.error is None or is_conflict(record)):
            answers[record.key[:2]][record.key] = record.attempt
    overlapping = {arm.name for arm in run.manifest.arms if arm.overlapping} if run.manifest else set()
    done: set[Key] = set()
    for (_, arm), attempts in answers.items():
        same_process = len(attempts) >= prompts and len(set(attempts.values())) == 1
        if same_process or arm not in overlapping:
            done |= attempts.keys()
    return done


def unclosed(run: RunData, done: Collection[Key]) -> set[CellKey]:
    """Return the cells of `done` measurements whose last process was not attested at its end, or never ended.

    Such a cell is resumed even where no answer is missing: another process is launched, warmed up, attested and
    stopped, and its attestation is that of the answers before it, too.
    """
    cells = run.manifest.cells if run.manifest else []
    last = {(cell.block, cell.arm): cell.status for cell in cells}
    return {cell for key in done if last.get(cell := key[:2]) != "finished"}


def remaining_plan(recipe: Recipe, prompts: Sequence[PromptItem], run: RunData | None) -> list[CellPlan]:
    """Return the cells that are sure to come; of a resumed `run` without what it has measured."""
    if run is None or run.manifest is None:
        return make_plan(recipe, prompts)
    done = measured(run, len(prompts))
    blocks = range(max(recipe.first_blocks, run.manifest.blocks))
    return make_plan(recipe, prompts, done, blocks, unclosed=unclosed(run, done), ended=run.manifest.ended())


@dataclass(frozen=True)
class EarlierProcesses:
    """The processes of a cell that ran before it was resumed."""

    attempt: int = -1
    """The highest number among them."""
    drafted: int = 0
    """Tokens that were drafted for their good answers, as far as reported."""


def earlier_processes(records: Iterable[Record]) -> dict[CellKey, EarlierProcesses]:
    """Return what each cell's processes left in the records of a run."""
    processes: dict[CellKey, EarlierProcesses] = defaultdict(EarlierProcesses)
    for record in records:
        cell = record.key[:2]
        counts = record.phase == "measure" and record.error is None
        processes[cell] = EarlierProcesses(
            max(processes[cell].attempt, record.attempt),
            processes[cell].drafted + (record.draft_n or 0 if counts else 0),
        )
    return dict(processes)


def idle_slots(recipe: Recipe, prompts: int) -> list[str]:
    """Return a sentence for every concurrency that so many prompts cannot keep up to the end of a cell."""
    concurrencies = sorted({arm.concurrency for arm in recipe.arms if arm.rate is None and arm.concurrency > 1})
    return [
        f"Concurrency {concurrency}: with {prompts} prompts there are less than {concurrency} requests in flight "
        f"for much of a cell. Use at least {2 * concurrency} prompts."
        for concurrency in concurrencies
        if prompts < 2 * concurrency
    ]


def with_blocks(recipe: Recipe, text: str) -> Recipe:
    """Return the recipe with another number of blocks, or `auto` and its own limits for that. Raises UsageError."""
    if text == "auto":
        return recipe if isinstance(recipe.blocks, AutoBlocks) else recipe.model_copy(update={"blocks": AutoBlocks()})
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= MAX_BLOCKS:
        got = one_line(text, 40)
        raise UsageError(f"Expected 1 to {MAX_BLOCKS} blocks, or auto; got '{got}'.", where="--blocks")
    return recipe.model_copy(update={"blocks": int(text)})


MANY_ARMS = 6
"""From so many arms on the baseline that they share is measured twice in every block."""
AGAIN = "-again"


def with_second_baseline(recipe: Recipe) -> Recipe:
    """Return the recipe with another cell of the baseline in every block, where many arms are compared with it alone.

    All their speed-ups share its noise; with m arms cells are best spent where it has some √m of them (Dunnett 1955).
    """
    first = recipe.arm(recipe.baseline)
    alike = all(recipe.group_of(arm) == recipe.group_of(first) and not arm.overlapping for arm in recipe.arms)
    if len(recipe.arms) <= MANY_ARMS or not alike or any(arm.again for arm in recipe.arms):
        return recipe
    second = first.model_copy(update={"name": f"{first.name}{AGAIN}", "again": True})
    if len(second.name) > MAX_NAME or any(arm.name == second.name for arm in recipe.arms):
        return recipe
    return recipe.model_copy(update={"arms": [*recipe.arms, second]})


def keep_matching(recipe: Recipe, patterns: Sequence[str]) -> Recipe:
    """Return the recipe with only the arms, with their baselines, and the tasks that a pattern matches.

    A pattern that matches no arm is taken as a pattern of tasks. The suite checks that it has such tasks.
    """
    names = dict.fromkeys(name for arm in recipe.arms for name in (arm.name, arm.of) if name is not None)
    arms = [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
    tasks = [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in names)]
    if arms:
        recipe = keep_only(recipe, arms)
    if tasks:
        recipe = recipe.model_copy(update={"prompts": recipe.prompts.model_copy(update={"tasks": tasks})})
    return recipe


def keep_only(recipe: Recipe, names: Sequence[str], option: str = "--only") -> Recipe:
    """Return the recipe with only the named arms and their baselines, in the recipe's order. Raises UsageError.

    `option`: which names them.
    An arm that is measured under several conditions may be named with a condition, or without: then under all.
    """
    valid = dict.fromkeys(name for arm in recipe.arms for name in (arm.of, arm.name) if name is not None)
    for name in names:
        if name not in valid:
            raise UsageError(f"There is no arm {name!r}.", where=option, fix=f"The arms are: {', '.join(valid)}.")
    chosen = [arm for arm in recipe.arms if arm.name in names or arm.of in names]
    compared = recipe.compared
    selected = {arm.name for arm in chosen} | {compared[arm.name].baseline for arm in chosen}
    arms = [arm for arm in recipe.arms if arm.name in selected]
    setups = [setup for setup in recipe.setups if any(arm.setup == setup.name for arm in arms)]
    first = {"engine": setups[0].engine, "models": setups[0].models} if setups else {}
    baseline = compared[arms[0].name].baseline
    return recipe.model_copy(update={"arms": arms, "setups": setups, "baseline": baseline, **first})


class _OfTask(Protocol):
    @property
    def task(self) -> str: ...


Tasked = TypeVar("Tasked", bound=_OfTask)


def by_turns(prompts: Iterable[Tasked]) -> list[Tasked]:
    """Return prompts, or their answers, a task at a time in turn, so that the next few are of different tasks."""
    tasks: dict[str, list[Tasked]] = {}
    for item in prompts:
        tasks.setdefault(item.task, []).append(item)
    return [item for turn in zip_longest(*tasks.values()) for item in turn if item is not None]


def spread_over_tasks(prompts: Iterable[PromptItem], count: int) -> tuple[PromptItem, ...]:
    """Return `count` prompts, taken from the tasks in turn, in the order of the suite."""
    order = list(prompts)
    chosen = {(item.task, item.prompt_idx) for item in by_turns(order)[:count]}
    return tuple(item for item in order if (item.task, item.prompt_idx) in chosen)


def spread_seed(number: int) -> int:
    """Return the seed of the answer with this number: another for each number below 2^31, far from its neighbours'.

    Generators that are seeded with consecutive numbers give correlated draws. llama-server seeds a Mersenne Twister
    (mt19937) with the number as it is: with the seeds 1 to 60 the baseline's own tokens fell 2 times beyond the
    likeliest 90 %, where 16.2 were expected (p = 2e-5). So the number is mixed first: a step of a Weyl sequence, then
    xor-shifts and odd multipliers, all modulo 2^31 and each a bijection (constants: those of splitmix32).
    """
    mask = (1 << SEED_BITS) - 1
    mixed = number * 0x9E3779B9 + 0x7F4A7C15 & mask
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        mixed ^= mixed >> shift
        mixed = mixed * factor & mask
    return mixed ^ mixed >> 15
