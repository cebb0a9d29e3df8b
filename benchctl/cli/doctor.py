"""`benchctl doctor`: is this machine fit to measure, and is everything installed?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from benchctl.cli.options import JsonForText

if TYPE_CHECKING:
    from benchctl.machine.doctor import Check

_SIGNS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red"), "unknown": ("?", "dim")}


def doctor(
    as_json: JsonForText = False,
) -> None:
    """Check whether this machine is fit to measure, and whether engines and models are installed.

    Exits with 1 when a check fails; warnings do not fail.
    """
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


def check_installation(models: Path | None = None) -> list[Check]:
    """Check the installed engines, and the bundled models (or those in `models`)."""
    import benchctl.models
    from benchctl.engines.registry import find_engines
    from benchctl.machine.doctor import Check
    from benchctl.recipes.adapters import load, registered

    found = find_engines()
    usable = [engine for engine in found if engine.runs and not engine.problem]
    checks: list[Check] = []
    unchecked = []
    for kind, adapter in registered().adapters.items():
        of_kind = [engine for engine in found if engine.kind == kind]
        if adapter.doctor is not None:
            others = any(engine.kind != kind for engine in usable)
            checks += load(adapter.doctor)(of_kind, others=others)
        else:
            unchecked += [engine for engine in of_kind if engine in usable]
    if unchecked:
        names = ", ".join(f"{engine.kind} {engine.version or ''}".strip() for engine in unchecked)
        checks.append(Check("engine.others", "ok", f"Found: {names}.", "The recipe selects the engine."))
    for kind, why in registered().broken.items():
        checks.append(Check(f"engine.{kind}", "warn", f"{why}.", "Its recipes cannot run.", "Update or remove it."))
    return [*checks, _models(models or Path(benchctl.models.__file__).parent / "bundled")]


def _models(folder: Path) -> Check:
    from benchctl.machine.doctor import Check

    why = "The quickstart recipe measures the bundled models."
    files = sorted(folder.glob("*.gguf"))
    if not files:
        return Check("models.bundled", "warn", "The bundled models are missing.", why, "Reinstall benchctl.")
    broken = [file.name for file in files if not _is_gguf(file)]
    if broken:
        what = f"Not a GGUF model: {', '.join(broken)}."
        return Check("models.bundled", "fail", what, why, "Reinstall benchctl, or restore the files: `git status`.")
    megabytes = sum(file.stat().st_size for file in files) / 1e6
    return Check("models.bundled", "ok", f"{len(files)} models found ({megabytes:.0f} MB).", why)


def _is_gguf(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            return stream.read(4) == b"GGUF"
    except OSError:
        return False


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
        message = Text(one_line(check.seen), style="bold" if check.state == "fail" else "", overflow="fold")
        if check.state in {"warn", "fail"}:
            message.append(f"\n{one_line(check.why)}", style="not bold dim")
            if check.todo:
                message.append(f"\n→ {one_line(check.todo)}", style="not bold")
        table.add_row(Text(sign, style=style), Text(check.id, style=style, no_wrap=True), message)
    console.print(table)
    console.print()
    counts = {state: sum(check.state == state for check in checks) for state in _SIGNS}
    if counts["fail"]:
        console.print(Text("Not fit to measure: see ✗ above.", style="bold red"))
    elif counts["warn"]:
        console.print(Text(f"Fit to measure, with {_count(counts['warn'], 'warning')} (!).", style="yellow"))
    else:
        console.print(Text("Fit to measure.", style="green"))
    if counts["unknown"]:
        console.print(Text(f"{_count(counts['unknown'], 'check')} could not be made (?).", style="dim"))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
