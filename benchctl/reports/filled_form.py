"""A bug form of an engine's project, filled with what ran: versions, hardware, models, and the end of a log.

What models, logs and recipes wrote is fenced or escaped; home folders are `~`, and keys and tokens are dots.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchctl.analysis.cells import identity_of, setup_of
from benchctl.data.identity import home_relative
from benchctl.engines.common.issue_form import BugForm, IssueForm, Part
from benchctl.engines.common.log import log_tail
from benchctl.recipes.speculation import takes_draft
from benchctl.reports.community_row import backends_of
from benchctl.reports.render import markdown_block, markdown_code, markdown_text
from benchctl.reports.tables.provenance import cards, processor, weights_of
from benchctl.text import for_strangers
from benchctl.words import issue as words
from benchctl.words import numbers
from benchctl.writing import refuse_links

if TYPE_CHECKING:
    from pathlib import Path

    from benchctl.data.manifest import EngineIdentity, Manifest, ModelIdentity

LOG_LINES = 40
FILES = 12
"""Of a model, as many are named."""


@dataclass(frozen=True)
class FilledForm(ABC):
    """A project's form, filled with what ran; what happened is filled in by those that know it."""

    manifest: Manifest
    form: IssueForm
    arm: str
    logs: Path
    """The folder of the engines' logs."""

    def text(self, bug: BugForm, title: str, end: str) -> str:
        """Return the form as Markdown: a title, a heading a field, and a last line."""
        blocks = [f"# {bug.title}{markdown_text(title)}"]
        for label, parts in bug.fields:
            blocks += [f"### {label}", *(text for part in parts if (text := self.part(part)))]
        return "\n\n".join([*blocks, end])

    def part(self, part: Part) -> str:
        """Return a part as Markdown."""
        parts: Mapping[Part, Callable[[], str]] = {
            "version": self._version,
            "system": lambda: prose(_system(self.manifest.machine)),
            "backends": lambda: prose(f"Backends: {', '.join(backends_of(self._setup.engine)) or 'not reported'}"),
            "hardware": self._hardware,
            "models": self._models,
            "module": lambda: prose(self.form.module),
            "environment": self._environment,
            "problem": self.problem,
            "reproduction": self.reproduction,
            "first bad": self.first_bad,
            "log": self._log,
        }
        return parts[part]()

    @abstractmethod
    def problem(self) -> str:
        """Return what was expected, and what happened."""

    @abstractmethod
    def reproduction(self) -> str:
        """Return commands and requests that show it."""

    def first_bad(self) -> str:
        """Return which build shows it first."""
        return words.NOT_SEARCHED

    @abstractmethod
    def log_name(self) -> str | None:
        """Return the file of the arm's log in `logs`."""

    def _log(self) -> str:
        name = self.log_name()
        lines: tuple[str, ...] = ()
        if name is not None and self.logs.is_dir():
            refuse_links(self.logs)
            with suppress(OSError):
                lines = log_tail(self.logs / re.sub(r".*/", "", name), LOG_LINES)
        return f"{words.LOG_END}\n\n{fenced(lines)}" if lines else words.NO_LOG

    @property
    def _setup(self) -> Any:  # noqa: ANN401 - the arm's engine and models: a setup, or the manifest
        identity = identity_of(self.manifest, self.arm)
        return setup_of(self.manifest, identity.setup if identity else None) or self.manifest

    def _version(self) -> str:
        engine: EngineIdentity = self._setup.engine
        named = [line for line in (engine.version, engine.build and f"build {engine.build}") if line]
        named += [f"commit {engine.commit}"] if engine.commit else []
        sha256 = engine.details.get("sha256")
        named += [f"SHA-256 of the program: {sha256}"] if isinstance(sha256, str) else []
        return fenced([f"$ {self.form.version}", *(named or ["not reported"])])

    def _hardware(self) -> str:
        machine = self.manifest.machine
        memory = machine.get("memory_bytes")
        devices = [entry for entry in machine.get("accelerators") or [] if isinstance(entry, Mapping)]
        drivers = {str(entry["driver"]): None for entry in devices if entry.get("driver")}
        lines = [
            processor(machine),
            f"{numbers.size(memory)} memory" if isinstance(memory, int) else "",
            *cards(machine),
            *(f"driver {driver}" for driver in drivers),
        ]
        return prose("; ".join(filter(None, lines)))

    def _models(self) -> str:
        identity = identity_of(self.manifest, self.arm)
        drafts = identity is None or takes_draft(identity.types)
        models = {"Target": self._setup.target, "Draft": self._setup.draft if drafts else None}
        return "\n".join(line for role, model in models.items() if model is not None for line in _model(role, model))

    def _environment(self) -> str:
        demanded = f"Add the output of {markdown_code(self.form.environment)}: benchctl did not run it."
        details = self._setup.engine.details
        packages = details.get("distributions")
        recorded = [f"{name} {value}" for name, value in packages.items()] if isinstance(packages, Mapping) else []
        recorded += [f"Python {details['python']}"] if details.get("python") else []
        recorded += [f"platform {details['platform']}"] if details.get("platform") else []
        return "\n\n".join([demanded, *([prose(f"Recorded: {', '.join(recorded)}.")] if recorded else [])])


def prose(text: str) -> str:
    """Return untrusted text as Markdown for strangers."""
    return markdown_text(shared(text))


def fenced(lines: Iterable[str]) -> str:
    """Return untrusted lines as a block for strangers."""
    return markdown_block(shared("\n".join(lines)), "text")


def shared(text: str) -> str:
    """Return text without home folders and keys."""
    return for_strangers(home_relative(text))


def _system(machine: Mapping[str, Any]) -> str:
    """The kernel's name as forms have it, and the system's own."""
    kernel = str(machine.get("kernel") or "")
    name = {"Darwin": "Mac"}.get(kernel.partition(" ")[0], kernel.partition(" ")[0]) or "System"
    return f"{name} ({machine.get('os') or 'not reported'}{f', {kernel}' if kernel else ''})"


def _model(role: str, model: ModelIdentity) -> list[str]:
    weights = weights_of(model.facts)
    lines = [f"- {role}: {markdown_code(shared(model.source))}{f', {markdown_text(str(weights))}' if weights else ''}"]
    for file in model.files[:FILES]:
        lines.append(f"  - {markdown_code(file.name)}, {numbers.size(file.size)}, SHA-256 {markdown_code(file.sha256)}")
    return lines
