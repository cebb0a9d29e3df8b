"""What an installed vLLM can do, as it reported when it was probed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchctl.engines.common.process import engine_environment, refused_variables

KV_CACHE_GIB = 2
"""On a CPU vLLM plans with most of the machine's memory unless it is given a limit for the cache."""
_ALWAYS = {
    "HF_HUB_OFFLINE": "1",  # models are resolved before; a name that is no folder must not be fetched
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # vLLM's own colours would only fill the log.
    "NO_COLOR": "1",
}
_REFUSED = {"VLLM_API_KEY": "benchctl talks to its own server on loopback", "VLLM_PLUGINS": "plugins change what runs"}


@dataclass(frozen=True)
class Package:
    """What the installed package reports of itself."""

    version: str
    platform: str
    """`cpu`, `cuda`, …"""
    device: str
    prefix: Path
    methods: tuple[str, ...]
    deprecated_methods: tuple[str, ...]
    """Names that it takes with a warning, and turns into `mtp`."""
    keys: tuple[str, ...]
    """Of `--speculative-config`."""
    options: Mapping[str, int | None] | None
    """Of `vllm serve`, and how many values each takes (`None`: at least one); `None` where they cannot be had."""
    arctic_inference: bool

    @property
    def cpu(self) -> bool:
        """Whether it runs on the CPU."""
        return self.platform == "cpu"


def environment_problems(added: Mapping[str, str]) -> list[str]:
    """Return a sentence for every variable of a recipe's `engine.env` that may not be set there."""
    problems = refused_variables({name: value for name, value in added.items() if name not in _REFUSED})
    return problems + [f"{name} may not be set: {_REFUSED[name]}." for name in added if name in _REFUSED]


def own_settings(*, cpu: bool, prefix: Path, threads: int | None) -> dict[str, str]:
    """Return what benchctl sets; `prefix` is vLLM's Python environment, `threads` the recipe's `engine.threads`.

    On a CPU vLLM itself binds one thread to each physical core and leaves one core to its other processes (`auto`); a
    number of threads binds to the first so many processors. Intel's OpenMP, which vLLM brings and requests where it
    speculates, is loaded first where it is there.
    """
    if not cpu:
        return dict(_ALWAYS)
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    bind = "auto" if threads is None else ",".join(map(str, allowed[:threads]))
    settings = _ALWAYS | {"VLLM_CPU_KVCACHE_SPACE": str(KV_CACHE_GIB), "VLLM_CPU_OMP_THREADS_BIND": bind}
    openmp = prefix / "lib" / "libiomp5.so"
    return settings | ({"LD_PRELOAD": str(openmp)} if openmp.is_file() else {})


def vllm_environment(
    caller: Mapping[str, str], settings: Mapping[str, str], added: Mapping[str, str]
) -> dict[str, str]:
    """Return the whole environment: what is kept of the caller's, benchctl's settings, then the recipe's."""
    return engine_environment(caller, {**settings, **added})
