"""Facts of a manifest (machine, engine, model files) as lines of name and value, whatever keys they have."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from benchctl.data.manifest import ArmIdentity, Manifest, ModelIdentity
from benchctl.reports import numbers

Fact = tuple[str, str]
LONG_LIST = 20
"""Longer lists (an engine's every flag) are counted, not shown."""


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[Fact]:
    """Yield (name, value) of every leaf of nested `values`, in their order; names of nested ones are joined by `·`."""
    for key, value in values.items():
        name = f"{prefix}{str(key).replace('_', ' ')}"
        if isinstance(value, Mapping):
            yield from flatten(value, f"{name} · ")
        elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            for number, item in enumerate(value, start=1):
                yield from flatten(item if isinstance(item, Mapping) else {"": item}, f"{name} {number} · ")
        else:
            yield _leaf(name, value)


def _leaf(name: str, value: object) -> Fact:
    if value is None:
        return name, "not known"
    if isinstance(value, bool):
        return name, "yes" if value else "no"
    if isinstance(value, list) and len(value) > LONG_LIST:
        return name, f"{len(value)} entries, listed in the run's manifest.json"
    if isinstance(value, list):
        return name, ", ".join(map(str, value)) or "none"
    if name.endswith(" bytes") and isinstance(value, int):
        return name.removesuffix("bytes").rstrip(" ·"), numbers.size(value)
    if isinstance(value, int):
        return name, numbers.count(value)
    return name, str(int(value) if isinstance(value, float) and value.is_integer() else value)


def engine(manifest: Manifest) -> list[Fact]:
    """What ran: kind, binary, build, and what it can speculate with."""
    identity = manifest.engine
    return [
        ("kind", identity.kind),
        ("version", identity.version or "not told"),
        ("build", identity.build or "not told"),
        ("commit", identity.commit or "not told"),
        ("binary", f"{identity.binary or 'not started by benchctl'} (found in: {identity.found_in})"),
        ("speculation types", ", ".join(identity.speculation_types) or "none"),
        *flatten(identity.details),
    ]


def models(manifest: Manifest) -> list[tuple[str, ModelIdentity]]:
    """The target and, where there is one, the draft, each with its role."""
    return [("Target", manifest.target)] + ([("Draft", manifest.draft)] if manifest.draft else [])


def command(arm: ArmIdentity) -> str:
    """The exact command line of an arm, quoted for a POSIX shell; the address of an endpoint that ran already."""
    return shlex.join([*arm.env, *arm.argv]) if arm.url is None else arm.url


def recipe_yaml(manifest: Manifest) -> str:
    """The recipe as it was run, as YAML."""
    import yaml

    return yaml.safe_dump(manifest.recipe, sort_keys=False, allow_unicode=True, width=100)
