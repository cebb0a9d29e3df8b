"""A run as the bug form of the engine's own project: commands, a request, the smallest case, and nothing of benchctl's.

What models, logs and recipes wrote is fenced or escaped; home folders are `~`, and keys and tokens are dots. The prompt
of the case is shown as it was sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from benchctl.analysis.answers import common_length
from benchctl.analysis.cells import identity_of, latest_cells
from benchctl.analysis.comparison.several import by_build, compare_several, first_changes
from benchctl.analysis.comparison.summary import summarise
from benchctl.analysis.reportable import Reportable
from benchctl.engines.common.issue_form import IssueForm
from benchctl.errors import UsageError
from benchctl.lossless.judge.run import judge
from benchctl.lossless.judge.whole_answers import kept_prompts
from benchctl.recipes.adapters import adapter_of, registered
from benchctl.recipes.axes import BINARY
from benchctl.reports.filled_form import FilledForm, prose, shared
from benchctl.reports.render import markdown_block, markdown_code, markdown_text
from benchctl.reports.reproduction import shell_command, shell_request
from benchctl.words import issue as words
from benchctl.words import numbers
from benchctl.words.comparison import first_changes as changes_in_words

if TYPE_CHECKING:
    from benchctl.analysis.losslessness import FirstDivergence
    from benchctl.analysis.results import Analysis
    from benchctl.data.manifest import ArmIdentity, Manifest
    from benchctl.data.store import RunData

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
    filled = _OfRun(manifest, form, case.verdict.arm, run.folder / "logs", run, analysis, case)
    measured = f"Measured by benchctl {manifest.benchctl_version}, which is not needed to repeat it; run"
    end = f"{markdown_text(measured)} {markdown_code(analysis.run)}."
    return filled.text(form.speed if case.finding == "slower" else form.output, words.title(case), end)


@dataclass(frozen=True)
class _OfRun(FilledForm):
    """A form about an arm of a run."""

    run: RunData
    analysis: Analysis
    case: Reportable

    @property
    def _identities(self) -> list[ArmIdentity | None]:
        """The baseline, and the arm."""
        return [identity_of(self.manifest, name) for name in (self.case.baseline, self.arm)]

    def problem(self) -> str:
        """Return what was expected and what happened, with the case and its counters."""
        case, comparison = self.case, self.case.comparison
        divergence = comparison.divergence if comparison else None
        blocks = [f"**Expected:** {prose(words.expected(case))}"]
        actual = words.actual(case, self.analysis)
        blocks += [f"**Actual:** {prose(actual[0])}", *map(prose, actual[1:])] if actual else []
        blocks += [prose(words.chosen_case(case))] if case.without else []
        if divergence is not None:
            blocks += [prose(words.first_difference(divergence)), *self._texts(divergence)]
        blocks += [prose(sentence)] if (sentence := words.agreement(case)) else []
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

    def reproduction(self) -> str:
        """Return both commands, and the request."""
        identities = self._identities
        blocks = [words.ONE_AT_A_TIME]
        for heading, identity in zip(("Without speculation:", "With speculation:"), identities, strict=True):
            if identity is not None and identity.argv:
                blocks += [heading, markdown_block(shared(shell_command(identity)), "sh")]
        if len(blocks) == 1:
            blocks = [words.NO_COMMAND]
        record = self.case.arm or self.case.without
        if record is not None:
            prompt = kept_prompts(self.manifest).get((record.task, record.prompt_idx))
            line = shell_request(self.manifest, identities[1], prompt, self.form)
            if line is None:
                blocks.append(prose(words.no_request(identities[1], record.task, record.prompt_idx)))
            elif len(line) > REQUEST_CHARACTERS:
                blocks.append(prose(words.too_long(len(line))))
            else:
                blocks += [words.SAME_REQUEST, markdown_block(line, "sh")]
            blocks += map(prose, words.caveats(identities[1], prompt))
        return "\n\n".join(blocks)

    def first_bad(self) -> str:
        """What `benchctl bisect` says of a run with builds as an axis."""
        if len({setup.axes.get(BINARY) for setup in self.manifest.setups} - {None}) < 2:
            return prose(words.NOT_SEARCHED)
        several = compare_several(by_build(summarise(self.run, judge)))
        return "\n".join(f"- {prose(sentence)}" for sentence in changes_in_words(several, first_changes(several)))

    def log_name(self) -> str | None:
        """Return the log of the arm's process in the block of the case."""
        record = self.case.arm
        cells = [cell for cell in latest_cells(self.manifest) if cell.arm == self.arm]
        cells = [cell for cell in cells if record is None or cell.block == record.block] or cells
        return cells[0].log if cells else None


def _reported(value: object) -> str:
    return UNREPORTED if value is None else numbers.decimal(value) if isinstance(value, float) else str(value)
