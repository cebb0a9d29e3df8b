"""The environment of every engine: built from an allow-list, so that nothing of the caller's leaks into a measurement.

llama-server takes flags from `LLAMA_ARG_*`, from `$XDG_CONFIG_HOME/llama.cpp/config.ini` and from `AIP_*`; OpenMP and
GGML read variables of their own; and a token has no business in a benchmark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_KEPT = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "SYSTEMROOT"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH"),
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_HOME", "CUDA_PATH", "NVIDIA_VISIBLE_DEVICES"),
        *("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION", "VK_ICD_FILENAMES"),
        *("ONEAPI_DEVICE_SELECTOR", "ASCEND_RT_VISIBLE_DEVICES"),
    }
)
OWN_SETTINGS = {
    # A path below which nothing can exist: no file of the user's can set a flag.
    "XDG_CONFIG_HOME": "/dev/null",
    # Threads that spin while they wait ruin every measurement on a machine with anything else to do.
    "OMP_WAIT_POLICY": "passive",
    "GOMP_SPINCOUNT": "0",
}
_SECRET = re.compile(r"(?:^|_)(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(?:$|_)", re.IGNORECASE)


def refused_variables(added: Mapping[str, str]) -> list[str]:
    """Return a sentence for every variable of a recipe's `engine.env` that may not be set there."""
    problems = []
    for name in added:
        if name.startswith("LLAMA_ARG_"):
            problems.append(f"{name} sets a flag behind the recipe's back; write the flag in engine.args.")
        elif _SECRET.search(name):
            problems.append(f"{name} looks like a secret; a recipe is recorded as it is, and must not hold one.")
        elif name in {"XDG_CONFIG_HOME", "AIP_MODE", "AIP_HTTP_PORT"}:
            problems.append(f"{name} would let settings in that benchctl does not see.")
    return problems


def engine_environment(caller: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of an engine: what is kept of the caller's, benchctl's settings, the recipe's."""
    kept = {name: value for name, value in caller.items() if name in _KEPT or name.startswith("LC_")}
    return {**kept, **OWN_SETTINGS, **added}
