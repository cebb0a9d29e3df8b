"""The HTML of a report: tables, lists of facts, and figures that follow the page's theme."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from benchctl.reports.columns import Cell, Code, Column, Folded, Row, Table
from benchctl.reports.figures import style
from benchctl.text import visible

if TYPE_CHECKING:
    from benchctl.reports.figures.draw import Drawing
    from benchctl.reports.tables.provenance import Fact


def html_table(table: Table[Any]) -> Markup:
    """The table with its caption, in a box that scrolls, and what its columns mean below it."""
    columns = table.shown
    head = Markup("").join(
        Markup('<th scope="col"{}>{}</th>').format(_class("n" * (column.align == "right")), _safe(column.heading))
        for column in columns
    )
    body = Markup("\n").join(
        Markup("<tr>{}</tr>").format(Markup("").join(_html_cell(column, row) for column in columns))
        for row in table.rows
    )
    note = Markup('\n<p class="note">{}</p>').format(_safe(table.explanation)) if table.explanation else ""
    return Markup(
        '<div class="scroll" tabindex="0">\n<table>\n<caption>{}</caption>\n'
        "<thead><tr>{}</tr></thead>\n<tbody>\n{}\n</tbody>\n</table>\n</div>{}"
    ).format(_safe(table.title), head, body, note)


def html_facts(facts: Iterable[Fact]) -> Markup:
    """Names and values below one another."""
    rows = [Markup("<dt>{}</dt><dd>{}</dd>").format(_safe(name), _content(value)) for name, value in facts]
    return Markup('<dl class="facts">\n{}\n</dl>').format(Markup("\n").join(rows))


def inline_svg(drawing: Drawing) -> Markup:
    """The figure for inlining: its colours follow the page's theme, its ids are its own, and it says what it shows."""
    svg = drawing.svg or ""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{drawing.name}-", svg)
    themed = {
        style.INK: "currentColor",
        style.SOFT: "var(--soft)",
        style.GRID: "var(--line)",
        style.PAPER: "var(--card)",
    }
    for colour, variable in themed.items():
        svg = svg.replace(colour, variable)
    opening = re.search(r'viewBox="[^"]*"', svg)
    body = svg[svg.index(">") + 1 :]
    head = f'<svg role="img" aria-label="{escape(drawing.alt)}" {opening[0] if opening else ""}>'
    return Markup(head + body)  # noqa: S704 - drawn by matplotlib from numbers; its labels are glyph outlines


def _html_cell(column: Column[Row], row: Row) -> Markup:
    content = _content(column.text(row))
    if column.heads:
        return Markup('<th scope="row">{}</th>').format(content)
    words = ["n"] * (column.align == "right") + ["wrap"] * column.wrap + [column.tone_of(row)]
    return Markup("<td{}>{}</td>").format(_class(" ".join(filter(None, words))), content)


def _content(cell: Cell) -> Markup:
    pieces = cell if isinstance(cell, tuple) else (cell,)
    return Markup(" ").join(map(_piece, pieces))


def _piece(piece: str | Folded) -> Markup:
    if isinstance(piece, Folded):
        return Markup("<details><summary>{}</summary><pre>{}</pre></details>").format(
            _safe(piece.summary), _safe("\n".join(piece.lines))
        )
    return Markup("<code>{}</code>").format(_safe(piece)) if isinstance(piece, Code) else _safe(piece)


def _safe(text: str) -> Markup:
    return escape(visible(text))


def _class(words: str) -> Markup:
    return Markup(' class="{}"').format(words) if words else Markup("")
