"""`benchctl doctor`: is this machine fit to measure, and is everything there?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from benchctl.cli.options import JsonForText

if TYPE_CHECKING:
    from benchctl.machine.doctor import Check

_SIGNS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red"), "unknown": ("?", "dim")}


def doctor(
    as_json: JsonForText = False,
) -> None:
    """Look whether this machine is fit to measure, and whether engines and models are there.

    Exit code 0 when nothing fails (warnings do not), else 1.
    """
    from benchctl.cli.installation import check_installation
    from benchctl.machine.describe import describe_machine
    from benchctl.machine.doctor import check_machine

    machine = describe_machine()
    checks = [*check_machine(), *check_installation()]
    failed = any(check.state == "fail" for check in checks)
    if as_json:
        document = {"fit": not failed, "machine": machine, "checks": [check.to_json() for check in checks]}
        typer.echo(json.dumps(document, indent=2))
    else:
        _show(machine, checks)
    if failed:
        raise typer.Exit(1)


def _show(machine: dict[str, object], checks: list[Check]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from benchctl.text import one_line

    console = Console(highlight=False)
    gib = int(str(machine["memory_bytes"])) / 2**30
    console.print(Text(one_line(f"{machine['cpu']} · {machine['cores']} cores · {gib:.0f} GiB · {machine['os']}")))
    console.print()
    table = Table.grid(padding=(0, 2, 0, 0))
    for check in checks:
        sign, style = _SIGNS[check.state]
        told = Text(one_line(check.seen), style="bold" if check.state == "fail" else "", overflow="fold")
        if check.state in {"warn", "fail"}:
            told.append(f"\n{one_line(check.why)}", style="not bold dim")
            if check.todo:
                told.append(f"\n→ {one_line(check.todo)}", style="not bold")
        table.add_row(Text(sign, style=style), Text(check.id, style=style, no_wrap=True), told)
    console.print(table)
    console.print()
    counts = {state: sum(check.state == state for check in checks) for state in _SIGNS}
    if counts["fail"]:
        console.print(Text("Not fit to measure as it is: see ✗ above.", style="bold red"))
    elif counts["warn"]:
        console.print(Text(f"Fit to measure, with {_things(counts['warn'])} to keep in mind (!).", style="yellow"))
    else:
        console.print(Text("Fit to measure.", style="green"))
    if counts["unknown"]:
        console.print(Text(f"{_things(counts['unknown'])} could not be looked at (?).", style="dim"))


def _things(count: int) -> str:
    return f"{count} thing{'' if count == 1 else 's'}"
