"""The parts of the HTML page: tables, facts, figures in the page's colours, folded evidence, scripts and their data."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from benchctl.analysis.conditions.results import Level, Quantiles
from benchctl.analysis.conditions.split import closed_levels, open_levels
from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.result import Interval
from benchctl.analysis.results import Analysis
from benchctl.reports.columns import Cell, Code, Column, Folded, Row, Table
from benchctl.reports.figures import style
from benchctl.reports.figures.arms import drawn_positions
from benchctl.reports.tables import breakeven, output, rounds, speed, sweep
from benchctl.text import visible
from benchctl.words import breakeven as breakeven_words

if TYPE_CHECKING:
    from benchctl.data.store import RunData
    from benchctl.reports.figures.draw import Drawing, Section
    from benchctl.reports.tables.provenance import Fact


def html_table(table: Table[Any]) -> Markup:
    """The table with its caption, in a box that scrolls, and what its columns mean below it."""
    columns = table.visible_columns
    head = Markup("").join(
        Markup('<th scope="col"{}>{}</th>').format(_classes(_alignment(column)), _safe(column.heading))
        for column in columns
    )
    body = Markup("\n").join(
        Markup("<tr{}>{}</tr>").format(
            _row_data(columns, row), Markup("").join(_html_cell(column, row) for column in columns)
        )
        for row in table.rows
    )
    note = Markup('\n<p class="note">{}</p>').format(_safe(table.explanation)) if table.explanation else ""
    return Markup(
        '<div class="scroll" tabindex="0">\n<table>\n<caption>{}</caption>\n'
        "<thead><tr>{}</tr></thead>\n<tbody>\n{}\n</tbody>\n</table>\n</div>{}"
    ).format(_safe(table.title), head, body, note)


def html_facts(facts: Iterable[Fact]) -> Markup:
    """Names and values, a line each."""
    rows = [Markup("<dt>{}</dt><dd>{}</dd>").format(_safe(name), _content(value)) for name, value in facts]
    return Markup('<dl class="facts">\n{}\n</dl>').format(Markup("\n").join(rows))


def inline_svgs(drawings: Iterable[Drawing]) -> dict[str, Markup]:
    """The figures for inlining, by name: their colours follow the page's theme, and each has a description.

    The shape of a letter is defined once, in the first figure that has it.
    """
    defined: set[str] = set()
    return {drawing.name: _inline_svg(drawing, defined) for drawing in drawings}


def _inline_svg(drawing: Drawing, defined: set[str]) -> Markup:
    opening, _, svg = drawing.svg[drawing.svg.index("<svg") :].partition(">")
    svg = re.sub(r"<style.*?</style>|<!--.*?-->|(?<=\n) +", "", svg, flags=re.DOTALL)

    def once(match: re.Match[str]) -> str:
        if match[1] in defined:
            return ""
        defined.add(match[1])
        return match[0]

    svg = re.sub(r'<path id="(DejaVu[^"]+)"[^>]*/>', once, svg)
    svg = re.sub(r'(\bid="|href="#|url\(#)(?!DejaVu)', rf"\g<1>{drawing.name}-", svg.replace("xlink:href", "href"))
    svg = re.sub(r"(?<![\d(])(\d+\.\d\d)\d++(?!\))", r"\1", svg)  # a hundredth of a point is invisible
    themed = {
        style.INK: "currentColor",
        style.SOFT: "var(--soft)",
        style.GRID: "var(--line)",
        style.PAPER: "var(--card)",
    }
    for colour, variable in themed.items():
        svg = svg.replace(colour, variable)
    view = re.search(r'viewBox="[^"]*"', opening)
    head = f'<svg role="img" aria-label="{escape(drawing.alt)}" {view[0] if view else ""}>'
    return Markup(head + svg)  # noqa: S704 - drawn by matplotlib from numbers; its labels are glyph outlines


def _row_data(columns: Sequence[Column[Row]], row: Row) -> Markup:
    """The values by which the page's script sorts and selects rows."""
    chosen = [
        Markup(' data-{}="{}"').format(column.chooses, _safe(str(column.value(row))))
        for column in columns
        if column.chooses
    ]
    values = json.dumps([_sort_value(column.value(row)) for column in columns], separators=(",", ":"))
    return Markup("").join([*chosen, Markup(' data-v="{}"').format(values)])


def _sort_value(value: object) -> float | str | None:
    """A number, `None` where it is unknown, or "" where the cell's text is to be compared."""
    if isinstance(value, Interval):
        value = value.low
    if isinstance(value, Quantiles):
        value = value.median
    if isinstance(value, int | float):
        return float(f"{value:.6g}")
    return None if value is None else ""


