"""What `benchctl engines list` says of vLLM, without importing it."""

from __future__ import annotations

from benchctl.engines.common.named_program import FoundBinary
from benchctl.engines.inventory import FoundEngine
from benchctl.engines.vllm.find import candidates
from benchctl.engines.vllm.probe import installed_version, remembered_probe
from benchctl.errors import BenchctlError


def inventory() -> list[FoundEngine]:
    """Return every vLLM that is found, the one that runs first.

    Importing vLLM takes 10 s and more, so that only what it said before is known of it.
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
        hint = "which kinds of speculation it knows is asked when it first runs"
        return FoundEngine("vllm", program.found_in, where, runs, version, hint=hint)
    able = known.capabilities
    return FoundEngine(
        "vllm", program.found_in, where, runs, able.version, able.build, speculation_types=able.speculation_types
    )
