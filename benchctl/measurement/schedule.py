"""Which cells a run measures: what is missing, disturbed cells once more, further blocks with `blocks: auto`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, groupby
from math import ceil, expm1

from benchctl.analysis.conditions.split import split
from benchctl.analysis.frame import make_frame
from benchctl.analysis.precision import Look, look, why_stop
from benchctl.data.manifest import Manifest
from benchctl.data.store import RunData, open_run
from benchctl.data.writer import RunWriter
from benchctl.measurement.plan import CellPlan, make_plan, remaining_plan
from benchctl.measurement.prepare import Prepared
from benchctl.measurement.progress import RunProgress
from benchctl.measurement.runner import Search
from benchctl.prompts.suite import PromptItem
from benchctl.recipes.schema import AutoBlocks, Recipe
from benchctl.text import plural, spoken
from benchctl.words.stopping import decisions, stop_reason


@dataclass(frozen=True)
class Schedule:
    """Which cells a run measures, in which order."""

    plan: list[CellPlan]
    """The cells that are sure to come, without what is measured already."""
    batches: Iterator[list[CellPlan]]
    """The cells in the order in which they are measured, further ones as they are decided on."""
    open_ended: bool
    """Whether more than `plan` may come."""


def schedule_of(
    prepared: Prepared,
    writer: RunWriter,
    earlier: RunData | None,
    progress: RunProgress,
    search: Search | None,
    *,
    on_cluster: bool,
) -> Schedule:
    """Return what a run still has to measure; `search` chooses the cells of a run that searches for the fastest arm."""
    recipe, prompts, manifest = prepared.recipe, prepared.prompts, writer.manifest
    plan = [] if manifest.tuning else remaining_plan(recipe, prompts, earlier)
    if search is not None:
        return Schedule(plan, search.blocks(prepared, writer, progress), open_ended=True)
    if isinstance(recipe.blocks, AutoBlocks):
        return Schedule(plan, blocks_as_needed(recipe.blocks, prepared, writer, plan, progress), open_ended=True)
    batches = iter([plan]) if on_cluster else fixed_blocks(plan, recipe, prompts, writer, progress)
    return Schedule(plan, batches, open_ended=False)


def fixed_blocks(
    plan: list[CellPlan], recipe: Recipe, prompts: Sequence[PromptItem], writer: RunWriter, progress: RunProgress
) -> Iterator[list[CellPlan]]:
    """Yield the plan, and then the disturbed cells (`Frame.disturbed`) to measure again, each once.

    Their first records are kept, and none counts. Cells of `interleaved` blocks stay: their pairs ran side by side.
    """
    yield plan
    manifest = writer.manifest
    if recipe.schedule == "interleaved" or manifest.tuning is not None:
        return
    repeated = {(cell.block, cell.arm) for cell in manifest.cells if cell.discarded}
    slower: dict[tuple[int, str], float] = {}
    for group in split(open_run(writer.folder, check=False)):
        frame = make_frame(group.run.records, group.run.manifest, group.baseline)
        for arm, block in zip(*frame.disturbed.nonzero(), strict=True):
            slower[frame.blocks[block], frame.arms[arm]] = -expm1(-frame.slowness[arm, block])
    cells = [
        cell
        for cell in make_plan(recipe, prompts, blocks=range(max(recipe.first_blocks, manifest.blocks)))
        if (cell.block, cell.arm.name) in slower.keys() - repeated
    ]
    for cell in cells:
        reason = f"it ran {100 * slower[cell.block, cell.arm.name]:.0f} % slower than the arm's median cell"
        for stored in manifest.cells:
            if (stored.block, stored.arm) == (cell.block, cell.arm.name):
                stored.discarded = reason
        progress.note(f"warning: {cell.name}: measured again, since {reason}.")
    if cells:
        writer.save()
        progress.more(cells)
        yield cells


def blocks_as_needed(
    rule: AutoBlocks, prepared: Prepared, writer: RunWriter, plan: list[CellPlan], progress: RunProgress
) -> Iterator[list[CellPlan]]:
    """Yield the cells block by block: those of `plan`, which leaves out what is measured, and then more.

    `plan` is for the blocks that are sure to come: the first ones, and all that have begun.

    Begun blocks are counted in the manifest, and what was decided and why it ended is stored there; a resumed run keeps
    the rule.
    """
    manifest = writer.manifest
    planned = {block: list(cells) for block, cells in groupby(plan, key=lambda cell: cell.block)}
    sure = max(rule.first_look, manifest.blocks)
    for block in count():
        if block >= manifest.blocks:
            looks = block >= rule.first_look
            estimates = look(open_run(writer.folder, check=False), rule) if looks else Look({}, {}, [])
            if estimates.half_widths:
                progress.note(_decisions_note(rule, block, estimates, manifest))
            manifest.decided |= estimates.decided
            manifest.stopped = why_stop(rule, block, manifest.spent_s, estimates)
            if manifest.stopped:
                writer.save()
                reason = stop_reason(
                    manifest.stopped.reason, half_width=rule.half_width, max_blocks=rule.max, minutes=rule.minutes
                )
                progress.note(f"Stopped after {block} {plural(block, 'repetition')}: {reason}.")
                return
            manifest.blocks = block + 1
            writer.save()
        cells = planned.get(block, [])
        if block >= sure:
            cells = make_plan(
                prepared.recipe,
                prepared.prompts,
                blocks=[block],
                ended=manifest.ended(),
            )
            progress.more(cells)
        if cells:
            yield cells


def _decisions_note(rule: AutoBlocks, blocks: int, estimates: Look, manifest: Manifest) -> str:
    if rule.half_width is not None:
        return _precision_note(rule, rule.half_width, blocks, estimates.half_widths, manifest.spent_s)
    new = {name: decision for name, decision in estimates.decided.items() if name not in manifest.decided}
    parts = [f"{name} is {decision.rpartition(' after ')[0]}" for name, decision in decisions(new).items()]
    parts += [f"open: {', '.join(estimates.open_arms)}"] if estimates.open_arms else []
    return f"After {blocks} repetitions: {'; '.join(parts)}."


def _precision_note(
    rule: AutoBlocks, half_width: float, blocks: int, half_widths: dict[str, float | None], spent_s: float
) -> str:
    widths = ", ".join(
        f"{arm} {'–' if width is None else f'±{100 * width:.1f} %'}" for arm, width in half_widths.items()
    )
    text = f"After {blocks} repetitions: {widths}; required: ±{100 * half_width:g} %."
    widest = max((width for width in half_widths.values() if width is not None), default=0.0)
    further = ceil(blocks * (widest / half_width) ** 2) - blocks  # widths fall with the root of blocks
    if further <= 0:
        return text
    limit = f"; at most {rule.max} are allowed" if blocks + further > rule.max else ""
    return f"{text} At this spread that takes about {further} more, {spoken(further * spent_s / blocks)}{limit}."
