"""A run as the bug form of the engine's own project: commands, a request, the smallest case, and nothing of benchctl's.

What models, logs and recipes wrote is fenced or escaped; home folders are `~`, and keys and tokens are dots. The prompt
of the case is shown as it was sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from benchctl.analysis.answers import common_length
from benchctl.analysis.cells import identity_of, latest_cells, setup_of
from benchctl.analysis.comparison.several import by_build, compare_several, first_changes
from benchctl.analysis.comparison.summary import summarise
from benchctl.analysis.reportable import Reportable
from benchctl.data.identity import home_relative
from benchctl.engines.common.issue_form import IssueForm, Part
from benchctl.engines.common.log import log_tail
from benchctl.errors import UsageError
from benchctl.lossless.judge.run import judge
from benchctl.lossless.judge.whole_answers import kept_prompts
from benchctl.recipes.adapters import adapter_of, registered
from benchctl.recipes.axes import BINARY
from benchctl.recipes.speculation import takes_draft
from benchctl.reports.community_row import backends_of
from benchctl.reports.render import markdown_block, markdown_code, markdown_text
from benchctl.reports.reproduction import shell_command, shell_request
from benchctl.reports.tables.provenance import cards, weights_of
from benchctl.text import for_strangers
from benchctl.words import issue as words
from benchctl.words import numbers
from benchctl.words.comparison import first_changes as changes_in_words
from benchctl.writing import refuse_links

if TYPE_CHECKING:
    from benchctl.analysis.losslessness import FirstDivergence
    from benchctl.analysis.results import Analysis
    from benchctl.data.manifest import ArmIdentity, EngineIdentity, Manifest, ModelIdentity
    from benchctl.data.store import RunData

LOG_LINES = 40
TEXT_CHARACTERS = 300
"""Shown of each answer from the first difference on, and of what they have in common before it."""
REQUEST_CHARACTERS = 30_000
"""Issue trackers take some 65,000 in all."""
OF_ANSWER = (
    ("this answer: tokens", "n_predicted"),
    ("this answer: ended by", "finish_reason"),
    ("this answer: drafted", "draft_n"),
    ("this answer: accepted", "draft_n_accepted"),
    ("this answer: verify rounds", "rounds"),
)
"""Rows of the table of counters, by the key of a record."""
OF_ALL = (
    ("all answers: drafted", "drafted"),
    ("all answers: accepted", "accepted"),
    ("all answers: acceptance length", "acceptance_length"),
)
UNREPORTED = "not reported"
FILES = 12
"""Of a model, as many are named."""


def form_of(manifest: Manifest, project: str | None) -> IssueForm:
    """Return the form of a project, named as engines are; of the run's own engine where none is named.

    Raises UsageError where there is no such form, or the run is of another engine.
    """
    known = [kind for kind, adapter in registered().adapters.items() if adapter.issue is not None]
    kind = project or manifest.engine.kind
    if kind not in known:
        fix = f"Write --for {', '.join(known[:-1])} or {known[-1]}."
        raise UsageError(f"benchctl has no bug form of {kind}.", where="--for", fix=fix)
    if manifest.engine.binary is not None and kind != manifest.engine.kind:
        message = f"This run is of {manifest.engine.kind}, so {kind} cannot reproduce it."
        raise UsageError(message, where="--for", fix="Leave the option out.")
    form: IssueForm = resolve_name(str(adapter_of(kind).issue))
    return form


def issue(run: RunData, manifest: Manifest, analysis: Analysis, case: Reportable, form: IssueForm) -> str:
    """Return the form filled in, as Markdown: a title, and a heading a field."""
    filled = _Filled(run, manifest, analysis, case, form)
    bug = form.speed if case.finding == "slower" else form.output
    blocks = [f"# {bug.title}{markdown_text(words.title(case))}"]
    for label, parts in bug.fields:
        blocks += [f"### {label}", *(text for part in parts if (text := filled.part(part)))]
    measured = f"Measured by benchctl {manifest.benchctl_version}, which is not needed to repeat it; run"
    blocks.append(f"{markdown_text(measured)} {markdown_code(analysis.run)}.")
    return "\n\n".join(blocks)


@dataclass(frozen=True)
class _Filled:
    """The content of a form's fields."""

    run: RunData
    manifest: Manifest
    analysis: Analysis
    case: Reportable
    form: IssueForm

    def part(self, part: Part) -> str:
        """Return a part as Markdown."""
        parts: Mapping[Part, Callable[[], str]] = {
            "version": self._version,
            "system": lambda: _prose(_system(self.manifest.machine)),
            "backends": lambda: _prose(f"Backends: {', '.join(backends_of(self._setup.engine)) or 'not reported'}"),
            "hardware": self._hardware,
            "models": self._models,
            "module": lambda: _prose(self.form.module),
            "environment": self._environment,
            "problem": self._problem,
            "reproduction": self._reproduction,
            "first bad": self._first_bad,
            "log": self._log,
        }
        return parts[part]()

    @property
    def _identities(self) -> list[ArmIdentity | None]:
        """The baseline, and the arm."""
        return [identity_of(self.manifest, name) for name in (self.case.baseline, self.case.verdict.arm)]

    @property
    def _setup(self) -> Any:  # noqa: ANN401 - the arm's engine and models: a setup, or the manifest
        identity = self._identities[1]
        return setup_of(self.manifest, identity.setup if identity else None) or self.manifest

    def _version(self) -> str:
        engine: EngineIdentity = self._setup.engine
        named = [line for line in (engine.version, engine.build and f"build {engine.build}") if line]
        named += [f"commit {engine.commit}"] if engine.commit else []
        sha256 = engine.details.get("sha256")
        named += [f"SHA-256 of the program: {sha256}"] if isinstance(sha256, str) else []
        return _fenced([f"$ {self.form.version}", *(named or ["not reported"])])

    def _hardware(self) -> str:
        machine = self.manifest.machine
        memory, cores = machine.get("memory_bytes"), machine.get("cores")
        devices = [entry for entry in machine.get("accelerators") or [] if isinstance(entry, Mapping)]
        drivers = {str(entry["driver"]): None for entry in devices if entry.get("driver")}
        lines = [
            f"{machine.get('cpu') or 'processor not known'}{f', {cores} cores' if cores else ''}",
            f"{numbers.size(memory)} memory" if isinstance(memory, int) else "",
            *cards(machine),
            *(f"driver {driver}" for driver in drivers),
        ]
        return _prose("; ".join(filter(None, lines)))

    def _models(self) -> str:
        identity = self._identities[1]
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
        return "\n\n".join([demanded, *([_prose(f"Recorded: {', '.join(recorded)}.")] if recorded else [])])

    def _problem(self) -> str:
        case, comparison = self.case, self.case.comparison
        divergence = comparison.divergence if comparison else None
        blocks = [f"**Expected:** {_prose(words.expected(case))}"]
        actual = words.actual(case, self.analysis)
        blocks += [f"**Actual:** {_prose(actual[0])}", *map(_prose, actual[1:])] if actual else []
        blocks += [_prose(words.chosen_case(case))] if case.without else []
        if divergence is not None:
            blocks += [_prose(words.first_difference(divergence)), *self._texts(divergence)]
        blocks += [_prose(sentence)] if (sentence := words.agreement(case)) else []
        return "\n\n".join([*blocks, self._counters()])

    def _texts(self, divergence: FirstDivergence) -> list[str]:
        """What both answers begin with, and how each goes on."""
        agreed, texts = divergence.agreed_text, (divergence.baseline_text, divergence.arm_text)
        if self.case.without is not None and self.case.arm is not None:
            answers = [record.content or "" for record in (self.case.without, self.case.arm)]
            split = common_length(*answers)
            rest = (answers[0][split:][:TEXT_CHARACTERS], answers[1][split:][:TEXT_CHARACTERS])
            if all(text.startswith(shown) for text, shown in zip(rest, texts, strict=True)):
                agreed, texts = answers[0][max(0, split - TEXT_CHARACTERS) : split], rest
        headings = ("Both answers, up to there:", "Without speculation, from there:", "With speculation, from there:")
        return [line for heading, text in zip(headings, (agreed, *texts), strict=True)
                for line in (heading, markdown_block(text or "(nothing)", "text"))]  # fmt: skip

    def _counters(self) -> str:
        """What was generated, drafted and accepted: in this answer, and in all of both arms."""
        names, records = (self.case.baseline, self.case.verdict.arm), (self.case.without, self.case.arm)
        accepted = [self.analysis.acceptance_of(name) for name in names]
        lines = [(label, [_reported(getattr(record, name, None)) for record in records]) for label, name in OF_ANSWER]
        lines += [(label, [_reported(getattr(row, name, None)) for row in accepted]) for label, name in OF_ALL]
        rates = [
            numbers.percent(row.rate, row.doubt) if row and row.rate is not None else UNREPORTED for row in accepted
        ]
        head = ["| | without speculation | with speculation |", "| --- | ---: | ---: |"]
        rows = [*lines, ("all answers: acceptance rate", rates)]
        return "\n".join([*head, *(f"| {' | '.join(map(markdown_text, (name, *row)))} |" for name, row in rows)])

    def _reproduction(self) -> str:
        identities = self._identities
        blocks = [words.ONE_AT_A_TIME]
        for heading, identity in zip(("Without speculation:", "With speculation:"), identities, strict=True):
            if identity is not None and identity.argv:
                blocks += [heading, markdown_block(_shared(shell_command(identity)), "sh")]
        if len(blocks) == 1:
            blocks = [words.NO_COMMAND]
        record = self.case.arm or self.case.without
        if record is not None:
            prompt = kept_prompts(self.manifest).get((record.task, record.prompt_idx))
            line = shell_request(self.manifest, identities[1], prompt, self.form)
            if line is None:
                blocks.append(_prose(words.no_request(identities[1], record.task, record.prompt_idx)))
            elif len(line) > REQUEST_CHARACTERS:
                blocks.append(_prose(words.too_long(len(line))))
            else:
                blocks += [words.SAME_REQUEST, markdown_block(line, "sh")]
            blocks += map(_prose, words.caveats(identities[1], prompt))
        return "\n\n".join(blocks)

    def _first_bad(self) -> str:
        """What `benchctl bisect` says of a run with builds as an axis."""
        if len({setup.axes.get(BINARY) for setup in self.manifest.setups} - {None}) < 2:
            return _prose(words.NOT_SEARCHED)
        several = compare_several(by_build(summarise(self.run, judge)))
        return "\n".join(f"- {_prose(sentence)}" for sentence in changes_in_words(several, first_changes(several)))

    def _log(self) -> str:
        """The end of the arm's log in the block of the case."""
        arm, record = self.case.verdict.arm, self.case.arm
        cells = [cell for cell in latest_cells(self.manifest) if cell.arm == arm]
        cells = [cell for cell in cells if record is None or cell.block == record.block] or cells
        lines: tuple[str, ...] = ()
        folder = self.run.folder / "logs"
        if cells and folder.is_dir():
            refuse_links(folder)
            with suppress(OSError):
                lines = log_tail(folder / re.sub(r".*/", "", cells[0].log), LOG_LINES)
        if not lines:
            return words.NO_LOG
        return f"{words.LOG_END}\n\n{_fenced(lines)}"


def _reported(value: object) -> str:
    return UNREPORTED if value is None else numbers.decimal(value) if isinstance(value, float) else str(value)


def _prose(text: str) -> str:
    return markdown_text(_shared(text))


def _fenced(lines: Iterable[str]) -> str:
    return markdown_block(_shared("\n".join(lines)), "text")


def _shared(text: str) -> str:
    return for_strangers(home_relative(text))


def _system(machine: Mapping[str, Any]) -> str:
    """The kernel's name as forms have it, and the system's own."""
    kernel = str(machine.get("kernel") or "")
    name = {"Darwin": "Mac"}.get(kernel.partition(" ")[0], kernel.partition(" ")[0]) or "System"
    return f"{name} ({machine.get('os') or 'not reported'}{f', {kernel}' if kernel else ''})"


def _model(role: str, model: ModelIdentity) -> list[str]:
    weights = weights_of(model.facts)
    lines = [f"- {role}: {markdown_code(_shared(model.source))}{f', {markdown_text(str(weights))}' if weights else ''}"]
    for file in model.files[:FILES]:
        lines.append(f"  - {markdown_code(file.name)}, {numbers.size(file.size)}, SHA-256 {markdown_code(file.sha256)}")
    return lines
