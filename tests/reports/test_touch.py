"""The page when it is touched: every prompt side by side, tables, choosing, plots; in a browser where there is one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from benchctl.analysis.losslessness import FirstDivergence
from benchctl.analysis.results import Analysis
from benchctl.data.record import Record
from benchctl.data.scores import Position, Reading, TargetScores
from benchctl.data.store import RunData
from benchctl.lossless.judge.whole_answers import find_whole_answers
from benchctl.reports import page
from benchctl.reports.figures.arms import drawn_positions
from benchctl.reports.page import plot_data
from benchctl.reports.render import render_html
from benchctl.reports.write import render_files
from tests.reports.handmade import ARMS, TASKS, build_analysis, build_manifest
from tests.reports.page_text import PageText

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
OFFLINE = ("--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
           "--disable-sync")  # fmt: skip
SAID = "The quick brown fox jumps over the lazy dog. " * 24
"""About 256 tokens."""


def forked(analysis: Analysis) -> Analysis:
    """The analysis with a divergence in every prompt of every arm."""
    divergence = FirstDivergence(index=3, unit="token", agreed_text="quick ", baseline_text="brown fox",
                arm_text="red fox",
                baseline_token=7, arm_token=8)  # fmt: skip
    judged = [
        arm.model_copy(
            update={
                "comparisons": [
                    comparison.model_copy(
                        update={"outcome": "near-tie", "divergence": divergence, "blocks_differing": 3}
                    )
                    for comparison in arm.comparisons
                ]
            }
        )
        for arm in analysis.losslessness
    ]
    return analysis.model_copy(update={"losslessness": judged})


def run_of(analysis: Analysis) -> RunData:
    """A run with every whole answer: the arms say another colour than the baseline."""
    records = [
        Record(
            label=arm,
            task=task,
            prompt_idx=i,
            rep=block,
            block=block,
            content=SAID if arm == "baseline" else SAID.replace("brown", "red", 1),
        )
        for arm in analysis.arms
        for task in TASKS
        for i in range(4)
        for block in range(analysis.blocks)
    ]
    return RunData(Path(), build_manifest(analysis), records, [])


def test_every_prompt_has_both_whole_answers_with_the_divergence_marked() -> None:
    analysis = forked(build_analysis(["baseline", "spec_d4"]))
    page = PageText(render_html(run_of(analysis), analysis, []))
    assert len([a for a in page.all("details") if a.get("class") == "prompt"]) == 12
    text = render_html(run_of(analysis), analysis, [])
    assert text.count("The quick <mark>brown</mark> fox jumps") == 12
    assert text.count("The quick <mark>red</mark> fox jumps") == 12
    assert text.count("lazy dog. The quick") > 12 * 2 * 20


def test_what_the_target_alone_gave_both_tokens_stands_there() -> None:
    analysis = build_analysis(["baseline", "spec_d4"])
    one = next(comparison for comparison in analysis.losslessness[0].comparisons if comparison.divergence)
    reading = Reading(shape="decode", width=1, likeliest=19689, token=-0.5, rival=-1.0)
    other = reading.model_copy(update={"shape": "verify", "width": 17})
    manifest = build_manifest(analysis)
    manifest.engine.details.clear()
    scores = TargetScores(
        run=analysis.run, benchctl_version="0", made_at="", baseline="baseline", command=[], engine_sha256=None,
        model=manifest.target.files,
        positions=[Position(task=one.task, prompt_idx=one.prompt_idx, prompt_sha=None, index=17, agreed_sha="",
                            token=19689, rival=49, fork=True, readings=[reading, other])],
    )  # fmt: skip
    run = replace(run_of(analysis), manifest=manifest, scores=scores)
    result = next(answer for answer in find_whole_answers(run, analysis) if answer.diverging)
    assert [(p.shape, round(p.baseline or 0, 4), round(p.arm or 0, 4)) for p in result.diverging[0].probabilities] == [
        ("decode", 0.6065, 0.3679)
    ]
    text = re.sub(r"<[^>]+>", " ", render_html(run, analysis, []))
    assert re.search(r"token by token\s+60\.7 %\s+36\.8 %\s+the baseline’s", text)


def test_few_rounds_and_late_positions_are_not_drawn(analysis: Analysis) -> None:
    rows = [
        row.model_copy(update={"rounds": 19, "position_unconditional": [1.0] * 40})
        if row.arm == "spec_d2"
        else row.model_copy(update={"position_unconditional": [0.5] * 40})
        if row.arm == "spec_d4"
        else row
        for row in analysis.acceptance
    ]
    changed = analysis.model_copy(update={"acceptance": rows})
    assert "spec_d2" not in {row.arm for row in drawn_positions(changed)}
    assert {len(row.position_unconditional or ()) for row in drawn_positions(changed) if row.arm == "spec_d4"} == {16}
    assert {position["arm"] for position in json.loads(plot_data(changed))["positions"]} == {
        "spec_d4",
        "spec_d8",
        "spec_d16",
    }


def test_a_page_of_twelve_prompts_and_six_arms_is_below_a_megabyte() -> None:
    analysis = forked(build_analysis(list(ARMS)))
    assert len(render_files(run_of(analysis), analysis)["index.html"]) < 1_000_000


def test_the_library_has_what_the_page_calls_and_no_more() -> None:
    library, script = page.scripts()
    called = set(re.findall(r"\bPlot\.(\w+)", script))
    exported = re.search(r"\{(?=[^{}]*\btickX:\(\)=>)([^{}]*)\}", library)
    assert exported is not None
    assert called == set(re.findall(r"(\w+):\(\)=>", exported[1]))


@pytest.fixture(scope="module")
def touched(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page's elements after a browser ran it: an arm left out, a table sorted, another filtered."""
    if BROWSER is None:
        pytest.skip("no browser here (chromium)")
    analysis = build_analysis(list(ARMS))
    page = render_files(run_of(analysis), analysis)["index.html"].decode()
    hand = """<script>addEventListener("load", () => {
      const named = (label) => label.textContent.trim() === "spec_d16";
      const box = [...document.querySelectorAll(".chooser label")].find(named);
      box.querySelector("input").click();
      const [first, second] = document.querySelectorAll("#speed table");
      [...first.tHead.rows[0].cells].find((head) => head.textContent === "Pooled").click();
      const pressed = [...second.tHead.rows[0].cells][2].querySelector("button");
      pressed.focus();
      pressed.click();  // what Enter does
      const filter = document.querySelector("#speed .filter");
      filter.value = "ngram simple"; filter.dispatchEvent(new Event("input"));
      document.querySelectorAll("#speed details").forEach((fold) => { fold.open = true; });
    });</script></body>"""
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page).replace("</body>", hand)
    folder = tmp_path_factory.mktemp("page")
    (folder / "index.html").write_text(page)
    command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", *OFFLINE,
               f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=3000", "--dump-dom",
               (folder / "index.html").as_uri()]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("the browser does not start here")
    if 'class="live"' not in done.stdout:
        assert "<html" not in done.stdout, "the page's script failed"
        pytest.skip("the browser does not start here")
    return done.stdout


def rows_of(page: str, table: int) -> list[str]:
    tables = re.findall(r"<table>.*?</table>", page.partition('id="speed"')[2], re.DOTALL)
    return re.findall(r"<tr data-arm.*?</tr>", tables[table], re.DOTALL)


def test_a_browser_draws_the_plots_when_they_are_opened(touched: str) -> None:
    assert touched.count('class="plot"') == 3
    assert touched.count('class="drawn"') == 3


def test_a_browser_sorts_filters_and_leaves_arms_out(touched: str) -> None:
    for table, column in ((0, 2), (1, 2)):
        rows = rows_of(touched, table)
        cells = [re.search(r'data-v="([^"]*)"', row)[1].replace("&quot;", '"') for row in rows]  # type: ignore[index]
        values = [float(json.loads(row)[column]) for row in cells]
        assert values == sorted(values) and len(values) > 6
    hidden = {re.search(r'data-arm="([^"]*)"', row)[1] for row in rows_of(touched, 1) if 'hidden=""' in row}  # type: ignore[index]
    assert hidden == {"spec_d16"}
    assert any('data-filtered="out"' in row for row in rows_of(touched, 0))
