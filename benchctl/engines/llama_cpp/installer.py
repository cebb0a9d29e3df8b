"""`benchctl engines install llama.cpp`: a native build for this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchctl.engines.installing import Installed, InstallOptions, Report
from benchctl.engines.llama_cpp.install import InstallRequest, cmake_args_from_environment, default_backend, install
from benchctl.engines.llama_cpp.trial import check_quantized
from benchctl.engines.registry import FoundEngine
from benchctl.machine.doctor import Check


class LlamaCppInstaller:
    """Builds llama-server and the programs beside it; see `benchctl.engines.installing.Installer`."""

    title = "llama.cpp"

    def install(self, options: InstallOptions, report: Report) -> Installed:
        """Build, with further CMake arguments from `$CMAKE_ARGS`."""
        request = InstallRequest(
            backend=options.backend or default_backend(),
            version=options.version,
            sdist=options.sdist,
            cmake_args=cmake_args_from_environment(),
            jobs=options.jobs,
            force=options.force,
        )
        build = install(request, report)
        return Installed(
            heading=f"llama.cpp for {build.backend}, from llama-cpp-python {build.version}",
            lines=(build.version_output, str(build.folder / "bin")),
            facts={"folder": str(build.folder), **build.to_json()},
        )


def check(found: Sequence[FoundEngine], *, others: bool) -> list[Check]:
    """Check the llama-server that runs when a recipe names none; `others`: another kind of engine can be measured."""
    name, why = "engine.llama.cpp", "Without an engine nothing can be measured."
    first = found[0]
    if first.problem:
        return [Check(name, "fail", f"{first.where}: {first.problem.rstrip('.')}.", why, first.hint)]
    if not first.found_in:
        todo = "Run `benchctl engines install llama.cpp`."
        return [Check(name, "warn" if others else "fail", "There is no llama-server.", why, todo)]
    summary = f"{first.where} ({first.found_in}) is {first.version or 'of an unknown version'}."
    if not first.speculation_types:
        todo = "Use a newer build: `benchctl engines install llama.cpp` makes one."
        return [Check(name, "warn", f"{summary} It knows no speculation types.", why, todo)]
    return [Check(name, "ok", summary, why), check_quantized(Path(first.where or ""))]