def _html_cell(column: Column[Row], row: Row) -> Markup:
    content = _content(column.text(row))
    if column.heads:
        return Markup('<th scope="row">{}</th>').format(content)
    classes = _classes(_alignment(column), "wrap" if column.wrap else "", column.tone_of(row))
    return Markup("<td{}>{}</td>").format(classes, content)


def _content(cell: Cell) -> Markup:
    pieces = cell if isinstance(cell, tuple) else (cell,)
    return Markup(" ").join(map(_piece, pieces))


def _piece(piece: str | Folded) -> Markup:
    if isinstance(piece, Folded):
        return Markup("<details><summary>{}</summary><pre>{}</pre></details>").format(
            _safe(piece.summary), _safe("\n".join(piece.lines))
        )
    return Markup("<code>{}</code>").format(_safe(piece)) if isinstance(piece, Code) else _safe(piece)


def prose(text: str) -> Markup:
    """A sentence, escaped, with `commands` in backticks as code."""
    parts = enumerate(re.split(r"`([^`]+)`", text))
    return Markup("").join(Markup("<code>{}</code>").format(_safe(part)) if n % 2 else _safe(part) for n, part in parts)


def _safe(text: str) -> Markup:
    return escape(visible(text))


def _alignment(column: Column[Any]) -> str:
    return "n" if column.align == "right" else ""


def _classes(*names: str) -> Markup:
    """The attribute with the names that are not empty."""
    listed = " ".join(filter(None, names))
    return Markup(' class="{}"').format(listed) if listed else Markup("")


@dataclass(frozen=True)
class Fold:
    """Evidence below a line that opens it: figures, tables, sentences."""

    title: str
    drawings: Sequence[Drawing]
    tables: Sequence[Table[Any]]
    sentences: Sequence[str] = ()


SWEPT: dict[Section, str] = {
    "axes": "By axis",
    "context_length": "By context length",
    "max_tokens": "By answer length",
    "concurrency": "By concurrency",
    "rate": "By rate",
    "temperature": "By temperature",
}
"""What a run varies, and its heading."""


def speed_figure(analysis: Analysis) -> str:
    """The name of the figure that the section on speed shows unfolded; empty in a run of several conditions."""
    if analysis.breakeven:
        return "breakeven"
    return "" if analysis.sweep and analysis.sweep.dimensions else "speedup"


def folds(run: RunData, analysis: Analysis, drawings: Sequence[Drawing]) -> dict[str, list[Fold]]:
    """The folded evidence of each section: the keys of `SWEPT`, `speed` and `output`. Empty folds are left out."""
    named = {drawing.name: drawing for drawing in drawings if drawing.name != speed_figure(analysis)}

    def fold(title: str, figures: str, *tables: Table[Any], sentences: Sequence[str] = ()) -> Fold:
        """`figures`: their names."""
        drawn = [named[name] for name in figures.split() if name in named]
        return Fold(title, drawn, [table for table in tables if table.rows], sentences)

    def by_level(levels: Sequence[Level]) -> list[Fold]:
        return [fold("In numbers", "", *(make(analysis, levels) for make in (sweep.all_requests, sweep.one_request)))]

    by_axis = [fold("In numbers", "pareto", sweep.by_axis(analysis))]
    over_axes = analysis.sweep is not None and analysis.sweep.over_axes
    dimensions = analysis.sweep.dimensions if analysis.sweep else []
    curve = analysis.breakeven
    by_heading = {
        "axes": by_axis if over_axes else [],
        "context_length": [] if over_axes else by_axis,
        "max_tokens": [] if over_axes or "context_length" in dimensions else by_axis,
        "concurrency": [
            *by_level(closed_levels(analysis)),
            fold("At equal total throughput", "front", sweep.equal_throughput(analysis)),
        ],
        "rate": by_level(open_levels(analysis)),
        "temperature": [] if over_axes or {"context_length", "max_tokens"} & {*dimensions} else by_axis,
        "speed": [
            fold("Speed-up by task", "speedup", speed.speedups(analysis)),
            fold("Tokens per second by task", "throughput", speed.throughput(analysis)),
            fold("By length of the answer", "", speed.answer_lengths(analysis)),
            fold("Acceptance", "acceptance", speed.acceptance(analysis), speed.by_position(analysis)),
            fold("Inside and outside of thinking", "", speed.thinking(analysis)),
            fold("Cost of a round", "payoff", speed.costs(analysis)),
            fold("Where a round's time goes", "rounds tokens-per-time widths", rounds.round_splits(analysis),
                 rounds.forecasts(analysis), sentences=rounds.round_statements(analysis)),
            fold("What drafts left out", "left-out", rounds.left_out(analysis)),
            *([fold(breakeven.TITLE, "breakeven", breakeven.needs_table(curve), breakeven.points_table(curve),
                    sentences=breakeven_words.statements(curve))] if curve else []),
            fold("Energy and memory", "", speed.resources(analysis)),
        ],
        "output": [
            fold("Replay in the arm's own batches", "", output.replays(analysis)),
            fold("Divergences and the target's own noise", "", output.scored_divergences(analysis),
                 output.noise_floors(analysis)),
            fold("Answers under constraints", "", output.validity(analysis.losslessness)),
            fold("Correct answers", "", output.accuracy(analysis)),
            fold("Which answers repeat in every block", "", output.consistency(analysis)),
        ],
    }  # fmt: skip
    return {
        name: [section for section in below if section.drawings or section.tables or section.sentences]
        for name, below in by_heading.items()
    }


