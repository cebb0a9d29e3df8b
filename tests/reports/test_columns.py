"""A table is declared once: what is declared stands in every format, and no template has cells of its own."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

import benchctl.reports
from benchctl.analysis.result import Interval
from benchctl.reports.columns import Code, Column, Folded, Name, Table, interval, numeric
from benchctl.reports.page import html_table
from benchctl.reports.render import markdown_table
from benchctl.reports.terminal import print_table
from benchctl.reports.write import csv_table
from benchctl.text import first

TEMPLATES = Path(benchctl.reports.__file__).parent / "templates"


@dataclass(frozen=True)
class Measured:
    arm: str
    share: float | None
    ends: Interval | None = None
    plain: int | None = None


ROWS = [Measured("a", 0.123456), Measured("b_long_name", None, Interval(low=0.5, high=1.25, method="m"))]
TABLE = Table(
    "shares",
    "Shares",
    (
        Column("Arm", lambda row: row.arm, Name, key="arm", heads=True),
        numeric("Share", lambda row: row.share, lambda v: "–" if v is None else f"{v:.2f}", unit="s", key="share",
                explain="of something.", tone=lambda row: "bad" if row.share is None else "good"),
        interval("Interval", lambda row: row.ends, key="interval", absent="one block"),
        numeric("Left out", lambda row: row.plain, key="plain", optional=True),
        Column("", lambda row: [row.share], key="for_programs"),
        Column("Evidence", lambda row: row.arm, lambda arm: ("seen:", Code("a|b"), Folded("2 lines", ("x", "<y>")))),
    ),
    ROWS,
    note="And more.",
)  # fmt: skip


def printed(table: Table[Measured], width: int) -> str:
    stream = io.StringIO()
    print_table(Console(file=stream, width=width, color_system=None), table)
    return stream.getvalue()


def test_markdown() -> None:
    assert markdown_table(TABLE).splitlines() == [
        "| Arm | Share (s) | Interval | Evidence |",
        "| --- | ---: | ---: | --- |",
        "| `a` | 0.12 | one block | seen: `a¦b` 2 lines |",
        "| `b_long_name` | – | 0.50 to 1.25× | seen: `a¦b` 2 lines |",
        "",
        "Share: of something. And more.",
    ]


def test_html() -> None:
    page = html_table(TABLE)
    assert '<th scope="col" class="n">Share (s)</th>' in page
    assert '<th scope="row">a</th><td class="n good">0.12</td><td class="n">one block</td>' in page
    assert "<details><summary>2 lines</summary><pre>x\n&lt;y&gt;</pre></details>" in page
    assert '<p class="note">Share: of something. And more.</p>' in page
    assert "Left out" not in page


def test_csv() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_table(TABLE, {"a": "synthetic"}))))
    assert rows[0] == {
        "arm": "a",
        "share": "0.123456",
        "interval_low": "",
        "interval_high": "",
        "plain": "",
        "for_programs": "[0.123456]",
        "lossy": "synthetic",
    }
    assert (rows[1]["interval_low"], rows[1]["interval_high"], rows[1]["share"]) == ("0.5", "1.25", "")


def test_terminal() -> None:
    lines = printed(TABLE, 100).splitlines()
    assert lines[0].split() == ["Arm", "Share", "(s)", "Interval", "Evidence"]
    assert lines[1].split()[:4] == ["a", "0.12", "one", "block"]
    assert "2 lines" in lines[2]


@pytest.mark.parametrize("width", [30, 45])
def test_a_narrow_terminal_gets_several_tables_that_name_their_rows(width: int) -> None:
    text = printed(TABLE, width)
    assert max(map(len, text.splitlines())) <= width
    assert text.count("b_long_name") == text.count("Arm") > 1
    assert "0.50 to 1.25×" in text


def test_an_optional_column_stands_where_a_row_has_a_value() -> None:
    reported = Table(TABLE.name, TABLE.title, TABLE.columns, [*ROWS, Measured("c", 1.0, plain=3)])
    assert "Left out" in markdown_table(reported)


def test_templates_hold_prose_and_order_but_no_cells() -> None:
    files = sorted(TEMPLATES.iterdir())
    assert files
    for file in files:
        text = file.read_text()
        assert not re.search(r"<t[dhr]\b", text), file
        assert not re.search(r"^\|", text, re.MULTILINE), file
        assert max(map(len, text.splitlines())) <= 200, file


def test_a_path_is_not_known_where_anything_on_its_way_is_absent() -> None:
    low: Column[Measured] = numeric("Low", "ends.low", lambda value: f"{value:.2f}", absent="none")
    assert [low.value(row) for row in ROWS] == [None, 0.5]
    assert [low.text(row) for row in ROWS] == ["none", "0.50"]
    assert low.csv_key == ""
    misspelt: Column[Measured] = numeric("Low", "ends.lowest")
    with pytest.raises(AttributeError):
        misspelt.value(ROWS[1])


@pytest.mark.parametrize(("limit", "expected"), [(1, "a and 2 more"), (3, "a, b, c"), (9, "a, b, c")])
def test_a_list_that_is_cut_counts_the_rest(limit: int, expected: str) -> None:
    assert first(["a", "b", "c"], limit) == expected
