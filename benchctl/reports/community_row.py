"""A run as rows of the tables that people keep: card, build, file, context, rate alone and with speculation, memory.

The columns are those that such tables and their issue forms ask for (qwen38-mtp's README, club-3090's BENCHMARKS.md).
What was not reported is a dash, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from benchctl.analysis.cells import identity_of, setup_of
from benchctl.analysis.results import ALL_TASKS
from benchctl.reports.columns import Column, Name, Table, numeric
from benchctl.reports.first_screen import ScreenRow, screen_rows
from benchctl.reports.render import markdown_table
from benchctl.reports.tables.provenance import cards, weights_of
from benchctl.text import percent
from benchctl.words import numbers

if TYPE_CHECKING:
    from benchctl.analysis.results import Analysis
    from benchctl.data.store import RunData


def rows(run: RunData, analysis: Analysis) -> str:
    """Return a Markdown table with a row an arm that speculates, in the order of the recipe."""
    manifest = run.manifest
    memory = {row.arm: row.device_bytes or row.resident_bytes for row in analysis.resources}
    prefill = {row.arm: row.prompt_tok_per_sec_median for row in analysis.throughput if row.task == ALL_TASKS}
    recipe: Mapping[str, Any] = manifest.recipe if manifest else {}

    def identity(row: ScreenRow) -> Any:  # noqa: ANN401 - None, or the manifest's arm
        return identity_of(manifest, row.arm)

    def setup(row: ScreenRow) -> Any:  # noqa: ANN401 - of the arm, or the whole run's
        return setup_of(manifest, getattr(identity(row), "setup", None)) or manifest

    def target(row: ScreenRow) -> str | None:
        model = getattr(setup(row), "target", None)
        name = model.source.rstrip("/").rpartition("/")[2] if model else None
        weights = weights_of(model.facts) if model else None
        return " ".join(filter(None, (name, weights))) or None

    def depth(row: ScreenRow) -> Any:  # noqa: ANN401 - a number, or None
        return (getattr(identity(row), "speculation", None) or {}).get("max")

    def kv_type(row: ScreenRow) -> str:
        recorded: Mapping[str, Any] = next((arm for arm in recipe.get("arms") or [] if arm.get("name") == row.arm), {})
        chosen = (recorded.get("cache_type") or {}).get("target")
        return chosen or "engine's own"

    def by_task(row: ScreenRow) -> str | None:
        speeds = [speed for speed in analysis.speedups if speed.arm == row.arm and speed.task in analysis.tasks]
        rates = [
            f"{speed.task} {numbers.rate(speed.baseline_rate)} → {numbers.rate(speed.decode_rate)}" for speed in speeds
        ]
        return ", ".join(rates) if len(rates) > 1 else None

    def accepted(row: ScreenRow) -> str | None:
        counted = analysis.acceptance_of(row.arm)
        if counted is None or counted.rate is None:
            return None
        length = "" if counted.acceptance_length is None else f", length {numbers.decimal(counted.acceptance_length)}"
        return f"{percent(counted.rate, counted.doubt)}{length}"

    def memories(row: ScreenRow) -> str | None:
        alone, with_arm = memory.get(analysis.compared[row.arm].baseline), memory.get(row.arm)
        return None if alone is None or with_arm is None else f"{numbers.size(alone)} → {numbers.size(with_arm)}"

    sampling = recipe.get("sampling") or {}
    engine = manifest.engine if manifest else None
    columns: list[Column[ScreenRow]] = [
        Column("Card", lambda _: _card_or_processor(manifest.machine) if manifest else None),
        Column("Build", lambda _: f"{engine.kind} {engine.version or engine.build or ''}" if engine else None),
        Column("Target", target),
        Column("Context", lambda _: (recipe.get("engine") or {}).get("context")),
        Column("KV", kv_type),
        Column("Sampling", lambda _: f"T {sampling.get('temperature')}" if sampling else None),
        Column("Arm", "arm", Name),
        Column("Type", lambda row: "+".join(identity(row).types) if identity(row) else None),
        numeric("Depth", depth),
        numeric("tok/s alone", lambda row: row.alone, numbers.rate),
        numeric("tok/s with", "rate", numbers.rate),
        numeric("Speed-up", "speedup", numbers.ratio),
        Column("95 %", lambda row: row.ends, numbers.interval),
        Column("By task, tok/s", by_task, optional=True),
        Column("Accepted", accepted),
        numeric("Prefill tok/s", lambda row: prefill.get(row.arm), numbers.rate),
        Column("Memory", memories),
        Column("Output", "verdict.lossless"),
    ]
    shown = [row for row in screen_rows(analysis) if row.verdict is not None and not row.inactive]
    return markdown_table(Table("rows", "Rows", columns, shown))


def _card_or_processor(machine: Mapping[str, Any]) -> str:
    cores = machine.get("cores")
    processor = f"{machine.get('cpu') or 'processor not known'}{f', {cores} cores' if cores else ''}"
    return "; ".join(cards(machine)) or processor
