"""Markdown: untrusted text that forms no markup, and tables as pipes.

`benchctl.text` makes every character harmless; here is what the format needs beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from benchctl.reports.columns import Cell, Code, Folded, Name, Table
from benchctl.text import one_line, visible


def markdown_text(text: str) -> str:
    """Escape `text` for running Markdown text or a table cell: it is shown as it is and forms no markup or link."""
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
    shown = visible(text)
    fence = "`" * max(3, _longest_run(shown) + 1)
    return f"{fence}{language}\n{shown.rstrip(chr(10))}\n{fence}"


def markdown_table(table: Table[Any]) -> str:
    """The table as pipes, a line a row, and what its columns mean below it."""
    columns = table.shown
    lines = [
        [markdown_text(column.heading) for column in columns],
        ["---:" if column.align == "right" else "---" for column in columns],
        *([_cell(column.text(row)) for column in columns] for row in table.rows),
    ]
    told = [f"| {' | '.join(cells)} |" for cells in lines]
    return "\n".join([*told, *(["", markdown_text(table.explanation)] if table.explanation else [])])


def markdown_facts(facts: Iterable[tuple[str, Cell]]) -> str:
    """Names and values as a table without headers."""
    lines = [f"| {markdown_text(name)} | {_cell(value)} |" for name, value in facts]
    return "\n".join(["| | |", "| --- | --- |", *lines])


def _cell(cell: Cell) -> str:
    pieces = cell if isinstance(cell, tuple) else (cell,)
    told: list[str] = []
    for piece in pieces:
        if isinstance(piece, Folded):
            told.append(markdown_text(piece.summary))  # the lines stand below the table
        else:
            told.append(markdown_code(piece) if isinstance(piece, Name | Code) else markdown_text(piece))
    return " ".join(told)


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall(r"`+", text)), default=0)
