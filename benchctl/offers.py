"""What experiments offer to the trunk, which imports none of them: a folder of `benchctl/experiments/` declares it.

Objects are named by import path, `module:name`, and are loaded when they are used. The folders are the
registry: entry points of all installed packages would have to be read at every start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any


@dataclass(frozen=True)
class Experiment:
    """An experiment, as its folder declares it."""

    commands: Mapping[str, str] = field(default_factory=dict)
    """By the words of the shell (`diagnose isolate`), the path of the command's function; its module imports nothing
    heavy at its top."""
    folders: tuple[str, ...] = ()
    """Folders that it makes in a run's folder."""
    nodes: str | None = None
    """Path of `(where, *, models_dir, binary)`, a context in which a run is measured on other machines: `run --on`."""
    search: str | None = None
    """Path of a class that chooses the cells of a run that searches (`benchctl.measure.runner.Search`)."""
    breakeven: str | None = None
    """Path of `(analysis, manifest or None) -> dict or None`: `breakeven` of the analysis."""
    section: str | None = None
    """Path of `(analysis) -> benchctl.reports.figures.draw.Addition | None`: what the report of a run has more."""
    study: str | None = None
    """Path of `(run, named folder or None) -> benchctl.reports.tables.study.Tensors | None`: a table of a study."""


@cache
def experiments() -> dict[str, Experiment]:
    """Return every experiment by the name of its folder, in alphabetical order."""
    folders = sorted(file.parent.name for file in Path(__file__).with_name("experiments").glob("*/__init__.py"))
    return {name: load(f"benchctl.experiments.{name}:EXPERIMENT") for name in folders}


def offered(what: str) -> Any:  # noqa: ANN401 - whatever the path names
    """Return what an experiment offers under this name. Raises LookupError where none is installed that does."""
    for experiment in experiments().values():
        if path := getattr(experiment, what):
            return load(path)
    raise LookupError(f"no installed experiment offers {what}")


def load(path: str) -> Any:  # noqa: ANN401 - whatever the path names
    """Return the object of a path `module:name`."""
    return resolve_name(path)
