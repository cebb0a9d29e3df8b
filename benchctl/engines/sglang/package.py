"""What an installed SGLang can do, as it reported when it was probed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from benchctl.engines.common.process import engine_environment, refused_variables

OWN_SETTINGS = {
    # /health would generate a token and take a second for it.
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
    "HF_HUB_OFFLINE": "1",  # models are resolved before; a name that is no folder must not be fetched
    "TRANSFORMERS_OFFLINE": "1",
    # `python -m` would look for packages in the current folder first.
    "PYTHONSAFEPATH": "1",
    "NO_COLOR": "1",
}
_SIMULATES = re.compile(r"(?:SGLANG_)?SIMULATE_ACC")


@dataclass(frozen=True)
class Option:
    """One option of SGLang's argument parser."""

    flag: bool
    """Whether it takes no value."""
    choices: tuple[str, ...] | None


@dataclass(frozen=True)
class Package:
    """What the installed package reports of itself."""

    version: str
    algorithms: tuple[str, ...]
    options: Mapping[str, Option]


def environment_problems(added: Mapping[str, str]) -> list[str]:
    """Return a sentence for every variable of a recipe's `engine.env` that may not be set there."""
    problems = refused_variables(added)
    for name in added:
        if _SIMULATES.match(name):
            problems.append(f"{name} makes SGLang simulate acceptance, which is not a measurement.")
        elif name == "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION":
            problems.append(f"{name} may not be set: a health check that generates disturbs what is measured.")
    return problems


def sglang_environment(caller: Mapping[str, str], added: Mapping[str, str], *, cpu: bool) -> dict[str, str]:
    """Return the whole environment: what is kept of the caller's, benchctl's settings, then the recipe's."""
    return engine_environment(caller, {**own_settings(cpu=cpu), **added})


def own_settings(*, cpu: bool) -> dict[str, str]:
    """Return what benchctl sets."""
    return OWN_SETTINGS | ({"SGLANG_USE_CPU_ENGINE": "1"} if cpu else {})
