"""Prints a search for tensors that break a model: its progress and its result."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchctl.cli.show_inspection import mebibytes
from benchctl.experiments.isolate.search import BEYOND_USUAL, LEAST, MOST, Finding
from benchctl.experiments.isolate.session import IsolateProgress
from benchctl.experiments.isolate.source_model import SourceModel
from benchctl.experiments.isolate.stored import Isolation, Measurement
from benchctl.experiments.isolate.table import Row
from benchctl.measure.display import Display
from benchctl.models.quantize import quantize_arguments
from benchctl.text import listed, one_line, spoken

_TABLE_WIDTH = 120
"""Characters in which every number fits on a line."""


class IsolateDisplay(IsolateProgress):
    """A line a measurement, and on a terminal the current step."""

    def __init__(self, console: Console) -> None:
        self.display = Display(console)
        self.count = 0

    def __enter__(self) -> IsolateDisplay:
        self.display.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.display.stop()

    def note(self, text: str) -> None:
        """Print it."""
        self.display.note(one_line(text))

    def doing(self, text: str) -> None:
        """Show the current step below the lines."""
        self.display.update(text)

    def measured(self, found: Measurement, *, stored: bool, more: int, seconds_left: float | None) -> None:
        """Print a line for it."""
        self.count += 1
        self.display.update(done=1, total=self.count + more)
        self.display.line(Text(f"[{self.count}] {self.sentence(found, stored, more, seconds_left)}"))

    def sentence(self, found: Measurement, stored: bool, more: int, seconds_left: float | None) -> str:
        """A line for a measurement."""
        kept = found.kept
        what = "unquantized" if kept is None else f"{len(kept)} kept" if kept else "all quantized"
        what += f" ({one_line(kept[0], 60)})" if kept is not None and len(kept) == 1 else ""
        how = ", ".join(dict.fromkeys(finding.id for finding in found.findings)) or "probes sound"
        rest = f", about {spoken(seconds_left)} left" if seconds_left and more else ""
        return f"{what}: {how}, divergence {_divergence(found)}{' (from before)' if stored else ''}{rest}"


def repair_of(source: SourceModel, finding: Finding) -> dict[str, Any] | None:
    """Return the recipe's words and the command that repair the model; `None` where nothing is to be repaired."""
    if not finding.kept:
        return None
    spec = source.spec_with(finding.kept)
    file = source.files[0]
    target = Path(f"{file.stem}-{spec.type.lower()}-repaired.gguf")
    return {
        "quantize": {"type": spec.type, "tensors": dict(spec.tensors)},
        "command": shlex.join([*source.quantizer.command, *quantize_arguments(spec, file, target)]),
    }


def show_isolation(
    isolation: Isolation, finding: Finding, table: Sequence[Row], repair: dict[str, Any] | None, folder: Path
) -> None:
    """Print the table, the finding, the rule and the repair."""
    console = Console(highlight=False)
    if not console.is_terminal:  # a file has no width of its own
        console = Console(highlight=False, width=max(console.width, _TABLE_WIDTH))
    console.print(_table(table, wide=console.width >= _TABLE_WIDTH))
    console.print()
    for sentence in _sentences(isolation, finding):
        console.print(Text(sentence))
    if isolation.text is not None:
        text = isolation.text
        read = f"{text.places} scored tokens of {one_line(text.origin)}, in pieces of {text.context}"
        console.print(Text(f"KL: mean Kullback-Leibler divergence from the unquantized model in nats, over {read}."))
    if repair is not None:
        tensors = ", ".join(f'"{pattern}": {kind}' for pattern, kind in repair["quantize"]["tensors"].items())
        console.print(Text("\nIn the recipe:", style="bold"))
        console.print(
            Text(f"  quantize: {{type: {repair['quantize']['type']}, tensors: {{{tensors}}}}}"), soft_wrap=True
        )
        console.print(Text("By hand:", style="bold"))
        console.print(Text(f"  {one_line(repair['command'], 4000)}"), soft_wrap=True)
    console.print(Text(f"\nAll measurements: {folder}", style="dim"), soft_wrap=True)


