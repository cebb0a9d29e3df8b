"""An arm that is lossy by design is labelled wherever a table names it."""

from __future__ import annotations

import csv
import io
import re

from rich.console import Console

from benchctl.analysis.results import Analysis
from benchctl.data.store import RunData
from benchctl.reports.render import render_html, render_markdown
from benchctl.reports.run_summary import print_summary
from benchctl.reports.write import all_tables

LABEL = "(lossy by design: synthetic acceptance)"


def lossy(analysis: Analysis) -> Analysis:
    """The analysis with `spec_d4` labelled."""
    verdicts = [
        verdict.model_copy(update={"lossy": ["synthetic acceptance"]}) if verdict.arm == "spec_d4" else verdict
        for verdict in analysis.verdicts
    ]
    return analysis.model_copy(update={"verdicts": verdicts})


def test_every_row_of_every_markdown_table(run_data: RunData, analysis: Analysis) -> None:
    rows = re.findall(r"^\|.*`(spec_d\w+)`(.*)$", render_markdown(run_data, lossy(analysis), []), re.MULTILINE)
    assert len(rows) == 4
    assert all((LABEL in cells) == (arm == "spec_d4") for arm, cells in rows)


def test_every_row_of_every_table_of_the_page(run_data: RunData, analysis: Analysis) -> None:
    heads = re.findall(r'<th scope="row">(spec_d\w+)(.*?)</th>', render_html(run_data, lossy(analysis), []))
    assert len(heads) > 20
    assert all((LABEL in cells) == (arm == "spec_d4") for arm, cells in heads)


def test_every_csv_file(analysis: Analysis) -> None:
    for text in all_tables(lossy(analysis)).values():
        rows = list(csv.DictReader(io.StringIO(text)))
        assert {row["arm"] for row in rows} > {"spec_d4"}
        assert all((row["lossy"] == "synthetic acceptance") == (row["arm"] == "spec_d4") for row in rows)


def test_the_terminal(analysis: Analysis) -> None:
    stream = io.StringIO()
    print_summary(Console(file=stream, width=300, color_system=None), lossy(analysis), "results/a/b")
    assert stream.getvalue().count(LABEL) == 1
    assert re.search(rf"spec_d4 {re.escape(LABEL)}", stream.getvalue())
