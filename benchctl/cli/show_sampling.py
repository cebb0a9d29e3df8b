"""How a check of the sampling is shown. Names come from recipes and are untrusted text."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from benchctl.analysis.sampling.results import ArmSampling, SamplingResult
from benchctl.reports.terminal import PIPE_WIDTH
from benchctl.text import one_line

COLOUR = {"no difference found": "green", "difference found": "red", "lossy by design": "red", "undetermined": "yellow"}


def print_sampling(found: SamplingResult, folder: Path) -> None:
    """Print the verdicts, then a sentence for each arm."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PIPE_WIDTH)
    cut = "".join(
        [f", top-k {found.top_k}" if found.top_k else "", f", top-p {found.top_p:g}" if found.top_p < 1 else ""]
    )
    console.print(
        Text(
            f"Sampling of {one_line(found.recipe)}: every arm against {one_line(found.baseline)} at temperature "
            f"{found.temperature:g}{cut}, {len(found.prompts)} prompts × {found.seeds} seeds, "
            f"answers of at most {found.tokens} tokens\n"
        )
    )
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in ("arm", "verdict", "drafted", "accepted", "smallest p", "of the test"):
        table.add_column(column, justify="right" if column in ("drafted", "accepted", "smallest p") else "left")
    for arm in found.arms:
        table.add_row(*_row(arm))
    console.print(table)
    for arm in found.arms:
        console.print(Text(f"\n{one_line(arm.arm)}: {arm.verdict}", style=f"bold {COLOUR[arm.verdict]}"))
        console.print(Padding.indent(Text(one_line(arm.reason)), 2))
    tests = len(found.arms[0].tests) if found.arms else 0
    note = (
        f"\nLevel: {100 * found.level:g} % for any false alarm among {tests} tests of each of {len(found.arms)} arms. "
        "The first token comes from prefill and is never speculated."
    )
    console.print(Text(note, style="dim"))
    if found.damaged:
        console.print(Text(f"{found.damaged} lines of answers could not be read.", style="yellow"))
    console.print(Text(f"Answers: {folder}", style="dim"), soft_wrap=True)


def _row(arm: ArmSampling) -> list[Text]:
    least = min(arm.tests, key=lambda test: test.p, default=None)
    lossy = f" (lossy by design: {', '.join(arm.lossy)})" if arm.lossy else ""
    return [
        Text(one_line(arm.arm) + lossy),
        Text(arm.verdict, style=COLOUR[arm.verdict]),
        Text("–" if arm.drafted is None else f"{arm.drafted:,}"),
        Text("–" if arm.accepted is None else f"{arm.accepted:,}"),
        Text("–" if least is None else f"{least.adjusted:.2g}"),
        Text("–" if least is None else least.name),
    ]
