"""`blocks: auto`: block after block, until every arm's interval is narrow enough or a limit is met.

The intervals of such a run are wider, so that they hold the stated coverage although they were looked at after every
block (`benchctl.analysis.precision`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, groupby
from math import ceil

from benchctl.analysis.precision import half_widths
from benchctl.analysis.stopping import reason_in_words, why_stop
from benchctl.data.store import open_run
from benchctl.data.writer import RunWriter
from benchctl.measure.plan import CellPlan, make_plan
from benchctl.measure.prepare import Prepared
from benchctl.measure.progress import RunProgress
from benchctl.recipes.schema import FIRST_LOOK, AutoBlocks
from benchctl.text import spoken


def blocks_as_needed(
    rule: AutoBlocks, prepared: Prepared, writer: RunWriter, plan: list[CellPlan], progress: RunProgress
) -> Iterator[list[CellPlan]]:
    """Yield the cells of one block after the other: those of `plan`, which leaves out what is measured, and then more.

    `plan` is for the blocks that are sure to come: the first ones, and all that have begun.

    Begun blocks are counted in the manifest, and why it ended is stored there; a resumed run goes on by the same rule.
    """
    manifest = writer.manifest
    planned = {block: list(cells) for block, cells in groupby(plan, key=lambda cell: cell.block)}
    sure = max(FIRST_LOOK, manifest.blocks)
    for block in count():
        if block >= manifest.blocks:
            known = half_widths(open_run(writer.folder)) if block >= FIRST_LOOK else {}
            if known:
                progress.note(_told(rule, block, known, manifest.spent_s))
            manifest.stopped = why_stop(rule, block, manifest.spent_s, known)
            if manifest.stopped:
                writer.save()
                progress.note(f"Stopped after {block} blocks: {reason_in_words(rule, manifest.stopped)}.")
                return
            manifest.blocks = block + 1
            writer.save()
        cells = planned.get(block, [])
        if block >= sure:
            cells = make_plan(prepared.recipe, prepared.prompts, blocks=[block], ordering=manifest.ordering)
            progress.more(cells)
        if cells:
            yield cells


def _told(rule: AutoBlocks, blocks: int, known: dict[str, float | None], spent_s: float) -> str:
    widths = ", ".join(f"{arm} {'–' if width is None else f'±{100 * width:.1f} %'}" for arm, width in known.items())
    said = f"After {blocks} blocks: {widths}; wanted: ±{100 * rule.half_width:g} %."
    widest = max((width for width in known.values() if width is not None), default=0.0)
    more = ceil(blocks * (widest / rule.half_width) ** 2) - blocks  # widths fall with the root of blocks
    if more <= 0:
        return said
    limit = f"; {rule.max} are allowed" if blocks + more > rule.max else ""
    return f"{said} At this spread that takes about {more} more, {spoken(more * spent_s / blocks)}{limit}."
