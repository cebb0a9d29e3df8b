"""`benchctl engines install transformers`: a Python environment with torch and transformers."""

from __future__ import annotations

from benchctl.engines.installing import Installed, InstallOptions, Report
from benchctl.engines.transformers.install import TORCH, VERSION, install
from benchctl.errors import UsageError


class TransformersInstaller:
    """Installs what the package index has for this machine; see `benchctl.engines.installing.Installer`."""

    title = "transformers"

    def install(self, options: InstallOptions, report: Report) -> Installed:
        """Make the environment, where it is not there."""
        useless = options.named("version", "sdist", "jobs")
        if options.backend is not None:
            useless.append(f"--{options.backend}")
        if useless:
            raise UsageError(
                "transformers takes none of these",
                where=" ".join(useless),
                fix=f"It is {VERSION} with torch {TORCH}, as tested, built for what the package index has. For another "
                "build install them yourself and name their Python: engine.binary or BENCHCTL_TRANSFORMERS.",
            )
        python = install(report, force=options.force)
        return Installed(
            heading=f"transformers {VERSION} with torch {TORCH}",
            lines=(str(python),),
            facts={"program": str(python), "version": VERSION, "torch": TORCH},
        )
