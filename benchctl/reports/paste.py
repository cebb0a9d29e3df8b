"""A run in at most twelve lines of Markdown, readable as plain text, for the thread of an issue."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from benchctl.reports import conclusion
from benchctl.reports.first_screen import first_screen, screen_rows
from benchctl.reports.render import markdown_code, markdown_table, markdown_text
from benchctl.reports.tables import provenance

if TYPE_CHECKING:
    from benchctl.analysis.results import Analysis
    from benchctl.data.store import RunData

_ROWS = 6
"""Of the table: the other six lines are the conclusion, the table's head, two empty lines and what was measured."""


def paste(run: RunData, analysis: Analysis) -> str:
    """Return the conclusion, the table of baseline and arms, and what was measured on what.

    Where more must be seen than twelve lines hold (violations, say), there are more lines.
    """
    baselines = sum(row.verdict is None for row in screen_rows(analysis))
    table, left_out = first_screen(analysis, max(1, _ROWS - baselines))
    rows = markdown_table(replace(table, note=""))
    return "\n".join([concluded(analysis), "", rows, "", measured(run, analysis, table.note, left_out)])


def concluded(analysis: Analysis) -> str:
    """Return what was concluded, in bold."""
    return f"**{markdown_text(f'{conclusion.headline(analysis)} {conclusion.fidelity(analysis)}'.strip())}**"


def measured(run: RunData, analysis: Analysis, note: str, left_out: int = 0) -> str:
    """Return models, engine, machine, extent and the run's name, and the table's note, in a line."""
    manifest = run.manifest
    facts = [f"{name}: {markdown_text(str(value))}" for name, value in provenance.glance(manifest)] if manifest else []
    blocks = "1 block" if analysis.blocks == 1 else f"{analysis.blocks} blocks"
    facts.append(f"{len(manifest.prompts)} prompts, {blocks}" if manifest else blocks)
    facts += [f"{left_out} more arms"] if left_out else []
    warnings = len(conclusion.grouped_warnings(analysis))
    facts += [f"{warnings} warning{'s' * (warnings > 1)}"] if warnings else []
    version = f"benchctl {manifest.benchctl_version}, " if manifest else ""
    return f"{'; '.join(facts)}; {version}run {markdown_code(analysis.run)}. {markdown_text(note)}"
