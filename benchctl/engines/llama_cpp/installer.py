"""`benchctl engines install llama.cpp`: a native build for this machine."""

from __future__ import annotations

from benchctl.engines.installing import Installed, InstallOptions, Report
from benchctl.engines.llama_cpp.install import InstallRequest, cmake_args_from_environment, default_backend, install


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
