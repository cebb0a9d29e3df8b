"""A run as rows of the tables that people keep: card, build, file, context, rate alone and with speculation, memory.

The columns are those that such tables and their issue forms ask for (qwen38-mtp's README, club-3090's BENCHMARKS.md).
What was not reported is a dash, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from benchctl.analysis.cells import identity_of, setup_of
from benchctl.analysis.frame import ALL_TASKS
from benchctl.recipes.adapters import registered
from benchctl.recipes.speculation import takes_draft
from benchctl.reports.columns import Column, Name, Table, numeric
from benchctl.reports.first_screen import ScreenRow, screen_rows
from benchctl.reports.render import markdown_table
from benchctl.reports.tables.provenance import cards, engine_line, engine_settings, processor, source_name, weights_of
from benchctl.text import percent
from benchctl.words import numbers

if TYPE_CHECKING:
    from benchctl.analysis.results import Analysis
    from benchctl.data.manifest import EngineIdentity
    from benchctl.data.store import RunData
    from benchctl.engines.common.issue_form import IssueForm


def rows(run: RunData, analysis: Analysis) -> str:
    """Return a Markdown table with a row an arm that speculates, in the order of the recipe."""
    manifest = run.manifest
    memory = {row.arm: row.device_bytes or row.resident_bytes for row in analysis.resources if not row.device_reserved}
    prefill = {row.arm: row.prompt_tok_per_sec_median for row in analysis.throughput if row.task == ALL_TASKS}
    recipe: Mapping[str, Any] = manifest.recipe if manifest else {}

    def identity(row: ScreenRow) -> Any:  # noqa: ANN401 - None, or the manifest's arm
        return identity_of(manifest, row.arm)

    def setup(row: ScreenRow) -> Any:  # noqa: ANN401 - of the arm, or the whole run's
        return setup_of(manifest, getattr(identity(row), "setup", None)) or manifest

    def model(row: ScreenRow, role: str) -> str | None:
        identity_, named = identity(row), getattr(setup(row), role, None)
        if named is None or (role == "draft" and identity_ and not takes_draft(identity_.types)):
            return None
        return " ".join(filter(None, (source_name(named.source), weights_of(named.facts))))

    def depth(row: ScreenRow) -> Any:  # noqa: ANN401 - a number, or None
        return (getattr(identity(row), "speculation", None) or {}).get("max")

    def kv_type(row: ScreenRow) -> str | None:
        argv: list[str] = getattr(identity(row), "argv", [])
        values = dict(pairwise(argv)) | {
            name: value for name, is_there, value in (w.partition("=") for w in argv) if is_there
        }
        adapter = registered().adapters.get(getattr(engine(row), "kind", ""))
        options = adapter.cache_type_options if adapter else ()
        return next((values[name] for name in options if name in values), "engine's own" if argv else None)

    def sampling(row: ScreenRow) -> str | None:
        chosen = dict(recipe.get("sampling") or {})
        varied = {name: getattr(identity(row), name, None) for name in ("temperature", "max_tokens")}
        chosen |= {name: value for name, value in varied.items() if value is not None}
        return f"T {chosen.get('temperature')}, {chosen.get('max_tokens')} tokens" if chosen else None

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

    def draft_tokens(row: ScreenRow) -> str | None:
        counted = analysis.acceptance_of(row.arm)
        counts = (counted.drafted, counted.verified, counted.accepted) if counted else ()
        return " / ".join(numbers.ABSENT if count is None else numbers.count(count) for count in counts) or None

    def memories(row: ScreenRow) -> str | None:
        alone, with_arm = memory.get(analysis.compared[row.arm].baseline), memory.get(row.arm)
        return None if alone is None or with_arm is None else f"{numbers.size(alone)} → {numbers.size(with_arm)}"

    def in_flight(row: ScreenRow) -> int | None:
        together: int = getattr(identity(row), "concurrency", 1)
        return together if together > 1 else None

    def engine(row: ScreenRow) -> Any:  # noqa: ANN401 - None without a manifest
        return getattr(setup(row), "engine", None)

    def build(row: ScreenRow) -> str | None:
        run_by = engine(row)
        return run_by and engine_line(run_by)

    columns: list[Column[ScreenRow]] = [
        Column("Card", lambda _: _card_or_processor(manifest.machine) if manifest else None),
        Column("OS", lambda _: manifest.machine.get("os") if manifest else None),
        Column("Build", build),
        Column("Settings", lambda _: (manifest and ", ".join(engine_settings(manifest))) or None, optional=True),
        Column("Backend", lambda row: (engine(row) and ", ".join(backends_of(engine(row)))) or None, optional=True),
        Column("Target", lambda row: model(row, "target")),
        Column("Draft", lambda row: model(row, "draft")),
        Column("Context", lambda _: (recipe.get("engine") or {}).get("context")),
        Column("KV", kv_type),
        Column("Sampling", sampling),
        Column("Arm", "arm", Name),
        Column("Type", lambda row: "+".join(identity(row).types) if identity(row) else None),
        numeric("Depth", depth),
        numeric("In flight", in_flight, optional=True),
        numeric("tok/s alone", lambda row: row.alone, numbers.rate),
        numeric("tok/s with", "rate", numbers.rate),
        numeric("Speed-up", "speedup", numbers.ratio),
        Column("95 %", lambda row: row.ends, numbers.interval),
        Column("By task, tok/s", by_task, optional=True),
        Column("Accepted", accepted),
        Column("Drafted / verified / accepted", draft_tokens),
        numeric("First token", lambda row: row.speed and row.speed.ttft_ratio, numbers.ratio),
        numeric("Whole request", lambda row: row.speed and row.speed.end_to_end, numbers.ratio),
        numeric("Prefill tok/s", lambda row: prefill.get(row.arm), numbers.rate),
        Column("Memory", memories),
        Column("Output", "verdict.lossless"),
    ]
    shown = [row for row in screen_rows(analysis) if row.verdict is not None and not row.inactive]
    return markdown_table(Table("rows", "Rows", columns, shown))


def backends_of(engine: EngineIdentity) -> list[str]:
    """Return the backends of an engine in the words of its project's bug form; none where it has no form."""
    adapter = registered().adapters.get(engine.kind)
    if adapter is None or adapter.issue is None:
        return []
    form: IssueForm = resolve_name(adapter.issue)
    listed = engine.details.get("devices")
    return form.backends([str(device) for device in listed] if isinstance(listed, list) else [])


def _card_or_processor(machine: Mapping[str, Any]) -> str:
    return "; ".join(cards(machine)) or processor(machine)
