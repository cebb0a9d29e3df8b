"""The page: well-formed, accessible, self-contained, and first of all the conclusion."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchctl.analysis.decision_results import Verdict
from benchctl.analysis.result import Fact
from benchctl.analysis.results import Analysis
from benchctl.data.manifest import RunStatus
from benchctl.data.store import RunData, open_run
from benchctl.lossless.judge.run import analyse_run
from benchctl.reports.write import render_files
from benchctl.words.verdict import conclusion, explanation
from tests.kept_runs import ROOT
from tests.reports.handmade import ARMS, build_analysis, build_manifest
from tests.reports.page_text import PageText


def page_of(run: RunData, analysis: Analysis, *, figures: bool = False) -> PageText:
    return PageText(render_files(run, analysis, figures=figures)["index.html"].decode())


def run_of(analysis: Analysis, status: RunStatus = "finished") -> RunData:
    return RunData(Path(), build_manifest(analysis, status), [], [])


def test_well_formed_and_accessible(run_data: RunData, analysis: Analysis) -> None:
    page = page_of(run_data, analysis, figures=True)
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("h1")) == 1
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = Counter(a["id"] for _, a in page.elements if "id" in a)
    assert max(ids.values()) == 1
    links = {a["href"][1:] for a in page.all("a") if a["href"].startswith("#")}
    links |= {a["href"][1:] for a in page.all("use")}
    assert links <= set(ids)
    assert len(page.all("caption")) == len(page.all("table")) > 5
    assert all(a.get("scope") in {"col", "row"} for a in page.all("th"))
    drawings = page.all("svg")
    assert len(drawings) == 3
    assert all(a["role"] == "img" and len(a["aria-label"]) > 40 and a["viewbox"] for a in drawings)


def test_first_the_conclusion_then_why_then_how(run_data: RunData, analysis: Analysis) -> None:
    page = page_of(run_data, analysis)
    text = page.text
    assert [a["id"] for a in page.all("section")] == ["conclusion", "arms", "speed", "output", "warnings", "how"]
    first = "Fastest: ngram_simple (ngram-simple), 18.6 tok/s, 1.12× as fast as without speculation"
    parts = [first, "Arm: a setting of speculation", "\nWhy, arm by arm"]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    for section in (
        "0c1e570",
        "draft-simple, ngram-simple, ngram-mod",
        "3fa9" * 16,
        "Intel Xeon",
        "benchctl run recipe.yaml",
    ):
        assert section in text


@pytest.mark.parametrize("status", ["started", "interrupted", "failed"])
def test_an_unfinished_run_says_so_first(status: RunStatus) -> None:
    analysis = build_analysis(["baseline", "spec_d4"])
    text = page_of(run_of(analysis, status), analysis).text
    words = {"started": "not finished", "interrupted": "was interrupted", "failed": "This run failed"}[status]
    assert text.index(words) < text.index("draft-simple, depth 4")


def test_records_without_a_manifest(tmp_path: Path) -> None:
    analysis = build_analysis(["baseline", "spec_d4"])
    files = render_files(RunData(tmp_path, None, [], []), analysis, figures=False)
    for name in ("index.html", "report.md"):
        text = files[name].decode()
        assert "without a manifest" in text
        assert "records only" in text


def test_one_block_has_no_interval_and_says_why() -> None:
    analysis = build_analysis(["baseline", "spec_d4"], blocks=1)
    unknown = [Verdict.model_validate(v.model_dump() | {"speed": "unknown"}) for v in analysis.verdicts]
    analysis = analysis.model_copy(update={"verdicts": unknown})
    text = page_of(run_of(analysis), analysis).text
    assert "spec_d4, ran 0.57×" in text
    assert "One block: no interval" in text
    assert "95 % interval 0" not in text


@pytest.mark.parametrize("arms", [["baseline"], list(ARMS), ["baseline", *(f"arm_{i}" for i in range(11))]])
def test_one_to_twelve_arms(arms: list[str]) -> None:
    analysis = build_analysis(arms)
    files = render_files(run_of(analysis), analysis)
    text = PageText(files["index.html"].decode()).text
    assert all(arm in text for arm in arms)
    drawn = {name for name in files if name.startswith("figures/")}
    if arms == ["baseline"]:
        assert "No conclusion" in text
        assert drawn == set()
    else:
        assert len(drawn) == 6


def test_untold_acceptance_is_a_sentence_not_an_empty_frame() -> None:
    analysis = build_analysis(["baseline", "ngram_mod"])
    files = render_files(run_of(analysis), analysis)
    assert "figures/acceptance.svg" not in files
    assert "not reported by this engine" in files["index.html"].decode()


def test_steps_without_a_draft_have_columns_where_they_are_told() -> None:
    analysis = build_analysis(["baseline", "spec_d4", "ngram_mod"])
    untold = render_files(run_of(analysis), analysis)
    rows = [
        row.model_copy(update={"plain_steps": 74, "tokens_per_step": 1.1176}) if row.arm == "spec_d4" else row
        for row in analysis.acceptance
    ]
    with_steps = analysis.model_copy(update={"acceptance": rows})
    files = render_files(run_of(with_steps), with_steps)
    assert "Plain steps" not in untold["index.html"].decode()
    page = files["index.html"].decode().partition("<caption>Acceptance</caption>")[2].partition("</table>")[0]
    assert page.count('scope="col"') == 11, "Verified among them, which is not reported"
    assert '<td class="n">74</td><td class="n">1.12</td></tr>' in page


def with_verdict(analysis: Analysis, arm: str, **changed: object) -> Analysis:
    verdicts = [row.model_copy(update=changed) if row.arm == arm else row for row in analysis.verdicts]
    return analysis.model_copy(update={"verdicts": verdicts})


def test_evidence_is_folded_and_damage_is_not(run_data: RunData, analysis: Analysis) -> None:
    sentence = conclusion(analysis, analysis.verdicts[1])
    visible = page_of(run_data, analysis).unfolded
    assert explanation(analysis, analysis.verdicts[1]) in visible and sentence not in visible
    bad = [row.model_copy(update={"outcome": "violation"}) for row in analysis.losslessness[1].comparisons[:2]]
    judged = [row.model_copy(update={"comparisons": bad, "counts": {"violation": 2}}) if row.arm == "spec_d4" else row
              for row in analysis.losslessness]  # fmt: skip
    violated = with_verdict(analysis.model_copy(update={"losslessness": judged}), "spec_d4", lossless="violation")
    for damaged in (violated, with_verdict(analysis, "spec_d4", attestation="failed")):
        files = render_files(run_data, damaged, figures=False)
        for visible in (PageText(files["index.html"].decode()).unfolded, files["report.md"].decode()):
            assert sentence in visible
            assert "block 2, spec_d16" in visible, "the failed cell"
            if damaged is violated:
                assert "violation in code/0, code/1" in visible.replace("\\", "")


def test_a_warning_about_the_evidence_is_on_the_first_screen(run_data: RunData, analysis: Analysis) -> None:
    fact = Fact(code="text", values={"text": "A file was changed."})
    grave = analysis.warnings[0].model_copy(update={"id": "changed-evidence", "facts": [fact]})
    text = page_of(run_data, analysis.model_copy(update={"warnings": [grave]})).unfolded
    assert text.index("A file was changed.") < text.index("Decode tok/s")


def test_consistent_is_explained_where_it_stands(run_data: RunData, analysis: Analysis) -> None:
    consistent = with_verdict(analysis, "spec_d4", lossless="consistent with the target")
    for shown, stands in ((analysis, False), (consistent, True)):
        files = render_files(run_data, shown, figures=False)
        for text in (PageText(files["index.html"].decode()).unfolded, files["report.md"].decode()):
            assert ("no further than rounding explains" in text) == stands


def test_the_second_baseline_is_the_row_of_noise(run_data: RunData, analysis: Analysis) -> None:
    second = analysis.speedups[0].model_copy(update={"arm": "baseline-again", "pooled": 1.0371})
    compared = analysis.compared | {"baseline-again": analysis.compared["baseline"]}
    text = page_of(run_data, analysis.model_copy(update={"second_cells": [second], "compared": compared})).unfolded
    assert "1.04×" in text and "baseline once more" in text


def test_markdown_of_six_arms_is_short(run_data: RunData, analysis: Analysis) -> None:
    assert len(render_files(run_data, analysis)["report.md"].split()) < 1500


def test_every_heading_is_in_the_contents(run_data: RunData, analysis: Analysis) -> None:
    page = page_of(run_data, analysis)
    links = [a["href"][1:] for a in page.all("a") if a["href"].startswith("#")]
    assert {a["id"] for a in page.all("section")} <= set(links)


def test_the_same_run_gives_the_same_bytes(run_data: RunData, analysis: Analysis) -> None:
    first, second = render_files(run_data, analysis), render_files(run_data, analysis)
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []


def test_figures_are_images(run_data: RunData, analysis: Analysis) -> None:
    files = render_files(run_data, analysis)
    for name in ("speedup", "acceptance", "payoff"):
        assert files[f"figures/{name}.png"].startswith(b"\x89PNG")
        svg = ElementTree.fromstring(files[f"figures/{name}.svg"])
        assert svg.tag.endswith("svg")
        assert b"<dc:date>" not in files[f"figures/{name}.svg"]


def test_markdown_says_why_an_output_is_undetermined() -> None:
    """The page has it below each arm; the same in Markdown said "undetermined" and no more."""
    run = open_run(ROOT / "results/vllm-gpu-hybrid/20261126-204039-5681")
    text = render_files(run, analyse_run(run), figures=False)["report.md"].decode()
    assert "undetermined: 1 of 12 prompts got another answer than from the target alone" in text
    assert "was measured at 479 prefixes; 1,000 are needed." in text


def test_markdown_says_it_once_where_an_arm_did_not_run_as_requested(run_data: RunData, analysis: Analysis) -> None:
    failed = with_verdict(analysis, "spec_d4", attestation="failed")
    for shown in (analysis, failed):
        text = render_files(run_data, shown, figures=False)["report.md"].decode()
        assert text.count("Whether its output is the target's own is undetermined") == 1
