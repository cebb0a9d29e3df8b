"""A run as Markdown: in short lines for the thread of an issue, or for a model's page.

`model-index` has the form of Hugging Face's model cards (`huggingface_hub.repocard_data`); a page that does not read it
shows the table alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import yaml

from benchctl.analysis.cells import identity_of
from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.outcome import find_outcome
from benchctl.data.identity import home_relative
from benchctl.reports.columns import Column, Table, numeric
from benchctl.reports.drafter import drafter_table
from benchctl.reports.first_screen import ScreenRow, decisive, first_screen, screen_rows
from benchctl.reports.render import markdown_block, markdown_code, markdown_lines, markdown_table, markdown_text
from benchctl.reports.reproduction import shell_command
from benchctl.reports.tables import provenance
from benchctl.text import for_strangers, one_line
from benchctl.words import conclusion, numbers
from benchctl.words import outcome as outcome_words
from benchctl.words.notices import grouped_warnings

if TYPE_CHECKING:
    from benchctl.analysis.results import Analysis
    from benchctl.data.store import RunData

WIDTH = 100
"""Characters of a line."""
_ROWS = 6
"""Of the table: the arms that must be seen, and as many others as there is room for."""


def paste(run: RunData, analysis: Analysis) -> str:
    """Return the conclusion, the arms, the tasks, what a person feels, what was measured on what, and two commands.

    A tracker shows each line as it is, so none is longer than `WIDTH` characters but for longer names and options.
    """
    baselines = sum(row.verdict is None for row in screen_rows(analysis))
    table, left_out = decisive(analysis, max(1, _ROWS - baselines), brief=True)
    lengths = {row.arm: row.acceptance_length for row in analysis.acceptance if row.task == ALL_TASKS}
    length: Column[Any] = numeric("Length", lambda row: lengths.get(row.arm), numbers.decimal, optional=True)
    columns = [replace(column, explain="") for column in table.columns]  # an entry of the list explains them
    columns[-2:-2] = [length]  # before the verdict and the correct answers
    tables: list[Table[Any]] = [replace(table, columns=columns, note=""), _tasks(analysis, table.rows)]
    explained = any(lengths.get(row.arm) is not None for row in table.rows)
    note = f"{table.explanation} Length: tokens of a verify step." if explained else table.explanation
    blocks = [concluded(analysis), *(markdown_table(table) for table in tables if table.rows)]
    blocks += [measured(run, analysis, note, left_out), *_commands(run, analysis)]
    return "\n\n".join(blocks)


def concluded(analysis: Analysis) -> str:
    """Return what was concluded: the first sentences in bold, then a line for each target."""
    first = markdown_lines(f"{conclusion.headline(analysis)} {conclusion.fidelity(analysis)}", width=WIDTH - 2)
    of_targets = [markdown_lines(text, begin="- ", width=WIDTH) for text in conclusion.sentences_of_sweep(analysis)]
    return "\n".join([f"**{first}**", *(["", *of_targets] if of_targets else [])])


def measured(run: RunData, analysis: Analysis, note: str, left_out: int = 0) -> str:
    """Return what a person feels, models, engine, machine, extent and the run's name, an entry of a list each."""
    manifest = run.manifest
    lines = [outcome_words.DEMONSTRATION] if manifest and provenance.demonstrates(manifest) else []
    lines += [outcome_words.felt(find_outcome(analysis), analysis), note]
    lines += [for_strangers(f"{name}: {value}") for name, value in provenance.glance(manifest)] if manifest else []
    blocks = "1 block" if analysis.blocks == 1 else f"{analysis.blocks} blocks"
    facts = [f"{len(manifest.prompts)} prompts, {blocks}" if manifest else blocks]
    facts += [f"{left_out} more arms"] if left_out else []
    warnings = len(grouped_warnings(analysis))
    facts += [f"{warnings} warning{'s' * (warnings > 1)}"] if warnings else []
    facts += [f"benchctl {manifest.benchctl_version}"] if manifest else []
    bullets = [markdown_lines(_shared(line), begin="- ", width=WIDTH) for line in lines if line]
    return "\n".join([*bullets, f"- {markdown_text(', '.join(facts))}, run {markdown_code(analysis.run)}"])


def _tasks(analysis: Analysis, rows: Sequence[Any]) -> Table[str]:
    """A row a task with the speed-up of every arm of the first table, as many as fit; empty for a single task."""
    speeds = {(row.arm, row.task): row.pooled for row in analysis.speedups if row.pooled}
    arms = [row.arm for row in rows if any((row.arm, task) in speeds for task in analysis.tasks)]
    shown, room = list[str](), WIDTH - max(map(len, analysis.tasks), default=0)
    for arm in arms:
        room -= len(markdown_text(arm)) + len(" | ")
        shown += [arm] if room > 0 else []
    columns: list[Column[str]] = [Column("Task", str)]
    columns += [numeric(arm, partial(_of_task, speeds, arm), numbers.ratio) for arm in shown]
    return Table("tasks", "Tasks", columns, analysis.tasks if len(analysis.tasks) > 1 and shown else [])


def _of_task(speeds: Mapping[tuple[str, str], float], arm: str, task: str) -> float | None:
    return speeds.get((arm, task))


def _commands(run: RunData, analysis: Analysis) -> list[str]:
    """The command lines of the arm with the most to gain and of its baseline, as blocks."""
    felt = find_outcome(analysis).felt
    if not felt:
        return []
    names = (analysis.compared[felt[0].arm].baseline, felt[0].arm)
    commands = [
        f"# {one_line(name)}\n{_shared(shell_command(identity, WIDTH))}"
        for name in names
        if (identity := identity_of(run.manifest, name)) is not None and identity.argv
    ]
    return [markdown_block("\n".join(commands), "sh")] if commands else []


def _shared(text: str) -> str:
    return for_strangers(home_relative(text))


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
    facts = provenance.glance(manifest) if manifest else []
    values = {kind: [str(value) for name, value in facts if name == kind] for kind in ("engine", "hardware")}
    measured_on = {kind: one_line("; ".join(texts), 160) for kind, texts in values.items() if texts}
    metrics = [metric for row in screen_rows(analysis) for metric in _metrics(row, measured_on)]
    source = (manifest.target.source if manifest else None) or analysis.recipe
    name = one_line(source.removeprefix("hf:").rpartition("/")[2], 120)
    return {"name": name, "results": [{"task": {"type": "text-generation"}, "dataset": dataset, "metrics": metrics}]}


def _metrics(row: ScreenRow, measured_on: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return speed-up and acceptance of an arm, with what a reader must know of them; none of a baseline."""
    verdict = row.verdict
    if verdict is None or row.inactive:
        return []
    arm_args: dict[str, Any] = {"arm": one_line(row.arm, 160), "output": verdict.lossless, **measured_on}
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
