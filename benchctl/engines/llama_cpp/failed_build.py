"""What to do when a build step fails, told from the output of the step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from benchctl.engines.common.logged_command import CommandFailedError
from benchctl.errors import BenchctlError, EngineError, StorageError

_WHAT = {
    "configure": "CMake could not configure llama.cpp",
    "compile": "llama.cpp did not compile",
    "try": "the llama-server that was built does not start on this machine",
}
_CAUSES = (
    (r"Killed signal terminated program|std::bad_alloc|out of memory", "Memory ran out: try again with `--jobs 1`."),
    (
        r"CUDA Toolkit not found|No CMAKE_CUDA_COMPILER|nvcc.*not found|Could not find nvcc",
        "Install the CUDA toolkit and put its bin folder on PATH (or set CUDACXX), or build without --cuda.",
    ),
    (
        r"unsupported GNU version|-- unsupported (GNU|clang)",
        "This CUDA toolkit does not take this C++ compiler: set CXX and CUDAHOSTCXX to an older one.",
    ),
    (
        r"No CMAKE_C(XX)?_COMPILER could be found|is not able to compile a simple test program",
        "Install a working C++ compiler (Debian: `apt install g++`; macOS: `xcode-select --install`), or set CXX.",
    ),
    (r"^\s*CUDA::\w+$", "The CUDA toolkit is there in part only: install its development libraries (cuBLAS, cudart)."),
    (r"Illegal instruction", "Flags in CMAKE_ARGS or CXXFLAGS ask for instructions that this processor lacks."),
)


def crashes(crashed: Sequence[str], left_out: Sequence[str], log: Path) -> EngineError:
    """Return the error for a build that crashes with quantized models, whatever it leaves out of the processor."""
    return EngineError(
        f"the llama-server that was built crashes with quantized models, also without {', '.join(left_out)}",
        kind="install",
        where="llama.cpp",
        fix="Try another compiler: set CC and CXX, and install again. Report it to llama.cpp with the log if that "
        f"crashes, too: {log}",
        log_tail=tuple(crashed),
    )


def explain(step: str, failure: CommandFailedError, log: Path) -> BenchctlError:
    """Return the error that a person can act on; `step` is `configure`, `compile` or `try`."""
    output = "\n".join(failure.lines)
    if "No space left on device" in output:
        return StorageError(
            f"{_WHAT[step]}: the disk is full",
            where=str(log.parent),
            fix="Free some space, or set BENCHCTL_CACHE to a folder on another disk.",
        )
    advice = next((fix for pattern, fix in _CAUSES if re.search(pattern, output, re.MULTILINE)), None)
    if advice is None and step == "try" and failure.status == -4:  # SIGILL says nothing
        advice = _CAUSES[-1][1]
    return EngineError(
        _WHAT[step],
        kind="install",
        where="llama.cpp",
        fix=f"{advice or 'The lines above are the first that tell of trouble.'} The whole log: {log}",
        log_tail=failure.tail(),
    )
