"""`benchctl engines doctor`: is this machine fit to measure, and is everything installed?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from benchctl.cli.json_output import print_json
from benchctl.cli.options import JsonForText

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchctl.machine.doctor import Check
    from benchctl.reports.columns import Tone

_SIGNS: dict[str, tuple[str, Tone]] = {
    "ok": ("✓", "good"),
    "warn": ("!", "open"),
    "fail": ("✗", "bad"),
    "unknown": ("?", "quiet"),
}


def doctor(
    as_json: JsonForText = False,
) -> None:
    """Is this machine fit to measure, and is everything installed?

    Exits with 1 when a check fails; warnings do not fail.
    """
    from benchctl.machine.describe import describe_machine
    from benchctl.machine.doctor import check_machine

    machine = describe_machine()
    checks = [*check_machine(), *check_installation()]
    failed = any(check.state == "fail" for check in checks)
    if as_json:
        document = {"fit": not failed, "machine": machine, "checks": [check.to_json() for check in checks]}
        print_json("doctor", document)
    else:
        _show(machine, checks)
    if failed:
        raise typer.Exit(1)


def check_installation(models: Path | None = None) -> list[Check]:
    """Check the installed engines, and the bundled models (or those in `models`)."""
    import benchctl.models
    from benchctl.engines.registry import find_engines
    from benchctl.machine.doctor import Check
    from benchctl.offers import load
    from benchctl.recipes.adapters import registered

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
    from rich.text import Text

    from benchctl.reports.columns import Column, Table
    from benchctl.reports.terminal import print_table, table_console
    from benchctl.text import one_line, plural

    console = table_console()
    gib = int(str(machine["memory_bytes"])) / 2**30
    console.print(Text(one_line(f"{machine['cpu']} · {machine['cores']} cores · {gib:.0f} GiB · {machine['os']}")))
    console.print()
    columns: tuple[Column[tuple[str, str, str, Tone]], ...] = (
        Column("state", lambda line: line[0], tone=lambda line: line[3], heads=True),
        Column("check", lambda line: line[1], tone=lambda line: line[3], heads=True),
        Column("message", lambda line: line[2], tone=lambda line: "" if line[1] else line[3], wrap=True),
    )
    print_table(console, Table("doctor", "Doctor", columns, list(_lines(checks))), headings=False)
    console.print()
    counts = {state: sum(check.state == state for check in checks) for state in _SIGNS}
    if counts["fail"]:
        console.print(Text("Not fit to measure: see ✗ above.", style="bold red"))
    elif counts["warn"]:
        console.print(
            Text(f"Fit to measure, with {counts['warn']} {plural(counts['warn'], 'warning')} (!).", style="yellow")
        )
    else:
        console.print(Text("Fit to measure.", style="green"))
    if counts["unknown"]:
        unknown = counts["unknown"]
        console.print(Text(f"{unknown} {plural(unknown, 'check')} could not be made (?).", style="dim"))


def _lines(checks: list[Check]) -> Iterator[tuple[str, str, str, Tone]]:
    """Yield (sign, check, message, tone): of a check that is not passed also why it matters and what to do."""
    for check in checks:
        sign, tone = _SIGNS[check.state]
        yield sign, check.id, check.seen, tone
        if check.state in {"warn", "fail"}:
            yield "", "", check.why, "quiet"
            if check.todo:
                yield "", "", f"→ {check.todo}", ""
