"""`benchctl engines`: build an engine with its progress shown, and list the engines that are found."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchctl.cli.json_output import print_json
from benchctl.cli.options import JsonForText
from benchctl.errors import UsageError

if TYPE_CHECKING:
    from benchctl.engines.registry import FoundEngine, Installed, Report

app = typer.Typer(help="Find, install and check engines, and this machine.", no_args_is_help=True)


@app.command("install")
def install_engine(
    engine: Annotated[str, typer.Argument(help="An engine that `benchctl engines list` shows as installable.")],
    cuda: Annotated[bool, typer.Option("--cuda", help="Build for NVIDIA GPUs (needs the CUDA toolkit).")] = False,
    metal: Annotated[bool, typer.Option("--metal", help="Build for Apple GPUs; the default on macOS.")] = False,
    cpu: Annotated[bool, typer.Option("--cpu", help="Build for the CPU only; the default elsewhere.")] = False,
    version: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION", help="Version of llama-cpp-python whose llama.cpp is built; default: the tested one."
        ),
    ] = None,
    sdist: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Build from this source distribution instead of downloading it."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=1, help="Files compiled at once; default: by cores and memory."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Reinstall even when the same build is installed.")] = False,
    as_json: JsonForText = False,
) -> None:
    """Build or install an engine for this machine, once; it is stored in the per-user cache.

    From what an engine is built, and which options it takes: `benchctl docs engines`. Further CMake arguments are
    taken from the environment variable CMAKE_ARGS.
    """
    from benchctl.engines.registry import Backend, Installer, InstallOptions
    from benchctl.offers import load
    from benchctl.recipes.adapters import kinds_with, registered

    flags: dict[Backend, bool] = {"cuda": cuda, "metal": metal, "cpu": cpu}
    backends = [backend for backend, typed in flags.items() if typed]
    if len(backends) > 1:
        raise UsageError("choose one", where=" ".join(f"--{name}" for name in backends))
    adapter = registered().adapters.get(engine)
    if adapter is None or adapter.installer is None:
        raise UsageError(
            f"benchctl cannot build an engine called {engine!r}",
            where="engines install",
            fix=f"It installs {kinds_with(lambda adapter: adapter.installer is not None)}; "
            "start other servers yourself: see `benchctl docs engines`.",
        )
    installer: Installer = load(adapter.installer)()
    backend = backends[0] if backends else None
    options = InstallOptions(backend=backend, version=version, sdist=sdist, jobs=jobs, force=force)
    with show_progress(installer.title) as report:
        installed = installer.install(options, report)
    if as_json:
        print_json("engines install", installed.facts)
    else:
        _show_installed(installed)


@app.command("allow")
def allow(
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="A server; or a program's path, to remove it.")
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="The environment variable whose content may be sent there as its API key."),
    ] = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Take the server back, or only its --key; trust in recipes, too.")
    ] = False,
    as_json: JsonForText = False,
) -> None:
    """Let recipes send prompts to a server, and the key of a variable of yours; without URL, list what is allowed.

    A server off this machine needs its scheme, host and port allowed once, unless the URL stands on the command line. A
    recipe's `api_key_env` needs that variable allowed for that server, on this machine too.
    """
    from benchctl.paths import config_folder
    from benchctl.permissions import FILE, Permissions, change, read_permissions
    from benchctl.text import one_line

    if url is None and (key or remove):
        raise UsageError("Name the server.", where="--key, --remove", fix="benchctl engines allow URL")
    given = read_permissions() if url is None else change(url, key or (), remove=remove)
    if as_json:
        print_json("engines allow", Permissions.model_dump(given, include={"servers", "programs", "files"}))
        return
    for origin, names in given.servers.items():
        typer.echo(one_line(f"server   {origin}  {'key: ' + ', '.join(names) if names else 'no key'}", 400))
    for what, paths in (("program", given.programs), ("file", given.files)):
        for path in paths:
            typer.echo(one_line(f"{what:8} {path}", 400))
    typer.echo(f"{len(given.recipes)} trusted recipes, {len(given.runs)} runs of yours: {config_folder() / FILE}")


@app.command("list")
def list_engines(as_json: JsonForText = False) -> None:
    """List the engines on this machine, with the speculation types of each."""
    from benchctl.engines.registry import find_engines

    found = find_engines()
    if as_json:
        print_json("engines list", {"engines": [engine.to_json() for engine in found]})
    else:
        _show_engines(found)


@contextmanager
def show_progress(name: str) -> Iterator[Report]:
    """Give a function that prints the progress of installing `name` on stderr: a bar on a terminal, else lines."""
    if not sys.stderr.isatty():
        yield _PlainLines(name)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(name, total=None)

        def report(stage: str, done: int, total: int) -> None:
            progress.update(task, description=f"{name}: {stage}", completed=done, total=total or None)

        yield report


class _PlainLines:
    """A line for every stage, and for every tenth of a stage with counted steps."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.last = ("", -1)

    def __call__(self, stage: str, done: int, total: int) -> None:
        tenth = done * 10 // total if total else 0
        if (stage, tenth) == self.last:
            return
        self.last = (stage, tenth)
        steps = f" {done}/{total}" if total else ""
        sys.stderr.write(f"{self.name}: {stage}{steps}\n")
        sys.stderr.flush()


def _show_installed(installed: Installed) -> None:
    from rich.console import Console
    from rich.text import Text

    from benchctl.text import one_line

    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(installed.heading))
    for line in installed.lines:
        console.print(Text(f"  {one_line(line)}"))


def _show_engines(found: list[FoundEngine]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from benchctl.text import one_line

    table = Table.grid(padding=(0, 2, 0, 0))
    for engine in found:
        style = "" if engine.runs else "dim"
        lines = Text(overflow="fold")
        if engine.where:
            lines.append(one_line(engine.where) + "\n", style="bold" if engine.runs else "")
        if engine.problem:
            lines.append(f"cannot be used: {one_line(engine.problem)}\n", style="red")
        elif engine.found_in:
            lines.append(one_line(engine.version or "version unknown").removeprefix("version: ") + "\n")
        if engine.speculation_types:
            lines.append("speculation: " + ", ".join(map(one_line, engine.speculation_types)) + "\n")
        if engine.hint:
            lines.append(one_line(engine.hint) + "\n", style="dim")
        lines.rstrip()
        name = Text(f"{'▸' if engine.runs else ' '} {engine.kind}", style=style, no_wrap=True)
        table.add_row(name, Text(engine.found_in or "–", style=style, no_wrap=True), lines)
    console = Console(highlight=False)
    console.print(table)
    console.print(Text("▸ is used unless the recipe or the command line names another."), style="dim")
