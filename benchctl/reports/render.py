"""Renders page and Markdown report from the same view of run and analysis; everything untrusted is escaped here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from benchctl.analysis.advice import launch_command
from benchctl.analysis.outcome import find_outcome
from benchctl.analysis.results import Analysis
from benchctl.data.store import RunData
from benchctl.lossless.judge.whole_answers import PromptAnswers, find_whole_answers
from benchctl.reports import page
from benchctl.reports.columns import Cell, Code, Folded, Name, Piece, Table, lossy_labels
from benchctl.reports.first_screen import decisive, never_folded
from benchctl.reports.tables import breakeven, output, provenance
from benchctl.reports.tables.advice import has_choices, only_group, production_commands, told_by_group, what_to_run
from benchctl.text import one_line, visible
from benchctl.words import advice as advice_words
from benchctl.words import answer_length as length_words
from benchctl.words import breakeven as breakeven_words
from benchctl.words import conclusion, notices, numbers, stopping
from benchctl.words import experiment as experiment_words
from benchctl.words import outcome as outcome_words
from benchctl.words import verdict as verdict_words
from benchctl.words.scope import scope_lines

if TYPE_CHECKING:
    from jinja2 import Environment

    from benchctl.reports.figures.draw import Drawing


MOST_ARMS = 12
"""Arms on the page whose reasons are not folded together."""
ANSWER_CHARACTERS = 400_000
"""Limit of the text of prompts and answers on a page."""


def render_html(run: RunData, analysis: Analysis, drawings: Sequence[Drawing]) -> str:
    """The self-contained page: styles, figures, scripts and data are inline, and nothing is fetched."""
    from markupsafe import Markup

    environment = template_environment(visible, autoescape=True)
    environment.filters |= {"table": page.html_table, "facts": page.html_facts, "prose": page.prose}
    environment.filters |= {"first_word": _first_word, "probabilities": output.probabilities}
    texts = page.scripts()[0 if drawings else 1 :]  # without figures there is nothing to plot
    manifest = run.manifest
    answers = find_whole_answers(run, analysis)
    included = _within_budget(answers)
    methods = {row.interval.method for row in analysis.speedups if row.interval}
    view, folds = _view(run, analysis, drawings), page.folds(run, analysis, drawings)
    return environment.get_template("page.html.j2").render(
        view,
        folds=folds,
        swept={name: title for name, title in page.SWEPT.items() if folds[name] or name in view["first_drawing"]},
        svgs=page.inline_svgs(drawings),
        most_arms=MOST_ARMS,
        overlapping=any(row.overlapping for row in analysis.sweep.levels) if analysis.sweep else False,
        methods=sorted(methods),
        answers=included,
        answers_left_out=len(answers) - len(included),
        diverging=sum(bool(answer.diverging) for answer in answers),
        how=provenance.sections(manifest, analysis, run.integrity) if manifest else {},
        models=provenance.models(manifest) if manifest else [],
        cells=provenance.cells(manifest, analysis) if manifest else None,
        recipe_yaml=provenance.recipe_yaml(manifest) if manifest else "",
        commands=production_commands(analysis.decision.rows) if analysis.decision else [],
        scripts=[Markup(text) for text in texts],  # noqa: S704 - files of this package
        script_hashes=Markup(page.hashes(texts)),  # noqa: S704 - base64
        data=Markup(page.plot_data(analysis)),  # noqa: S704 - JSON without `<`
    )


def _within_budget(answers: list[PromptAnswers]) -> list[PromptAnswers]:
    """As many prompts as the page may hold, those with a divergence first."""
    included: list[PromptAnswers] = []
    available = ANSWER_CHARACTERS
    for answer in answers:
        available -= len(answer.prompt or "") + len(answer.baseline or "") + 200
        available -= sum(2 * len(side.agreed) + len(side.baseline) + len(side.arm) for side in answer.diverging)
        if available < 0 and included:
            break
        included.append(answer)
    return included


def _first_word(text: str) -> tuple[str, str]:
    """The first word (or a character outside a word) and the rest: the first is marked at a divergence."""
    match = re.match(r"\s*(?:[A-Za-z0-9_]+|\S)|\s+", text)
    return (text[: match.end()], text[match.end() :]) if match else ("", "")


def render_markdown(run: RunData, analysis: Analysis, drawings: Sequence[Drawing]) -> str:
    """The Markdown report; text is escaped unless a filter made it a code span or a fenced block."""
    from markupsafe import Markup

    environment = template_environment(markdown_text, autoescape=False)

    def escaped(write: Callable[..., str]) -> Callable[..., Markup]:
        return lambda *parts: Markup(write(*parts))  # noqa: S704 - `markdown` escapes it for Markdown

    environment.filters |= {
        "code": escaped(markdown_code),
        "fence": escaped(markdown_block),
        "table": escaped(markdown_table),
        "facts": escaped(markdown_facts),
    }
    text = environment.get_template("report.md.j2").render(_view(run, analysis, drawings))
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


@cache
def template_environment(escape: Callable[[str], str], *, autoescape: bool) -> Environment:
    """An environment that passes every text of a template through `escape`, unless it is `Markup`."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def finalize(value: object) -> object:
        return escape(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = Environment(
        loader=PackageLoader("benchctl.reports"),
        autoescape=autoescape,  # noqa: S701 - off for Markdown alone, where `escape` does it
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for function in (numbers.ratio, numbers.percent, numbers.count, numbers.interval, numbers.moment):
        environment.filters[function.__name__] = function
    environment.filters["command"] = launch_command
    return environment


def _view(run: RunData, analysis: Analysis, drawings: Sequence[Drawing]) -> dict[str, Any]:
    """The values of both templates, by name."""
    manifest, decided, outcome = run.manifest, only_group(analysis), find_outcome(analysis)
    experiment = analysis.decision.next if analysis.decision else None
    to_run, warnings = what_to_run(analysis), notices.grouped_warnings(analysis)
    choices = has_choices(to_run) and not told_by_group(analysis)
    first: dict[str, Drawing] = {}
    for drawing in drawings:
        if drawing.varies is not None or drawing.name == page.speed_figure(analysis):
            first.setdefault(drawing.varies or "speed", drawing)
    demonstration = outcome_words.DEMONSTRATION if manifest and provenance.demonstrates(manifest) else ""
    return {
        "analysis": analysis,
        "manifest": manifest,
        "headline": conclusion.headline(analysis),
        "fidelity": " ".join(filter(None, [conclusion.fidelity(analysis), demonstration])),
        "felt": outcome_words.felt(outcome, analysis),
        "lengths": length_words.sentences(analysis),
        "disturbed": bool(outcome.disturbed),
        "scopes": scope_lines(analysis.losslessness),
        "notices": notices.notices(run, analysis),
        "sweep_sentences": conclusion.sentences_of_sweep(analysis),
        "first_table": decisive(analysis, None)[0],
        "stopped": stopping.first_sentence(analysis.stopping) if analysis.stopping else "",
        "null_control": conclusion.null_control(analysis),
        "decided": decided,
        "action": advice_words.action(analysis, decided) if decided else "",
        "what_to_run": to_run if choices else None,
        "additions": {} if outcome.disturbed else {row.arm: row for row in reversed(to_run.rows) if row.added},
        "added_to": advice_words.added_to,
        "validity": output.validity(analysis.losslessness),
        "accuracy": output.accuracy(analysis),
        "experiment": experiment,
        "to_measure": experiment_words.sentence(experiment) if experiment else "",
        "verdicts": analysis.verdicts,
        "conclusions": {row.arm: verdict_words.conclusion(analysis, row) for row in analysis.verdicts},
        "explanations": {row.arm: verdict_words.explanation(analysis, row) for row in analysis.verdicts},
        "lossy": lossy_labels(analysis),
        "faults": conclusion.faults(analysis),
        "never_folded": never_folded(analysis),
        "undetermined": {
            row.arm: verdict_words.output(row)
            for row in analysis.losslessness
            if row.verdict == "undetermined" and row.arm not in never_folded(analysis)  # else its conclusion has it
        },
        "breakeven": None if analysis.breakeven is None else breakeven.needs_table(analysis.breakeven),
        "breakeven_statements": [] if analysis.breakeven is None else breakeven_words.statements(analysis.breakeven),
        "first_drawing": first,
        "drawings": drawings,
        "warnings": warnings,
        "glance": provenance.glance(manifest) if manifest else [],
        "ran_on": [*reversed(provenance.short_names(manifest)), provenance.hardware(manifest)] if manifest else [],
    }


def markdown_text(text: str) -> str:
    """Escape `text` for running Markdown text or a table cell: it forms no link and no markup but code in backticks."""
    parts = re.split(r"(`[^`]+`)", one_line(text).strip())
    return "".join(markdown_code(part[1:-1]) if index % 2 else _escaped(part) for index, part in enumerate(parts))


def _escaped(text: str) -> str:
    escaped = re.sub(r"([\\`*\[\]#|~!$]|(?<!\w)_|_(?!\w))", r"\\\1", text)
    escaped = escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    escaped = escaped.replace("://", ":&#47;&#47;").replace("@", "@&#8203;")  # trackers link names in the rendered text
    escaped = re.sub(r"\\#(?=\d)", r"\\#&#8203;", escaped)
    escaped = re.sub(r"(?i)\bwww\.", lambda match: match[0][:-1] + "&#46;", escaped)
    return re.sub(r"^(\d+(?=[.)]\s)|(?=[-+=][-+=\s]))", r"\1\\", f"{escaped} ")[:-1]


def markdown_lines(text: str, *, begin: str = "", width: int = 100) -> str:
    """Return `text` as lines of at most `width` characters, each escaped: a paragraph, or an entry of a list.

    `begin`: what stands before it, such as `- `; further lines are indented as far. Longer words stay whole.
    """
    lines: list[str] = [""]
    for word in re.findall(r"(?:`[^`]+`|\S)+", one_line(text)):
        line = f"{lines[-1]} {word}".strip()
        if lines[-1] and len(begin) + len(markdown_text(line)) > width:
            lines.append(word)
        else:
            lines[-1] = line
    return begin + f"\n{' ' * len(begin)}".join(map(markdown_text, lines))


def markdown_code(text: str) -> str:
    """Return `text` as a code span of a line that it cannot break out of; safe in a table cell, too."""
    line = one_line(text).replace("|", "¦") or " "
    fence = "`" * (_longest_run(line) + 1)
    pad = " " if line.startswith(("`", " ")) or line.endswith(("`", " ")) else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def markdown_block(text: str, language: str = "") -> str:
    """Return `text` as a fenced block that it cannot break out of."""
    safe = visible(text)
    fence = "`" * max(3, _longest_run(safe) + 1)
    return f"{fence}{language}\n{safe.rstrip(chr(10))}\n{fence}"


def markdown_table(table: Table[Any]) -> str:
    """The table as pipes, a line a row, and what its columns mean below it."""
    columns = table.visible_columns
    lines = [
        [markdown_text(column.heading) for column in columns],
        ["---:" if column.align == "right" else "---" for column in columns],
        *([_cell(column.text(row)) for column in columns] for row in table.rows),
    ]
    rows = [f"| {' | '.join(cells)} |" for cells in lines]
    return "\n".join([*rows, *(["", markdown_text(table.explanation)] if table.explanation else [])])


def markdown_facts(facts: Iterable[tuple[str, Cell]]) -> str:
    """Names and values as a table without headers."""
    lines = [f"| {markdown_text(name)} | {_cell(value)} |" for name, value in facts]
    return "\n".join(["| | |", "| --- | --- |", *lines])


def _cell(cell: Cell) -> str:
    def write(piece: Piece) -> str:
        text = piece.summary if isinstance(piece, Folded) else piece  # what is folded is on the page
        return markdown_code(text) if isinstance(text, Name | Code) else markdown_text(text)

    return " ".join(map(write, cell if isinstance(cell, tuple) else (cell,)))


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall(r"`+", text)), default=0)