def _table(table: Sequence[Row], *, wide: bool) -> Table:
    rendered = Table(box=None, pad_edge=False, header_style="bold")
    rendered.add_column("tensors", overflow="fold", min_width=20)
    rendered.add_column("role", overflow="fold", min_width=9)
    rendered.add_column("output", no_wrap=True)
    for title in ("KL", "top-1 %", "perplexity", "flawed", "size"):
        rendered.add_column(title, justify="right", no_wrap=wide)
    for row in table:
        severity = row.measurement.severity
        broken = Text("BROKEN", style="bold red") if row.damage else Text("sound", style="green")
        rendered.add_row(
            Text(one_line(row.what, 200)),
            row.role or "",
            broken,
            _divergence(row.measurement),
            "–" if severity is None else _with_error(severity.same_top, severity.same_top_error, 100, 2),
            "–" if severity is None else _with_error(severity.perplexity, severity.perplexity_error, 1, 3),
            f"{row.flawed}/{row.probes}",
            mebibytes(row.measurement.bytes),
        )
    return rendered


def _sentences(isolation: Isolation, finding: Finding) -> list[str]:
    base = isolation.type
    measured = "1 quantization was" if finding.evaluations == 1 else f"{finding.evaluations} quantizations were"
    count = f"{measured} measured; testing one family at a time would take {finding.one_by_one}."
    rule = f"Broken: a health probe fails that passes on the source, or KL above {_limit(finding, base)}."
    repair, breaking = _shown(finding.repair), _shown(finding.breaking)
    answers = {
        "source damaged": "The model is broken before it is quantized: "
        + " ".join(
            one_line(found.seen, 400) for measurement in isolation.measurements[:1] for found in measurement.findings
        ),
        "healthy": f"{base} does not damage this model; nothing needs repair.",
        "one family": f"{base} breaks this model, and keeping {repair} repairs it.",
        "several families": f"{base} breaks this model, and no single family repairs it: keeping {repair} does.",
        "spread": f"{base} breaks this model, and the damage is spread: repair takes {len(finding.repair)} of "
        f"{len(isolation.families)} families ({repair}). Choose a finer type.",
    }
    lines = [answers[finding.verdict]]
    if finding.verdict == "source damaged":
        return lines
    if finding.repair:
        lines.append(
            f"Quantized alone, {breaking} {'breaks' if len(finding.breaking) == 1 else 'each break'} it."
            if finding.breaking
            else "No family breaks it when it alone is quantized: the damage adds up."
        )
    for name, layers in finding.layers.items():
        needed = "it takes every layer" if layers.whole else f"keeping {_shown(layers.repair)} is enough"
        lines.append(
            f"Of {one_line(name)}, {needed}; "
            + (f"{_shown(layers.breaking)} break it alone." if layers.breaking else "no layer breaks it alone.")
        )
    return [*lines, rule, count]


def _limit(finding: Finding, base: str) -> str:
    """Return the limit and its origin."""
    if finding.usual is None:
        return f"{finding.limit:.3g}"
    if finding.limit == MOST:
        return f"{MOST:g}, which is damage in any type (typical for {base} on this model: {finding.usual:.2g})"
    if finding.limit == LEAST:
        return f"{LEAST:g}, the smallest that counts as damage (typical for {base} on this model: {finding.usual:.2g})"
    return f"{finding.limit:.3g}, {BEYOND_USUAL:g} times what is typical for {base} on this model"


def _shown(names: Sequence[str]) -> str:
    return listed(one_line(name, 60) for name in names) or "nothing"


def _divergence(found: Measurement) -> str:
    severity = found.severity
    return "–" if severity is None else _with_error(severity.divergence, severity.divergence_error, 1, 5)


def _with_error(value: float | None, error: float | None, scale: float, digits: int) -> str:
    if value is None:
        return "no number"
    spread = "" if error is None else f" ± {scale * error:.{digits}f}"
    return f"{round(scale * value, digits) + 0.0:.{digits}f}{spread}"  # + 0.0: no minus before a zero
