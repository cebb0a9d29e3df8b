"""Renders the page and the Markdown report from one view of run and analysis; everything untrusted is escaped here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from benchctl.analysis.advice import launch_command
from benchctl.analysis.conditions.split import closed_levels, open_levels, parts_of
from benchctl.analysis.results import ALL_TASKS, Analysis
from benchctl.data.prompt_texts import prompt_texts
from benchctl.data.store import RunData
from benchctl.lossless.whole_answers import PromptAnswers, find_whole_answers
from benchctl.reports import conclusion, numbers, page
from benchctl.reports.columns import Cell, Code, Folded, Name, Table, lossy_labels
from benchctl.reports.figures.draw import addition_to
from benchctl.reports.page import cards
from benchctl.reports.tables import acceptance, output, provenance, rounds, speed, sweep
from benchctl.text import one_line, visible

if TYPE_CHECKING:
    from jinja2 import Environment

    from benchctl.data.manifest import Manifest
    from benchctl.reports.figures.draw import Drawing, Section


MOST_FORKS = 12
"""Limit of differing answers of an arm in the Markdown report; `analysis.json` has all."""
ANSWER_CHARACTERS = 400_000
"""Limit of the text of prompts and answers on a page."""


def render_html(run: RunData, analysis: Analysis, drawings: Sequence[Drawing]) -> str:
    """The self-contained page: styles, figures, scripts and data are inline, and nothing is fetched."""
    from markupsafe import Markup

    environment = _environment(visible, autoescape=True)
    environment.filters |= {"table": page.html_table, "facts": page.html_facts, "prose": page.prose}
    environment.filters |= {"first_word": _first_word, "probabilities": output.probabilities}
    texts = page.scripts()
    answers = whole_answers(run, analysis)
    included = _within_budget(answers)
    return environment.get_template("page.html.j2").render(
        _view(run, analysis, drawings),
        svgs=page.inline_svgs(drawings),
        answers=included,
        answers_left_out=len(answers) - len(included),
        scripts=[Markup(text) for text in texts],  # noqa: S704 - files of this package
        script_hashes=Markup(page.hashes(texts)),  # noqa: S704 - base64
        data=Markup(page.plot_data(analysis)),  # noqa: S704 - JSON without `<`
        glance=provenance.glance(run.manifest) if run.manifest else [],
    )


def whole_answers(run: RunData, analysis: Analysis) -> list[PromptAnswers]:
    """Every prompt with its answers; the texts of prompts as far as they are found."""
    return find_whole_answers(run, analysis, prompt_texts(run.manifest) if run.manifest else {})


def _within_budget(answers: list[PromptAnswers]) -> list[PromptAnswers]:
    """As many prompts as the page may hold, those with a divergence first."""
    included: list[PromptAnswers] = []
    available = ANSWER_CHARACTERS
    for answer in answers:
        available -= len(answer.prompt or "") + len(answer.baseline or "") + 200
        available -= sum(2 * len(found.agreed) + len(found.baseline) + len(found.arm) for found in answer.diverging)
        if available < 0 and included:
            break
        included.append(answer)
    return included


def _first_word(text: str) -> tuple[str, str]:
    """The first word (or character outside one) and the rest: the first is marked at a divergence."""
    found = re.match(r"\s*(?:[A-Za-z0-9_]+|\S)|\s+", text)
    return (text[: found.end()], text[found.end() :]) if found else ("", "")


def render_markdown(run: RunData, analysis: Analysis, drawings: Sequence[Drawing]) -> str:
    """The Markdown report; text is escaped unless a filter made it a code span or a fenced block."""
    from markupsafe import Markup

    environment = _environment(markdown_text, autoescape=False)

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


def _environment(escape: Callable[[str], str], *, autoescape: bool) -> Environment:
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
    """The values of the templates, by name."""
    manifest = run.manifest
    differing = {
        arm.arm: [comparison for comparison in arm.comparisons if comparison.outcome != "identical"]
        for arm in analysis.losslessness
    }
    to_run, decided = conclusion.what_to_run(analysis), conclusion.only_group(analysis)
    methods = {row.interval.method for row in analysis.speedups if row.interval}
    return {
        "analysis": analysis,
        "manifest": manifest,
        "headline": conclusion.headline(analysis),
        "fidelity": conclusion.fidelity(analysis),
        "notices": conclusion.notices(run, analysis),
        "findings": conclusion.findings(analysis),
        "verdicts": analysis.verdicts,
        "cards": cards(analysis),
        "tables": _tables(analysis),
        "sweep_sections": _sweep_sections(analysis, manifest),
        "lossy": lossy_labels(analysis),
        "addition": addition_to(analysis),
        "round_statements": rounds.round_statements(analysis),
        "overlapping": any(row.overlapping for row in analysis.sweep.levels) if analysis.sweep else False,
        "no_interval": numbers.no_interval(analysis),
        "methods": sorted(methods),
        "arm_ids": {arm: f"arm-{number}" for number, arm in enumerate(analysis.arms)},
        "drawings": [drawing for drawing in drawings if drawing.varies is None],
        "sweep_drawings": [drawing for drawing in drawings if drawing.varies is not None],
        "differing": [comparison for found in differing.values() for comparison in found[:MOST_FORKS]],
        "differing_left_out": sum(max(0, len(found) - MOST_FORKS) for found in differing.values()),
        "replays": [part.replays for part in parts_of(run) if part.replays is not None],
        "warning_groups": conclusion.grouped_warnings(analysis),
        "advice_command": decided.overall.command if decided else None,
        "what_to_run": to_run,
        "production_commands": conclusion.production_commands(to_run.rows),
        "experiment": analysis.decision.next if analysis.decision else None,
        "advice_lines": conclusion.advice_lines(analysis),
        "null_control": conclusion.null_control(analysis),
        "run_warnings": manifest.warnings if manifest else [],
        "how": provenance.sections(manifest, analysis, run.integrity) if manifest else {},
        "models": provenance.models(manifest) if manifest else [],
        "cells": provenance.cells(manifest, analysis) if manifest else None,
        "recipe_yaml": provenance.recipe_yaml(manifest) if manifest else "",
    }


def _tables(analysis: Analysis) -> dict[str, Any]:
    """Every table by name; the templates handle those without rows."""
    tables: dict[str, Any] = {
        "conclusions": speed.conclusions(analysis),
        "costs": speed.costs(analysis),
        "units": rounds.unit_costs(analysis),
        "round_splits": rounds.round_splits(analysis),
        "forecasts": rounds.forecasts(analysis),
        "throughput": speed.throughput(analysis),
        "resources": speed.resources(analysis),
        "positions": acceptance.acceptance_by_position(analysis),
        "positions_conditional": acceptance.acceptance_by_position(analysis, conditional=True),
        "rounds_by_count": acceptance.rounds(analysis),
        "losslessness": output.losslessness(analysis),
        "forks": output.forks(analysis),
        "noise": output.noise_floors(analysis),
        "consistency": output.consistency(analysis),
    }
    for name, table in (("speedup", speed.speedups(analysis)), ("acceptance", acceptance.acceptance(analysis))):
        tables |= _by_task(name, table)
    return tables


def _sweep_sections(analysis: Analysis, manifest: Manifest | None) -> list[tuple[Section, str, list[Table[Any]]]]:
    """What varies, its heading, its tables; only of what was swept."""
    of_levels = (sweep.all_requests, sweep.one_request)
    over_axes = analysis.sweep is not None and analysis.sweep.over_axes
    by_axis: list[Table[Any]] = [sweep.groups(analysis), sweep.by_axis(analysis)]
    found: list[tuple[Section, str, list[Table[Any]]]] = []
    if over_axes:
        found.append(("axes", "By axis", by_axis))
    if analysis.sweep is not None and "context_length" in analysis.sweep.dimensions:
        found.append(("context_length", "By context length", [] if over_axes else by_axis))
    found += [
        ("concurrency", "By concurrency", [make(analysis, closed_levels(analysis)) for make in of_levels]),
        ("rate", "By rate", [make(analysis, open_levels(analysis)) for make in of_levels]),
        ("temperature", "By temperature", [sweep.by_temperature(analysis)]),
    ]
    return [section for section in found if not section[2] or section[2][0].rows]


def _by_task(name: str, table: Table[Any]) -> dict[str, Table[Any]]:
    """A table whole, of all tasks together, and task by task."""
    return {
        name: table,
        f"{name}_overall": table.where(lambda row: row.task == ALL_TASKS),
        f"{name}_by_task": table.where(lambda row: row.task != ALL_TASKS, f"{table.title} by task"),
    }


def markdown_text(text: str) -> str:
    """Escape `text` for running Markdown text or a table cell: it forms no markup and no link."""
    escaped = re.sub(r"([\\`*\[\]#|~!$]|(?<!\w)_|_(?!\w))", r"\\\1", one_line(text).strip())
    escaped = escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    escaped = escaped.replace("://", ":&#47;&#47;").replace("@", "&#64;")
    escaped = re.sub(r"(?i)\bwww\.", lambda match: match[0][:-1] + "&#46;", escaped)
    return re.sub(r"^(\d+(?=[.)]\s)|(?=[-+=][-+=\s]))", r"\1\\", f"{escaped} ")[:-1]


def markdown_code(text: str) -> str:
    """Return `text` as a code span of one line that it cannot break out of; safe in a table cell, too."""
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
    pieces = cell if isinstance(cell, tuple) else (cell,)
    cells: list[str] = []
    for piece in pieces:
        if isinstance(piece, Folded):
            cells.append(markdown_text(piece.summary))  # the lines are below the table
        else:
            cells.append(markdown_code(piece) if isinstance(piece, Name | Code) else markdown_text(piece))
    return " ".join(cells)


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall(r"`+", text)), default=0)
