"""The search itself: rungs of short blocks, after each of which the slower half of the arms is dropped.

Every block has the baseline and all remaining arms, each in a fresh process, and measures the next few prompts of
the suite. An arm's standing is its speed-up over all blocks that it was in. The rungs are in the manifest, so that a
search that was cut off is resumed where it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, zip_longest

from benchctl.data.manifest import Tuning, TuningRung
from benchctl.data.store import open_run
from benchctl.data.writer import RunWriter
from benchctl.experiments.tune.budget import FRESH_BLOCKS, FRESH_SHARE, ArmCost, block_cost, measured_costs, rung_blocks
from benchctl.experiments.tune.standings import Standing, any_drafted, best_yet, find_standings, rungs_of
from benchctl.measure.plan import CellPlan, make_plan, measured, unclosed
from benchctl.measure.prepare import Prepared
from benchctl.measure.progress import RunProgress
from benchctl.prompts.suite import PromptItem


def halving_blocks(prepared: Prepared, writer: RunWriter, progress: RunProgress) -> Iterator[list[CellPlan]]:
    """Yield the cells of one block after the other, until one arm is chosen; the rest of a search that was cut off."""
    manifest = writer.manifest
    tuning = manifest.tuning
    assert tuning is not None
    prompts = by_turns(prepared.prompts)
    while not tuning.ended:
        if not tuning.rungs:
            arms = [arm.name for arm in prepared.recipe.arms if arm.name != prepared.recipe.baseline]
            _open(tuning, arms, prepared, writer)
        rung = tuning.rungs[-1]
        progress.standing(_heading(tuning), [f"{len(rung.arms)} arms"] if len(tuning.rungs) == 1 else rung.arms)
        for block in range(rung.first_block, rung.first_block + rung.blocks):
            cells = _left_of(block, rung, tuning, prepared, writer, prompts)
            manifest.blocks = max(manifest.blocks, block + 1)
            writer.save()
            if cells:
                progress.more(cells)
                yield cells
            progress.standing(
                _heading(tuning), list(map(str, find_standings(open_run(writer.folder, check=False), rung.arms)))
            )
        _close(tuning, rung, prepared, writer, progress)


class Halving:
    """What `benchctl.measure.run` asks of a search."""

    blocks = staticmethod(halving_blocks)
    best_yet = staticmethod(best_yet)


def by_turns(prompts: tuple[PromptItem, ...]) -> list[PromptItem]:
    """Return the prompts a task at a time in turn, so that the next few are of different tasks."""
    tasks: dict[str, list[PromptItem]] = {}
    for item in prompts:
        tasks.setdefault(item.task, []).append(item)
    return [item for item in chain.from_iterable(zip_longest(*tasks.values())) if item is not None]


def _left_of(
    block: int, rung: TuningRung, tuning: Tuning, prepared: Prepared, writer: RunWriter, prompts: list[PromptItem]
) -> list[CellPlan]:
    each = tuning.prompts_per_block
    items = [prompts[place % len(prompts)] for place in range(block * each, (block + 1) * each)]
    recipe = prepared.recipe
    arms = [arm for arm in recipe.arms if arm.name in rung.arms or arm.name == recipe.baseline]
    earlier = open_run(writer.folder, check=False)
    done = measured(earlier, each)
    return make_plan(
        recipe.model_copy(update={"arms": arms}),
        items,
        done,
        [block],
        unclosed=unclosed(earlier, done),
        ordering=writer.manifest.ordering,
    )


def _open(tuning: Tuning, arms: list[str], prepared: Prepared, writer: RunWriter) -> None:
    """Begin a rung: as many blocks as its share of what is left allows."""
    costs = _costs(prepared, writer, tuning)
    baseline = prepared.recipe.baseline
    block_s = block_cost(arms, baseline, costs, tuning.prompts_per_block)
    blocks = rung_blocks(_search_left(prepared, writer, arms), len(rungs_of(len(arms))), block_s)
    first = sum(rung.blocks for rung in tuning.rungs)
    tuning.rungs.append(TuningRung(arms=arms, first_block=first, blocks=blocks))
    writer.save()


def _close(tuning: Tuning, rung: TuningRung, prepared: Prepared, writer: RunWriter, progress: RunProgress) -> None:
    """End a rung: the faster half stays, or fewer where the time left is too short for them."""
    searched = find_standings(open_run(writer.folder, check=False), tuning.rungs[0].arms)
    standings = [entrant for entrant in searched if entrant.arm in rung.arms]
    racing = [standing.arm for standing in standings if standing.races and any_drafted(searched)]
    keep = racing[: max(1, len(rung.arms) // 2)] if len(rung.arms) > 3 else racing[:1]
    costs, baseline = _costs(prepared, writer, tuning), prepared.recipe.baseline
    while len(keep) > 1:
        least = 2 * block_cost(keep, baseline, costs, tuning.prompts_per_block)
        if least <= _search_left(prepared, writer, keep):
            break
        keep = keep[: len(keep) // 2]
    rung.kept = keep
    progress.note(_rung_summary(len(tuning.rungs), standings, keep))
    if len(keep) > 1:
        _open(tuning, keep, prepared, writer)
        return
    tuning.ended, tuning.chosen = True, next(iter(keep), None)
    writer.save()


def _search_left(prepared: Prepared, writer: RunWriter, arms: list[str]) -> float:
    """Return the seconds that are left for searching, what the fresh data need put aside."""
    tuning = writer.manifest.tuning
    assert tuning is not None
    costs, tasks = _costs(prepared, writer, tuning), len({item.task for item in prepared.prompts})
    dearest = max(arms, key=lambda arm: costs[arm].cell(tasks))
    fresh = FRESH_BLOCKS[0] * block_cost([dearest], prepared.recipe.baseline, costs, tasks)
    return tuning.budget_s - max(FRESH_SHARE * tuning.budget_s, fresh) - tuning.timing_s - writer.manifest.spent_s


def _costs(prepared: Prepared, writer: RunWriter, tuning: Tuning) -> dict[str, ArmCost]:
    guessed = {arm.name: ArmCost(*tuning.guessed[arm.name]) for arm in prepared.recipe.arms}
    return measured_costs(open_run(writer.folder, check=False), guessed)


def _heading(tuning: Tuning) -> str:
    rung = tuning.rungs[-1]
    return f"Rung {len(tuning.rungs)} of {len(tuning.rungs) - 1 + len(rungs_of(len(rung.arms)))}, remaining"


def _rung_summary(number: int, standings: list[Standing], keep: list[str]) -> str:
    stay = ", ".join(str(standing) for standing in standings if standing.arm in keep)
    out = ", ".join(str(standing) for standing in standings if standing.arm not in keep)
    if not stay:
        return f"Rung {number}: no arm drafted anything that could be compared with no speculation ({out})."
    return f"Rung {number}: kept {stay}." + (f" Dropped: {out}." if out else "")
