"""A run as Markdown: in at most twelve lines for the thread of an issue, or for a model's page.

`model-index` has the form of Hugging Face's model cards (`huggingface_hub.repocard_data`); a page that does not read it
shows the table alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import yaml

from benchctl.reports.first_screen import ScreenRow, first_screen, screen_rows
from benchctl.reports.render import markdown_code, markdown_table, markdown_text
from benchctl.reports.tables import provenance
from benchctl.text import one_line
from benchctl.words import conclusion
from benchctl.words.notices import grouped_warnings
from benchctl.words.scope import scope_lines

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
    warnings = len(grouped_warnings(analysis))
    facts += [f"{warnings} warning{'s' * (warnings > 1)}"] if warnings else []
    notes = " ".join([note, *scope_lines(analysis.losslessness)]).strip()
    version = f"benchctl {manifest.benchctl_version}, " if manifest else ""
    return f"{'; '.join(facts)}; {version}run {markdown_code(analysis.run)}. {markdown_text(notes)}"


def card(run: RunData, analysis: Analysis) -> str:
    """Return the card: results as YAML between lines of dashes, the conclusion, the table of all arms."""
    table, _ = first_screen(analysis, None)
    data = yaml.safe_dump({"model-index": [_model(run, analysis)]}, sort_keys=False, allow_unicode=False, width=1000)
    lines = ["---", data.rstrip(), "---", "", "## Speculative decoding", "", concluded(analysis), ""]
    rows = markdown_table(replace(table, note=""))
    return "\n".join([*lines, rows, "", measured(run, analysis, table.note)])


def _model(run: RunData, analysis: Analysis) -> dict[str, Any]:
    manifest = run.manifest
    prompts = len(manifest.prompts) if manifest else len({(record.task, record.prompt_idx) for record in run.records})
    suite = ((manifest.recipe.get("prompts") or {}).get("suite") if manifest else None) or analysis.recipe
    dataset = {"type": one_line(str(suite).rpartition("/")[2], 80), "name": f"{prompts} prompts"}
    metrics = [metric for row in screen_rows(analysis) for metric in _metrics(row)]
    source = (manifest.target.source if manifest else None) or analysis.recipe
    name = one_line(source.removeprefix("hf:").rpartition("/")[2], 120)
    return {"name": name, "results": [{"task": {"type": "text-generation"}, "dataset": dataset, "metrics": metrics}]}


def _metrics(row: ScreenRow) -> list[dict[str, Any]]:
    """Return speed-up and acceptance of an arm, with what a reader must know of them; none of a baseline."""
    verdict = row.verdict
    if verdict is None or row.inactive:
        return []
    arm_args: dict[str, Any] = {"arm": one_line(row.arm, 160), "output": verdict.lossless}
    ends = {"interval_95": [round(row.ends.low, 3), round(row.ends.high, 3)]} if row.ends else {}
    doubt = {"acceptance": verdict.acceptance_doubt} if verdict.acceptance_doubt else {}
    values = (
        ("speedup", "speed-up over no speculation", row.speedup, {**arm_args, **ends}),
        ("acceptance", "draft tokens accepted", verdict.acceptance, {**arm_args, **doubt}),
    )
    return [
        {"type": kind, "name": f"{name} ({arm_args['arm']})", "value": round(value, 3), "args": args}
        for kind, name, value, args in values
        if value is not None
    ]
