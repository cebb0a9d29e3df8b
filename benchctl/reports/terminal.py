"""The summary in the terminal: one row an arm, and the conclusion in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchctl.analysis.lossy import lossy_label
from benchctl.analysis.results import ALL_TASKS, Analysis, SpeedUp, Verdict
from benchctl.reports import conclusion, numbers, sweep
from benchctl.text import one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from benchctl.analysis.conditions.results import Level

WARNINGS = 4
"""So many are printed; the report has them all."""
_SPEED_STYLE = {"faster": "green", "slower": "red"}
_LOSSLESS_STYLE = {"lossless": "green", "not lossless": "red", "undetermined": "yellow", "not judged": "dim"}


def print_summary(console: Console, analysis: Analysis) -> None:
    """Print what was concluded, a row an arm, and the warnings; nothing in it is read as markup."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    console.print(
        Text(f"\n{one_line(conclusion.headline(analysis))} {one_line(conclusion.fidelity(analysis))}\n", "bold")
    )
    for finding in sweep.findings(analysis):
        console.print(Text(f"- {one_line(finding, 400)}"))
    rows = sweep.closed_rows(analysis) + sweep.open_rows(analysis)
    if rows:
        _print_levels(console, analysis, rows)
    verdicts = [] if rows else conclusion.compared(analysis)
    if verdicts:
        wide = console.width >= 100
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("Arm")
        table.add_column("Speed-up" if not any(v.interval for v in verdicts) else "Speed-up (95 %)")
        table.add_column("Between blocks")
        table.add_column("Accepted", justify="right")
        table.add_column("Output")
        if wide:
            table.add_column("Why", ratio=1)
        overall = {row.arm: row for row in analysis.speedups if row.task == ALL_TASKS}
        for verdict in verdicts:
            cells = _row(verdict, overall.get(verdict.arm))
            table.add_row(*(cells if wide else cells[:-1]))
        console.print(table)
        if not wide:
            for verdict in verdicts:
                console.print(Text(f"{one_line(verdict.arm)}: {one_line(_reason(verdict))}"))
        if not any(verdict.interval for verdict in verdicts):
            console.print(Text(f"{numbers.no_interval(analysis)} (three are needed).".capitalize(), "dim"))
    if analysis.stopping:
        console.print(Text(one_line(analysis.stopping.sentence)))
    for cell in analysis.failed_cells:
        console.print(Text(f"Failed: {one_line(cell)}", "red"))
    warnings = [warning for warning in analysis.warnings if warning.id != "failed-cell"]  # told just above
    for warning in warnings[:WARNINGS]:
        said = f"{one_line(warning.seen, 200)} {one_line(warning.todo)}"
        console.print(Text(f"Warning ({one_line(warning.where)}): {said}", "yellow"))
    if len(warnings) > WARNINGS:
        console.print(Text(f"{len(warnings) - WARNINGS} more warnings are in the report.", "yellow"))


def _print_levels(console: Console, analysis: Analysis, rows: list[Level]) -> None:
    """A row an arm and condition: what a request waits for, and what all of them get."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("Arm", overflow="fold")
    for heading in ("Latency", "TTFT", "tok/s")[:: 1 if console.width >= 100 else 2]:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(
        "Throughput ×" if not any(row.throughput_interval for row in rows) else "Throughput × (95 %)", no_wrap=True
    )
    table.add_column("Latency ×")
    output = {verdict.arm: verdict.lossless for verdict in analysis.verdicts}
    table.add_column("Output")
    for row in rows:
        gain = numbers.ratio(row.throughput_speedup)
        if row.throughput_interval:
            gain += f"  {numbers.interval(row.throughput_interval)}"
        kept = output.get(row.arm, "")
        table.add_row(
            Text(one_line(row.arm), "" if row.is_baseline else "bold"),
            Text(numbers.seconds(row.e2e.median)),
            *([Text(numbers.seconds(row.ttft.median))] if console.width >= 100 else []),
            Text(numbers.rate(row.throughput)),
            Text("" if row.is_baseline else gain),
            Text("" if row.is_baseline else numbers.ratio(row.latency_speedup)),
            Text(kept, _LOSSLESS_STYLE.get(kept, "")),
        )
    console.print(table)
    console.print(Text("Latency: median of a request, tok/s: all requests together, ×: over the baseline.", "dim"))


def _row(verdict: Verdict, overall: SpeedUp | None) -> list[Text]:
    from rich.text import Text

    speed = numbers.ratio(verdict.speedup)
    if verdict.interval:
        speed += f"  {numbers.interval(verdict.interval)}"
    return [
        Text(one_line(verdict.arm) + lossy_label(verdict.lossy), "bold"),
        Text(speed, _SPEED_STYLE.get(verdict.speed, "")),
        Text(numbers.between_blocks(overall)),
        Text(numbers.percent(verdict.acceptance)),
        Text(verdict.lossless, _LOSSLESS_STYLE[verdict.lossless]),
        Text(one_line(_reason(verdict))),
    ]


def _reason(verdict: Verdict) -> str:
    """What the other columns do not say already."""
    return f"{verdict.sentence} {verdict.why}" if verdict.speed == "unknown" else verdict.why
