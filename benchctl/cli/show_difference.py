"""How the difference between two models is shown."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchctl.cli.show_inspection import mebibytes
from benchctl.models.difference import Change, Difference
from benchctl.models.inspection import Inspection
from benchctl.models.tensor_types import family
from benchctl.text import one_line

_VALUE_CHARACTERS = 60


def show_difference(found: Difference) -> None:
    """Print what differs from the first model to the second."""
    console = Console(highlight=False)
    for mark, model in (("−", found.one), ("+", found.other)):
        console.print(Text(f"{mark} {one_line(str(model.path))}  {_summary(model)}"), soft_wrap=True)
    console.print()
    if found.vocabulary:
        console.print(Text("The vocabularies differ:", style="yellow"))
        for sentence in found.vocabulary:
            console.print(Text(f"  {one_line(sentence)}"))
    else:
        console.print("The vocabularies and special tokens are the same.")
    if not found.metadata and not found.tensors:
        console.print("The metadata and the types and shapes of all tensors are the same.")
    if found.metadata:
        _print(console, "metadata", [(change.name, change) for change in found.metadata])
    if found.tensors:
        _print(console, "tensors", _by_family(found.tensors))


def _print(console: Console, title: str, rows: list[tuple[str, Change]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in (title, "−", "+"):
        table.add_column(heading, overflow="fold")
    for name, change in rows:
        table.add_row(Text(one_line(name, 80)), _value(change.one), _value(change.other))
    console.print()
    console.print(table)


def _by_family(changes: tuple[Change, ...]) -> list[tuple[str, Change]]:
    """Put tensors that change alike in every block on one line: `ssm_out (4 tensors)`."""
    alike: dict[tuple[str, str | None, str | None], list[Change]] = {}
    for change in changes:
        alike.setdefault((family(change.name), change.one, change.other), []).append(change)
    return [
        (f"{name} ({len(group)} tensors)" if len(group) > 1 else group[0].name, group[0])
        for (name, _, _), group in alike.items()
    ]


def _value(text: str | None) -> Text:
    return Text("–", style="dim") if text is None else Text(one_line(text, _VALUE_CHARACTERS))


def _summary(model: Inspection) -> str:
    bits = model.facts.bits_per_weight
    return mebibytes(model.size) + ("" if bits is None else f", {bits:g} bits per weight")