def scripts() -> list[str]:
    """Return the texts of the page's scripts: the plotting library with its licences, then its own."""
    package = files("benchctl.reports")
    licences, library = ((package / "vendor" / f"plot.{end}").read_text("utf-8") for end in ("LICENSE", "min.js"))
    return [f"/*\n{licences}*/\n{library}", (package / "templates" / "page.js").read_text("utf-8")]


def hashes(texts: Sequence[str]) -> str:
    """Return the Content-Security-Policy sources of these scripts: nothing else may run."""
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


def plot_data(analysis: Analysis) -> str:
    """Return the values of the plots as JSON that can stand inside a script element."""
    names = [*analysis.arms, *(name for name in analysis.settings if name not in analysis.arms)]
    marks = style.marks_of(analysis) | style.marks(analysis.settings, analysis.baseline)
    document = {
        "arms": [arm for arm in analysis.arms if arm not in analysis.baselines] + sorted(analysis.baselines),
        "settings": analysis.settings,
        "setting_of": {row.arm: row.of for row in analysis.sweep.levels} if analysis.sweep else {},
        "tasks": analysis.tasks,
        "colours": {name: marks[name].colour.replace(style.INK, "currentColor") for name in names},
        "speedups": [
            {"arm": row.arm, "task": row.task, "value": row.pooled, "blocks": row.by_block, **_ends(row.interval)}
            for row in analysis.speedups
            if row.pooled is not None
        ],
        "positions": [
            {"arm": row.arm, "position": position, "share": share, "rounds": row.rounds}
            for row in drawn_positions(analysis)
            for position, share in enumerate(row.position_unconditional or (), start=1)
        ],
        "payoff": _payoff(analysis),
        "levels": [*map(_level, closed_levels(analysis)), *map(_level, open_levels(analysis))],
    }
    return json_text(document)


def json_text(document: object) -> str:
    """Return values as JSON that can stand inside a script element: numbers to six digits, every character visible."""
    text = json.dumps(_rounded(document), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("&", "\\u0026")


def _payoff(analysis: Analysis) -> list[dict[str, Any]]:
    rates = {row.arm: row.rate for row in analysis.acceptance if row.task == ALL_TASKS and row.rate is not None}
    costs = {cost.arm: cost for cost in analysis.costs}
    return [
        {
            "arm": row.arm,
            "rate": rates[row.arm],
            "value": row.pooled,
            "alpha": costs[row.arm].alpha if row.arm in costs else None,
            "needed": costs[row.arm].break_even_alpha if row.arm in costs else None,
            **_ends(row.interval),
        }
        for row in analysis.speedups
        if row.task == ALL_TASKS and row.pooled is not None and row.arm in rates
    ]


def _level(row: Level) -> dict[str, Any]:
    return {
        **row.model_dump(include={"arm", "of", "concurrency", "rate", "temperature", "throughput"}),
        "loop": "closed" if row.rate is None else "open",
        "speedup": row.throughput_speedup,
        "latency": row.e2e.median,
        **_ends(row.throughput_interval),
    }


def _ends(interval: Interval | None) -> dict[str, float | None]:
    return {"low": interval.low if interval else None, "high": interval.high if interval else None}


def _rounded(value: Any) -> Any:  # noqa: ANN401 - JSON of any shape
    """Numbers to six digits, texts with every character visible."""
    if isinstance(value, dict):
        return {_rounded(key): _rounded(element) for key, element in value.items()}
    if isinstance(value, list):
        return [_rounded(element) for element in value]
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return visible(value) if isinstance(value, str) else value
