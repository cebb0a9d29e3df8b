"""A run as Markdown: in some twenty short lines for the thread of an issue, or for a model's page.

`model-index` has the form of Hugging Face's model cards (`huggingface_hub.repocard_data`); a page that does not read it
shows the table alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import yaml

from benchctl.analysis.outcome import find_outcome
from benchctl.reports.drafter import drafter_table
from benchctl.reports.first_screen import ScreenRow, first_screen, screen_rows
from benchctl.reports.render import markdown_code, markdown_table, markdown_text
from benchctl.reports.tables import provenance
from benchctl.text import one_line
from benchctl.words import conclusion, numbers
from benchctl.words import outcome as outcome_words
from benchctl.words.notices import grouped_warnings

if TYPE_CHECKING:
    from benchctl.analysis.results import Analysis
    from benchctl.data.store import RunData

_ROWS = 6
"""Of the table: the arms that must be seen, and as many others as there is room for."""


def paste(run: RunData, analysis: Analysis) -> str:
    """Return the conclusion, the table of baseline and arms, what a person feels, and what was measured on what."""
    baselines = sum(row.verdict is None for row in screen_rows(analysis))
    table, left_out = first_screen(analysis, max(1, _ROWS - baselines), brief=True)
    rows = markdown_table(replace(table, note=""))
    return "\n".join([concluded(analysis), "", rows, "", measured(run, analysis, table.note, left_out)])


def concluded(analysis: Analysis) -> str:
    """Return what was concluded: the first sentences in bold, then a line for each target."""
    first = f"**{markdown_text(f'{conclusion.headline(analysis)} {conclusion.fidelity(analysis)}'.strip())}**"
    of_targets = [f"- {markdown_text(sentence)}" for sentence in conclusion.sentences_of_sweep(analysis)]
    return "\n".join([first, *(["", *of_targets] if of_targets else [])])


def measured(run: RunData, analysis: Analysis, note: str, left_out: int = 0) -> str:
    """Return what a person feels, each task, models, engine, machine, extent and the run's name, a line each."""
    manifest = run.manifest
    lines = [outcome_words.felt(find_outcome(analysis), analysis), *_tasks(analysis), note]
    lines += [f"{name}: {value}" for name, value in provenance.glance(manifest)] if manifest else []
    blocks = "1 block" if analysis.blocks == 1 else f"{analysis.blocks} blocks"
    facts = [f"{len(manifest.prompts)} prompts, {blocks}" if manifest else blocks]
    facts += [f"{left_out} more arms"] if left_out else []
    warnings = len(grouped_warnings(analysis))
    facts += [f"{warnings} warning{'s' * (warnings > 1)}"] if warnings else []
    facts += [f"benchctl {manifest.benchctl_version}"] if manifest else []
    bullets = [f"- {markdown_text(line)}" for line in lines if line]
    return "\n".join([*bullets, f"- {markdown_text(', '.join(facts))}, run {markdown_code(analysis.run)}"])


def _tasks(analysis: Analysis) -> list[str]:
    """The speed-up of each task by each arm, an arm a line: for a single task there is nothing to add."""
    rows = [row for row in analysis.speedups if row.task in analysis.tasks and row.pooled]
    by_arm = {arm.arm: [row for row in rows if row.arm == arm.arm] for arm in analysis.verdicts}
    return [
        f"{arm} by task: {', '.join(f'{row.task} {numbers.ratio(row.pooled)}' for row in of_arm)}"
        for arm, of_arm in by_arm.items()
        if len(of_arm) > 1
    ][:_ROWS]


def card(run: RunData, analysis: Analysis, further: Sequence[tuple[RunData, Analysis]] = ()) -> str:
    """Return the card: results as YAML between lines of dashes, the conclusion, the table of all arms, acceptance.

    `further`: runs of the same target, whose acceptance stands beside this one's. Raises UsageError for another's.
    """
    table, _ = first_screen(analysis, None)
    data = yaml.safe_dump({"model-index": [_model(run, analysis)]}, sort_keys=False, allow_unicode=False, width=1000)
    lines = ["---", data.rstrip(), "---", "", "## Speculative decoding", "", concluded(analysis), ""]
    rows = markdown_table(replace(table, note=""))
    accepted = drafter_table([(run, analysis), *further])
    accepted_lines = ["### Acceptance", "", accepted, ""] if accepted else []
    return "\n".join([*lines, rows, "", *accepted_lines, measured(run, analysis, table.note)])


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
