"""`benchctl engines`: list and build engines, and check this machine."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated

import typer

from benchctl.cli.options import JsonForText
from benchctl.errors import UsageError
from benchctl.reports.json_output import print_json
from benchctl.text import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchctl.engines.registry import FoundEngine, Installed
    from benchctl.machine.doctor import Check

_SIGNS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red"), "unknown": ("?", "dim")}
"""The sign of a check and the style of its line, by its state."""

app = typer.Typer(help="Find, install and check engines, and this machine.", no_args_is_help=True)


@app.command("install")
def install_engine(
    engine: Annotated[str, typer.Argument(help="An engine that `benchctl engines list` shows as installable.")],
    cuda: Annotated[bool, typer.Option("--cuda", help="For NVIDIA GPUs; llama.cpp needs the CUDA toolkit.")] = False,
    arch: Annotated[
        str | None, typer.Option(metavar="90,120", help="With --cuda: for these cards; default: this machine's.")
    ] = None,
    metal: Annotated[bool, typer.Option("--metal", help="Build for Apple GPUs; the default on macOS.")] = False,
    vulkan: Annotated[bool, typer.Option("--vulkan", help="Build for GPUs by Vulkan (needs headers, glslc).")] = False,
    rocm: Annotated[bool, typer.Option("--rocm", help="Build for AMD GPUs (needs ROCm); never tried.")] = False,
    sycl: Annotated[bool, typer.Option("--sycl", help="Build for Intel GPUs (needs oneAPI); never tried.")] = False,
    cpu: Annotated[bool, typer.Option("--cpu", help="For the CPU only; llama.cpp's default elsewhere.")] = False,
    version: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION", help="Version of llama-cpp-python whose llama.cpp is built; default: the tested version."
        ),
    ] = None,
    sdist: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Build from this source distribution instead of downloading it.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Files compiled at once; default: by cores and memory.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Reinstall even when the same build is installed.")] = False,
    as_json: JsonForText = False,
) -> None:
    """Build or install an engine for this machine, once; it is stored in the per-user cache.

    From what an engine is built: `benchctl docs engines`. Further CMake arguments are taken from the environment
    variable CMAKE_ARGS.
    """
    from benchctl.engines.registry import Backend, Installer, InstallOptions
    from benchctl.measurement.progress import shown_steps
    from benchctl.recipes.adapters import kinds_with, registered

    flags: dict[Backend, bool] = {"cuda": cuda, "metal": metal, "vulkan": vulkan, "rocm": rocm, "sycl": sycl}
    flags["cpu"] = cpu
    backends = [backend for backend, typed in flags.items() if typed]
    if len(backends) > 1:
        raise UsageError("choose a single backend", where=" ".join(f"--{name}" for name in backends))
    adapter = registered().adapters.get(engine)
    if adapter is None or adapter.installer is None:
        raise UsageError(
            f"benchctl cannot build an engine called {engine!r}",
            where="engines install",
            fix=f"It installs {kinds_with(lambda adapter: adapter.installer is not None)}; "
            "start other servers yourself: see `benchctl docs engines`.",
        )
    installer: Installer = resolve_name(adapter.installer)()
    backend = backends[0] if backends else None
    options = InstallOptions(backend=backend, version=version, sdist=sdist, jobs=jobs, force=force, arch=arch)
    with shown_steps(installer.title) as report:
        installed = installer.install(options, report)
    if as_json:
        print_json("engines install", installed.facts)
    else:
        _show_installed(installed)


@app.command("list")
def list_engines(as_json: JsonForText = False) -> None:
    """List the engines on this machine, with the speculation types of each."""
    from benchctl.engines.registry import find_engines

    engines = find_engines()
    if as_json:
        print_json("engines list", {"engines": [engine.to_json() for engine in engines]})
    else:
        _show_engines(engines)


def _show_installed(installed: Installed) -> None:
    from benchctl.reports.terminal import Printout

    out = Printout()
    out.say(installed.heading, whole=True)
    for line in installed.lines:
        out.say(f"  {line}", whole=True)


def _show_engines(engines: list[FoundEngine]) -> None:
    from benchctl.reports.terminal import Printout

    out = Printout()
    for engine in engines:
        out.say(f"{'▸' if engine.runs else ' '} {engine.kind}  {engine.found_in or '–'}", "bold")
        for fact, style in _about(engine):
            out.below(fact, style)
    out.say("▸ is used unless the recipe or the command line names another.", "dim")


def _about(engine: FoundEngine) -> Iterator[tuple[str, str]]:
    """Yield what is known of an engine, and the style of its line."""
    if engine.where:
        yield engine.where, ""
    if engine.problem:
        yield f"cannot be used: {engine.problem}", "red"
    elif engine.found_in:
        yield (engine.version or "version unknown").removeprefix("version: "), ""
    if engine.speculation_types:
        yield f"speculation: {', '.join(engine.speculation_types)}", ""
    if engine.devices:
        yield f"devices: {', '.join(engine.devices)}", ""
    if engine.hint:
        yield engine.hint, "dim"


@app.command("doctor")
def doctor(as_json: JsonForText = False) -> None:
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
        _show_checks(machine, checks)
    if failed:
        raise typer.Exit(1)


def check_installation(models: Path | None = None) -> list[Check]:
    """Check the installed engines, and the bundled models (or those in `models`)."""
    import benchctl.models
    from benchctl.engines.registry import find_engines
    from benchctl.machine.doctor import Check
    from benchctl.recipes.adapters import registered

    engines = find_engines()
    usable = [engine for engine in engines if engine.runs and not engine.problem]
    checks: list[Check] = []
    unchecked = []
    for kind, adapter in registered().adapters.items():
        of_kind = [engine for engine in engines if engine.kind == kind]
        if adapter.doctor is not None:
            usable_others = any(engine.kind != kind for engine in usable)
            checks += resolve_name(adapter.doctor)(of_kind, other_engines=usable_others)
        else:
            unchecked += [engine for engine in of_kind if engine in usable]
    if unchecked:
        names = ", ".join(f"{engine.kind} {engine.version or ''}".strip() for engine in unchecked)
        checks.append(Check("engine.others", "ok", f"Found: {names}.", "The recipe selects the engine."))
    for kind, reason in registered().broken.items():
        checks.append(Check(f"engine.{kind}", "warn", f"{reason}.", "Its recipes cannot run.", "Update or remove it."))
    return [*checks, _bundled_models(models or Path(benchctl.models.__file__).parent / "bundled")]


def _bundled_models(folder: Path) -> Check:
    from benchctl.machine.doctor import Check

    reason = "The quickstart recipe measures the bundled models."
    files = sorted(folder.glob("*.gguf"))
    if not files:
        return Check("models.bundled", "warn", "The bundled models are missing.", reason, "Reinstall benchctl.")
    broken = [file.name for file in files if not _is_gguf(file)]
    if broken:
        problem = f"Not a GGUF model: {', '.join(broken)}."
        return Check(
            "models.bundled", "fail", problem, reason, "Reinstall benchctl, or restore the files: `git status`."
        )
    megabytes = sum(file.stat().st_size for file in files) / 1e6
    return Check("models.bundled", "ok", f"{len(files)} models found ({megabytes:.0f} MB).", reason)


def _is_gguf(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            return stream.read(4) == b"GGUF"
    except OSError:
        return False


def _show_checks(machine: dict[str, object], checks: list[Check]) -> None:
    from benchctl.reports.terminal import Printout

    out = Printout()
    gib = int(str(machine["memory_bytes"])) / 2**30
    out.say(f"{machine['cpu']} · {machine['cores']} cores · {gib:.0f} GiB · {machine['os']}")
    out.say()
    for check in checks:
        sign, style = _SIGNS[check.state]
        out.say(f"{sign} {check.id}: {check.seen}", style)
        if check.state in {"warn", "fail"}:
            out.below(check.why, "dim")
            if check.todo:
                out.below(f"→ {check.todo}")
    out.say()
    counts = Counter(check.state for check in checks)
    if counts["fail"]:
        out.say("Not fit to measure: see ✗ above.", "bold red")
    elif counts["warn"]:
        out.say(f"Fit to measure, with {counts['warn']} {plural(counts['warn'], 'warning')} (!).", "yellow")
    else:
        out.say("Fit to measure.", "green")
    if unknown := counts["unknown"]:
        out.say(f"{unknown} {plural(unknown, 'check')} could not be made (?).", "dim")
