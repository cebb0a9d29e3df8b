"""Right answers in the first table, on the page, in Markdown and in CSV: only where prompts carry answers."""

from __future__ import annotations

from benchctl.analysis.accuracy import Accuracy, ArmAccuracy
from benchctl.analysis.results import Analysis
from benchctl.data.store import RunData
from benchctl.reports.write import render_files
from tests.reports.handmade import build_analysis
from tests.reports.test_terminal import printed

LOST = [f"code/{number}" for number in range(9)]
COUNTS = {"prompts": 24, "cut": 0}


def judged(analysis: Analysis) -> Analysis:
    """The baseline has 20 of 24 right, every arm 11."""
    row = ArmAccuracy(
        arm=analysis.baseline, baseline=None, correct=20, baseline_correct=20, lost=[], gained=[], **COUNTS
    )
    rows = [
        ArmAccuracy(arm=verdict.arm, baseline=analysis.baseline, correct=11, baseline_correct=20, lost=LOST, gained=[],
                    p=0.004, p_adjusted=0.024, detectable=0.37, **COUNTS)
        for verdict in analysis.verdicts
    ]  # fmt: skip
    return analysis.model_copy(update={"accuracy": Accuracy(arms=[row, *rows])})


def test_a_column_of_the_first_table(analysis: Analysis) -> None:
    assert "Correct" not in printed(analysis, 80)
    lines = printed(judged(analysis), 120).splitlines()
    baseline = next(line for line in lines if line.startswith("baseline "))
    assert "20 of 24" in baseline
    assert sum("11 of 24" in line for line in lines) == 6
    assert "37 percentage points" in " ".join(" ".join(lines).split())


def test_baselines_alone_are_shown_where_they_were_judged() -> None:
    """As where targets are compared, and nothing speculates."""
    baselines = build_analysis(["baseline"])
    assert "24" not in printed(baselines, 80)
    assert "20 of 24" in printed(judged(baselines), 80)


def test_report_and_csv(run_data: RunData, analysis: Analysis) -> None:
    without, files = (render_files(run_data, shown, figures=False) for shown in (analysis, judged(analysis)))
    assert "accuracy.csv" not in without and b"accuracy" not in without["analysis.json"]
    assert b"Correct answers" not in without["report.md"] + without["index.html"]
    for name in ("report.md", "index.html"):
        assert b"Correct answers" in files[name] and b"11 of 24" in files[name]
    header, first, second = files["accuracy.csv"].decode().splitlines()[:3]
    assert header.startswith("arm,correct,prompts,baseline,baseline_correct,lost,gained,p_adjusted,p,detectable")
    assert first.startswith("baseline,20,24,,,")
    assert ",11,24,baseline,20," in second and second.count("code/") == 9 and "0.024,0.004,0.37," in second
