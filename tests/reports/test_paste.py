"""A run for a thread: short lines, nothing that acts, and no violation left out."""

from __future__ import annotations

from markdown_it import MarkdownIt

from benchctl.analysis.results import Analysis
from benchctl.data.store import RunData
from benchctl.reports.paste import paste
from tests.reports.handmade import build_analysis, decided


def test_seven_arms_are_short_lines(run_data: RunData, analysis: Analysis) -> None:
    text = paste(run_data, decided(analysis))
    assert len(text.splitlines()) <= 26
    assert max(map(len, text.splitlines())) < 310, "each line short"
    assert "- ngram_simple by task: code" in text
    assert "| `baseline` |" in text and "| `ngram_simple` |" in text
    assert analysis.run in text and "95 %" in text and "more arm" in text


def test_every_violation_is_in_it(run_data: RunData) -> None:
    analysis = build_analysis(["baseline", *(f"spec_d{depth}" for depth in range(2, 12))])
    bad = [verdict.model_copy(update={"lossless": "violation"}) for verdict in analysis.verdicts]
    text = paste(run_data, analysis.model_copy(update={"verdicts": bad}))
    assert text.count("| violation") == 10


def test_names_form_no_markup(run_data: RunData) -> None:
    hostile = "<img src=x onerror=alert(1)>[a](javascript:b)|`"
    analysis = build_analysis(["baseline", hostile])
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(paste(run_data, analysis))
    assert "<img" not in html and 'javascript:b"' not in html and html.count("<tr>") == 3
