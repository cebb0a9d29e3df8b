"""What experiments offer to the trunk: each registers itself, as engines do, and the trunk imports none of them.

    [project.entry-points."benchctl.experiments"]
    isolate = "benchctl.experiments.isolate:EXPERIMENT"

Objects are named by import path, `module:name`, and are loaded when they are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

GROUP = "benchctl.experiments"


@dataclass(frozen=True)
class Experiment:
    """An experiment, as its folder declares it."""

    commands: Mapping[str, str] = field(default_factory=dict)
    """By the word of the shell, the path of the command's function; its module imports nothing heavy at its top."""
    folders: tuple[str, ...] = ()
    """Folders that it makes in a run's folder."""
    sweeps: tuple[str, ...] = ()
    """Commands that take `-L KEY V1,V2`."""
    nodes: str | None = None
    """Path of `(where, *, models_dir, binary)`, a context in which a run is measured on other machines: `run --on`."""
    search: str | None = None
    """Path of a class that chooses the cells of a run that searches (`benchctl.measure.run.Search`)."""
    study: str | None = None
    """Path of `(run, named folder or None) -> benchctl.reports.tables.study.Tensors | None`: a table of a study."""


@cache
def experiments() -> dict[str, Experiment]:
    """Load every registered experiment, by name. One that cannot be loaded raises what its import raises."""
    return {entry.name: entry.load() for entry in sorted(_entries())}


def offered(what: str) -> Any:  # noqa: ANN401 - whatever the path names
    """Return what an experiment offers as `nodes` or `search`. Raises LookupError where none is installed that does."""
    for experiment in experiments().values():
        if path := getattr(experiment, what):
            return load(path)
    raise LookupError(f"no installed experiment offers {what}")


def load(path: str) -> Any:  # noqa: ANN401 - whatever the path names
    """Return the object of a path `module:name`."""
    return resolve_name(path)


def _entries() -> Iterator[EntryPoint]:
    """Yield what is registered; of a source tree what its pyproject.toml says, which its metadata may not know yet."""
    own = _of_source_tree()
    yield from own
    known = {entry.name for entry in own}
    yield from (entry for entry in entry_points(group=GROUP) if entry.name not in known)


def _of_source_tree() -> list[EntryPoint]:
    file = Path(__file__).parents[1] / "pyproject.toml"
    if not file.is_file():
        return []
    import tomllib

    project = tomllib.loads(file.read_text("utf-8")).get("project", {})
    found = project.get("entry-points", {}).get(GROUP, {}) if project.get("name") == "benchctl" else {}
    return [EntryPoint(name, value, GROUP) for name, value in found.items()]
