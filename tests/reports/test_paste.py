"""A run for a thread: short lines, nothing that acts, and no violation left out."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from markdown_it import MarkdownIt

from benchctl.analysis.cells import identity_of
from benchctl.analysis.outcome import find_outcome
from benchctl.analysis.results import Analysis
from benchctl.data.store import RunData, open_run
from benchctl.lossless.judge.run import analyse_run
from benchctl.reports.paste import WIDTH, paste
from benchctl.reports.render import markdown_lines
from tests.analysis.conditions.simulated import Sweep, write_sweep
from tests.kept_runs import REPOSITORY
from tests.reports.handmade import build_analysis, decided


def test_seven_arms_are_short_lines(run_data: RunData, analysis: Analysis) -> None:
    text = paste(run_data, decided(analysis))
    assert len(text.splitlines()) <= 60
    assert max(map(len, text.splitlines())) <= WIDTH
    tasks = text.partition("| Task |")[2].partition("\n\n")[0].splitlines()
    assert [row.split(" | ")[0] for row in tasks[2:]] == [f"| {task}" for task in analysis.tasks]
    assert "| Accepted | Length | Output |" in text
    assert "| `baseline` |" in text and "| `ngram_simple` |" in text
    assert analysis.run in text and "95 %" in text and "more arm" in text


def test_a_kept_run_has_its_two_commands_and_no_long_line() -> None:
    run = open_run(REPOSITORY / "results/qwen2.5-coder/20261122-191218-f263")
    analysis = analyse_run(run)
    text = paste(run, analysis)
    assert max(map(len, text.splitlines())) <= WIDTH
    shown = text.partition("```sh\n")[2].partition("\n```")[0].replace("\\\n", "")
    arm = find_outcome(analysis).felt[0].arm
    commands = [shlex.split(part.partition("\n")[2]) for part in shown.split("# ")[1:]]
    assert run.manifest is not None
    for name, words in zip((analysis.compared[arm].baseline, arm), commands, strict=True):
        identity = identity_of(run.manifest, name)
        assert identity is not None
        options = words[words.index("llama-server") + 1 :]
        assert options == [word.replace("{port}", "8080") for word in identity.argv[1:]]
    assert "first token" in text


def test_under_load_the_paste_has_latency_and_throughput(tmp_path: Path) -> None:
    write_sweep(tmp_path / "run", Sweep(concurrency=(1, 4), prompts=12))
    run = open_run(tmp_path / "run")
    text = paste(run, analyse_run(run))
    assert "| Arm | Latency | TTFT | tok/s | Throughput × |" in text and "| `spec_d4-c4` | 1.58 s |" in text
    assert max(map(len, text.splitlines())) <= WIDTH


def test_nobody_is_called_and_no_issue_is_linked() -> None:
    """A tracker looks for names and numbers in the text that it has made of the Markdown."""
    html = MarkdownIt("commonmark").render(markdown_lines("@octocat and org/repo#12, #3 a@b.example", begin="- "))
    assert not re.search(r"@\w|#\d", html) and "octocat" in html


def test_a_line_that_begins_like_a_list_stays_text() -> None:
    text = markdown_lines(f"{'x' * 20} 1. no list {'y' * 20} - no entry `a b` end", begin="- ", width=24)
    assert max(map(len, text.splitlines())) <= 24
    html = MarkdownIt("commonmark").render(text)
    assert html.count("<li>") == 1 and "<ol>" not in html and "<code>a b</code>" in html


def test_every_violation_is_in_it(run_data: RunData) -> None:
    analysis = build_analysis(["baseline", *(f"spec_d{depth}" for depth in range(2, 12))])
    bad = [verdict.model_copy(update={"lossless": "violation"}) for verdict in analysis.verdicts]
    text = paste(run_data, analysis.model_copy(update={"verdicts": bad}))
    assert text.count("| violation") == 10


def test_names_form_no_markup(run_data: RunData) -> None:
    hostile = "<img src=x onerror=alert(1)>[a](javascript:b)|`"
    analysis = build_analysis(["baseline", hostile])
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(paste(run_data, analysis))
    assert "<img" not in html and 'javascript:b"' not in html and html.count("<tr>") == 7
