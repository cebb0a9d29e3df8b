"""Text that others wrote does nothing in a report: it is shown, in every format."""

from __future__ import annotations

import csv
import io
import re

import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from benchctl.analysis.decision_results import Verdict
from benchctl.analysis.result import Fact
from benchctl.analysis.results import Analysis, Caution
from benchctl.data.store import RunData
from benchctl.reports.page import hashes, scripts
from benchctl.reports.render import markdown_block, markdown_code, markdown_text
from benchctl.reports.run_summary import print_summary
from benchctl.reports.write import render_files, spreadsheet_text
from benchctl.text import visible
from tests.reports.handmade import HOSTILE, build_analysis, build_manifest
from tests.reports.page_text import PageText

ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200e\u200f\ud800-\udfff]")


@pytest.fixture(scope="module")
def poisoned() -> Analysis:
    """An analysis whose every free text is hostile."""
    clean = build_analysis(["baseline", "spec_d4"])
    names = {"arms": ["baseline", "spec_d4"], "tasks": ["code", HOSTILE], "run": HOSTILE, "recipe": f"=1+1 {HOSTILE}"}
    verdict = Verdict.model_validate(
        clean.verdicts[0].model_dump() | {"setting": HOSTILE, "reason": "refused", "refusal": HOSTILE}
    )
    warning = Caution(id="x", where=HOSTILE, facts=[Fact(code="text", values={"text": HOSTILE})])
    rows = [row.model_copy(update={"task": HOSTILE if row.task == "ja_chat" else row.task}) for row in clean.speedups]
    texts = {"failed_cells": [HOSTILE], "verdicts": [verdict], "warnings": [warning], "speedups": rows}
    return clean.model_copy(update=names | texts)


@pytest.fixture(scope="module")
def files(poisoned: Analysis, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    manifest = build_manifest(poisoned)
    run = RunData(tmp_path_factory.mktemp("run"), manifest, [], [HOSTILE])
    return render_files(run, poisoned)


def test_page_shows_it_and_does_nothing(files: dict[str, bytes]) -> None:
    page = files["index.html"].decode()
    assert not ACTING.search(page)
    read = PageText(page)
    assert {tag for tag, _ in read.elements} & {"iframe", "object", "img", "link", "base", "form"} == set()
    assert [text for attributes, text in read.scripts() if not attributes] == scripts()
    assert [attributes for attributes, _ in read.scripts() if attributes] == [
        {"type": "application/json", "id": "data"}
    ]
    policy = next(a["content"] for a in read.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert f"default-src 'none'; script-src {hashes(scripts())};" in policy
    assert not any(name.startswith("on") for _, attributes in read.elements for name in attributes)
    assert visible(HOSTILE) in read.text
    assert read.text.count("<script>alert(1)</script>") > 10
    fetched = [value for _, a in read.elements for name, value in a.items() if name in {"href", "src", "xlink:href"}]
    assert fetched
    assert not [link for link in fetched if not re.fullmatch(r"#[\w-]+|[a-z]+\.(md|json|csv)", link)]


def test_markdown_forms_no_markup(files: dict[str, bytes]) -> None:
    text = files["report.md"].decode()
    assert not ACTING.search(text)
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)
    inline = [child for token in tokens for child in token.children or []]
    kinds = {token.type for token in [*tokens, *inline]}
    assert {"table_open", "fence", "code_inline"} <= kinds
    assert not kinds & {"html_block", "html_inline", "link_open"}
    sources = [child.attrs["src"] for child in inline if child.type == "image"]
    assert sources == ["figures/speedup.png"]
    assert any("<script>alert(1)</script>" in child.content for child in inline if child.type == "code_inline")
    assert any("<script>alert(1)</script>" in child.content for child in inline if child.type == "text")


def test_bare_addresses_do_not_become_links(files: dict[str, bytes]) -> None:
    outside_code = re.sub(r"(?s)(`{3,}).*?\n\1", "", files["report.md"].decode())
    outside_code = re.sub(r"(?s)(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", outside_code)
    assert "evil.example" in outside_code
    assert not re.search(r"https?://|www\.", outside_code)


def test_csv_holds_no_formula(files: dict[str, bytes]) -> None:
    for name in ("speedup.csv", "losslessness.csv", "acceptance.csv", "throughput.csv", "costs.csv"):
        text = files[name].decode()
        assert not ACTING.search(text)
        rows = list(csv.reader(io.StringIO(text)))
        assert {len(row) for row in rows} == {len(rows[0])}
    assert spreadsheet_text('=HYPERLINK("x")') == '\'=HYPERLINK("x")'
    assert spreadsheet_text("@x\n") == "'@x⏎"


def test_terminal_shows_it_and_does_nothing(poisoned: Analysis) -> None:
    for width in (60, 160):
        stream = io.StringIO()
        console = Console(file=stream, width=width, color_system=None)
        print_summary(
            console, poisoned.model_copy(update={"arms": ["baseline", "[bold]x"]}), "results/a/b", verbose=True
        )
        assert not ACTING.search(stream.getvalue())
        assert "<script>" in stream.getvalue()


@pytest.mark.parametrize(
    "text", ["`", "``", "a`b", "`` `x` ``", " ", "", "\n", "```\n# out\n```", "~~~", "x|y", "a\\", "\\`", "`" * 9 + "x"]
)
def test_code_cannot_be_broken_out_of(text: str) -> None:
    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    block = parser.parse(f"{markdown_block(text)}\n\nafter\n")
    assert [token.type for token in block] == ["fence", "paragraph_open", "inline", "paragraph_close"]
    row = parser.parse(f"| a | b |\n| --- | --- |\n| {markdown_code(text)} | {markdown_text(text)} |\n")
    cells = [token for token in row if token.type == "inline"]
    assert len(cells) == 4
    assert [child.type for child in cells[2].children or []] == ["code_inline"]
    assert {child.type for child in cells[3].children or []} <= {"text", "text_special", "code_inline"}


@pytest.mark.parametrize(
    "text", ["# no heading", "- no list", "1. no list", "> no quote", "---", "    no code", "[x]: /y"]
)
def test_text_stays_a_paragraph(text: str) -> None:
    tokens = MarkdownIt("commonmark").parse(markdown_text(text))
    assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"]
    assert "".join(child.content for child in tokens[1].children or []) == text.strip()
