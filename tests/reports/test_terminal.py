"""The summary in the terminal: every arm and its numbers, on narrow and wide screens and in pipes."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from benchctl.analysis.result import Interval
from benchctl.analysis.results import Analysis, Verdict
from benchctl.reports.terminal import MOST_WARNINGS, print_summary
from tests.reports.handmade import build_analysis


def printed(analysis: Analysis, width: int) -> str:
    stream = io.StringIO()
    print_summary(Console(file=stream, width=width, color_system=None), analysis)
    return stream.getvalue()


@pytest.mark.parametrize("width", [50, 80, 160])
def test_every_arm_with_its_numbers(analysis: Analysis, width: int) -> None:
    text = printed(analysis, width)
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.split())
    for verdict in analysis.verdicts:
        assert verdict.arm in text
        assert ("inactive" if verdict.attestation == "idle" else f"{verdict.speedup:.2f}×") in text
        assert verdict.why.split()[0] in words
    for cost in analysis.costs:
        if cost.overhead is not None:
            assert f"{1 + cost.overhead:.2f}" in text, "what a round costs is why an arm pays or does not"
    assert "pays here with 1 of 6 arms: ngram_simple, 1.12×" in words
    assert "Failed: block 2, spec_d16" in words
    assert "A load average of 4.7" in words


def test_one_block_says_why_there_is_no_interval() -> None:
    analysis = build_analysis(["baseline", "spec_d4"], blocks=1)
    unknown = [Verdict.model_validate(v.model_dump() | {"speed": "unknown"}) for v in analysis.verdicts]
    text = printed(analysis.model_copy(update={"verdicts": unknown}), 120)
    assert "One block: no interval (three are needed)." in text
    assert "95 %" not in text


@pytest.mark.parametrize(("high", "told"), [(0.84, True), (1.04, False)])
def test_an_undecided_arm_whose_own_interval_excludes_1_says_why(analysis: Analysis, high: float, told: bool) -> None:
    one = analysis.verdicts[0]
    interval = Interval(low=0.36, high=high, method="")
    sentence = "Undecided: 0.55×, but 0.21 to 1.44 corrected for the run's other claims."
    undecided = one.model_copy(update={"speed": "undecided", "interval": interval, "sentence": sentence})
    words = " ".join(printed(analysis.model_copy(update={"verdicts": [undecided]}), 80).split())
    assert (f"{one.arm}: {sentence}" in words) == told


def test_many_warnings_are_counted(analysis: Analysis) -> None:
    kinds = [analysis.warnings[0].model_copy(update={"id": f"kind-{number}"}) for number in range(MOST_WARNINGS + 3)]
    many = analysis.model_copy(update={"warnings": kinds})
    assert "3 more warnings are in the report." in printed(many, 80)


def test_only_the_baseline() -> None:
    assert "No conclusion" in printed(build_analysis(["baseline"]), 80)
