"""What a report's files and the terminal show, as tables and as text; parsed without benchctl."""

from __future__ import annotations

import csv
import html
import json
import re
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any


@dataclass
class Shown:
    """A table: where it stands, its headers as written, and its rows as text."""

    where: str
    headers: list[str]
    rows: list[list[str]]

    def dicts(self) -> list[dict[str, str]]:
        """The rows by header, in small letters."""
        return [dict(zip((h.lower() for h in self.headers), row, strict=False)) for row in self.rows]


def markdown_tables(text: str, where: str = "report.md") -> list[Shown]:
    """The tables of a Markdown text, each named by the heading above it."""
    tables: list[Shown] = []
    heading, lines = "", text.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("#"):
            heading = line.strip("# ")
        if line.startswith("| ") and re.match(r"\| ?:?-+", lines[number + 1] if number + 1 < len(lines) else ""):
            rows = []
            for row in lines[number + 2 :]:
                if not row.startswith("|"):
                    break
                rows.append(_cells(row))
            tables.append(Shown(f"{where}, {heading}", _cells(line), rows))
    return tables


def _cells(line: str) -> list[str]:
    return [plain(cell) for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def plain(cell: str) -> str:
    """A cell without marks, and with its escapes undone."""
    text = re.sub(r"\\([\\|`*_<>\[\]#~&])", r"\1", cell.strip()).strip("`")
    return html.unescape(text)


class Page(HTMLParser):
    """The tables, the answers side by side and the embedded data of `index.html`."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tables: list[Shown] = []
        self.prompts: list[Prompt] = []
        self._open: list[tuple[str, dict[str, str]]] = []
        self._text = ""
        self._cells: list[str] = []
        result = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
        self.data: dict[str, Any] = json.loads(result[1]) if result else {}
        self.visible = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if tag not in {"meta", "br", "link", "img", "hr", "input"}:
            self._open.append((tag, attributes))
        if tag in {"th", "td", "caption", "pre", "p", "strong", "summary", "h3"}:
            self._text = ""
        if tag == "table":
            self.tables.append(Shown("index.html", [], []))
        elif tag == "tr":
            self._cells = []
        elif tag == "details" and attributes.get("class") == "prompt":
            self.prompts.append(Prompt([], [], [], []))
        elif tag == "div" and attributes.get("class") == "fork" and self.prompts:
            self.prompts[-1].forks.append(Side(attributes["data-arm"], [], [], []))

    def handle_endtag(self, tag: str) -> None:
        if not self._open:
            return
        inside = {name for name, _ in self._open}
        classes = {attributes.get("class") for _, attributes in self._open}
        text = self._text.strip()
        if tag in {"th", "td"}:
            self._cells.append(text)
        elif tag == "caption":
            self.tables[-1].where += f", {text}"
        elif tag == "tr" and "thead" in inside:
            self.tables[-1].headers = self._cells
        elif tag == "tr":
            self.tables[-1].rows.append(self._cells)
        elif tag == "table" and "fork" in classes and "prompt" in classes:
            self.prompts[-1].forks[-1].tables.append(self.tables[-1])
        elif "sides" in classes and tag in {"p", "pre"}:
            side = self.prompts[-1].forks[-1]
            (side.titles if tag == "p" else side.texts).append(self._text if tag == "pre" else text)
        elif "prompt" in classes and tag in {"p", "pre", "strong"}:
            prompt = self.prompts[-1]
            (prompt.names if tag == "strong" else prompt.notes if tag == "p" else prompt.texts).append(
                self._text if tag == "pre" else text
            )
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self._text += data
        if not {"script", "style"} & {name for name, _ in self._open}:
            self.visible += data


@dataclass
class Side:
    """A diverging answer beside the baseline's, and the tables below them."""

    arm: str
    titles: list[str]
    texts: list[str]
    tables: list[Shown]


@dataclass
class Prompt:
    """One prompt of the answers' section: its name, its notes and plain texts, and the answers that diverge."""

    names: list[str]
    notes: list[str]
    texts: list[str]
    forks: list[Side]


def terminal_tables(text: str) -> list[Shown]:
    """Tables of the terminal, on a wide one: columns stand two spaces and more apart."""
    tables: list[Shown] = []
    for line in text.splitlines():
        cells = re.split(r" {2,}", line.strip())
        if cells[0] in {"Arm", "Task"} and len(cells) > 3:
            tables.append(Shown("terminal", cells, []))
        elif tables and tables[-1].headers and len(cells) == len(tables[-1].headers):
            tables[-1].rows.append(cells)
    return tables


def csv_tables(folder: Path) -> list[Shown]:
    """The CSV files of a report."""
    tables = []
    for file in sorted(folder.glob("*.csv")):
        with file.open(encoding="utf-8", newline="") as stream:
            rows = list(csv.reader(stream))
        tables.append(Shown(file.name, rows[0], rows[1:]))
    return tables


def agrees(text: str, value: float | None) -> bool:
    """Whether a number as it is shown is `value` at the precision that is shown."""
    result = re.search(r"(-?\d[\d \u202f\u00a0]*(?:\.\d+)?(?:e[+-]?\d+)?) ?(%|ms|µs|GiB|MiB|s\b)?", text)
    if result is None or value is None:
        return result is None and value is None
    number = result[1].replace(" ", "").replace("\u202f", "").replace("\u00a0", "")
    scale = {"%": 100, "ms": 1000, "µs": 1e6, "GiB": 2**-30, "MiB": 2**-20}.get(result[2] or "", 1.0)
    decimals = len(number.partition(".")[2].partition("e")[0])
    if "e" in number:
        return abs(float(number) - value) <= 0.5000001 * float(f"1e{int(number.partition('e')[2]) - decimals}")
    if decimals > 5:  # stored in full
        return abs(float(number) - value * scale) <= 1e-6 * max(1e-9, abs(value * scale))
    return abs(float(number) - value * scale) <= 0.5000001 * 10.0**-decimals + 1e-9
