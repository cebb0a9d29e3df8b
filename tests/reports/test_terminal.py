"""The summary in the terminal: every arm and its numbers, on narrow and wide screens and in pipes."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from benchctl.analysis.decision_results import Verdict
from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.result import Fact, Interval
from benchctl.analysis.results import Analysis, Caution
from benchctl.reports.bars import ASCII, UNICODE, print_bars
from benchctl.reports.first_screen import MOST_ARMS
from benchctl.reports.run_summary import print_decision, print_summary
from benchctl.reports.terminal import Printout
from benchctl.words.notices import counted, grouped_warnings
from benchctl.words.verdict import explanation
from tests.reports.handmade import build_analysis, decided


def printed(analysis: Analysis, width: int, *, verbose: bool = False) -> str:
    stream = io.StringIO()
    print_summary(Console(file=stream, width=width, color_system=None), analysis, "results/a/b", verbose=verbose)
    return stream.getvalue()


@pytest.mark.parametrize("width", [50, 80, 160])
def test_every_arm_with_its_numbers(analysis: Analysis, width: int) -> None:
    text = printed(analysis, width, verbose=True)
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.split())
    for verdict in analysis.verdicts:
        assert verdict.arm in text
        assert ("inactive" if verdict.attestation == "idle" else f"{verdict.speedup:.2f}×") in text
        assert explanation(analysis, verdict).split()[0] in words
    assert "Fastest: ngram_simple (ngram-simple), 18.6 tok/s, 1.12× as fast" in words
    assert "Failed: block 2, spec_d16" in words
    assert "A load average of 4.7" in words


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_bars_end_where_the_numbers_say(analysis: Analysis, encoding: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding, errors="replace")
    console = Console(file=stream, width=80, color_system=None)
    print_bars(Printout(console), analysis)
    stream.seek(0)
    full, within, beyond, one = UNICODE if encoding == "utf-8" else ASCII
    lines = {line.split()[0]: line for line in stream.read().splitlines() if line.strip()}
    compared = [row for row in analysis.verdicts if row.speedup and row.attestation != "idle"]
    assert {row.arm for row in compared} <= lines.keys() and "baseline" not in lines
    start = max(len(row.arm) for row in compared) + 10
    position = {lines[row.arm].index(one, start) for row in compared}
    assert len(position) == 1, "a straight line at 1.00×"
    column = position.pop() - start
    for row in compared:
        drawn = lines[row.arm][start:]
        assert len(drawn) <= 80 - start and f"{row.speedup:.2f}" in lines[row.arm]
        bar = max(drawn.rfind(full), drawn.rfind(within)) + 1
        assert bar == pytest.approx((row.speedup or 0.0) * column, abs=2)
        assert row.interval is None or drawn.rfind(beyond) < 0 or row.interval.high > (row.speedup or 0.0)


def test_bars_without_intervals_explain_none(analysis: Analysis) -> None:
    plain = [row.model_copy(update={"interval": None}) for row in analysis.verdicts]
    console = Console(file=io.StringIO(), width=80, color_system=None)
    print_bars(Printout(console), analysis.model_copy(update={"verdicts": plain}))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "1.00×, the target alone" in text and "95 %" not in text


def test_six_arms_are_one_screen(analysis: Analysis) -> None:
    console = Console(file=io.StringIO(), width=80, color_system=None)
    print_summary(console, analysis, "results/a/b")
    print_decision(console, analysis)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert len(lines) <= 26, "24, the failed cell and the null control"
    baseline = next(line for line in lines if line.startswith("baseline "))
    assert re.search(r"\d", baseline), "how fast it is without speculation"


def test_what_must_be_seen_stays_where_arms_are_folded() -> None:
    names = ["baseline", *(f"spec_d{depth}" for depth in range(2, 12)), "ngram_simple"]
    analysis = build_analysis(names)
    slowest = min(
        (verdict for verdict in analysis.verdicts if verdict.arm not in ("baseline", "ngram_simple")),
        key=lambda verdict: verdict.speedup or 0.0,
    )
    verdicts = [verdict.model_copy(update={"lossless": "violation"}) if verdict.arm == slowest.arm else verdict
                for verdict in analysis.verdicts]  # fmt: skip
    text = printed(decided(analysis.model_copy(update={"verdicts": verdicts})), 80)
    shown = {line.split()[0] for line in text.splitlines() if "×" in line and line.split()[0] in names}
    assert {slowest.arm, "ngram_simple"} <= shown and len(shown) == MOST_ARMS
    assert "5 more" in text
    assert len({line.split()[0] for line in printed(analysis, 80, verbose=True).splitlines() if line} & {*names}) == 12


def test_one_block_says_why_there_is_no_interval() -> None:
    analysis = build_analysis(["baseline", "spec_d4"], blocks=1)
    unknown = [Verdict.model_validate(v.model_dump() | {"speed": "unknown"}) for v in analysis.verdicts]
    text = printed(analysis.model_copy(update={"verdicts": unknown}), 120)
    assert "no interval" in text
    assert "95 %" not in text


def test_the_interval_is_the_one_that_decides(analysis: Analysis) -> None:
    """One that holds for a single claim would contradict the verdict."""
    arm = analysis.verdicts[0].arm
    rows = [row.model_copy(update={"interval": Interval(low=0.21, high=1.44, method="")})
            if row.arm == arm else row for row in analysis.verdicts]  # fmt: skip
    assert "0.21 to 1.44×" in printed(analysis.model_copy(update={"verdicts": rows}), 80)


def test_warnings_are_counted_and_shown_on_request(analysis: Analysis) -> None:
    kinds = [analysis.warnings[0].model_copy(update={"id": f"kind-{number}"}) for number in range(7)]
    many = analysis.model_copy(update={"warnings": kinds})
    place = analysis.warnings[0].where
    assert f"7 warnings (see -v): kind 0 ({place}), kind 1, 5 more." in printed(many, 200)
    assert printed(many, 80, verbose=True).count(analysis.warnings[0].where) >= 7


def test_notes_of_the_preparation_are_counted_by_their_subject(analysis: Analysis) -> None:
    texts = ["Arm spec_d4: it is odd.", "Arm spec_d4 is lossy by design (a).", "This is a virtual machine."]
    noted = [Caution(id="noted", where="the whole run", facts=[Fact(code="text", values={"text": text})])
             for text in texts]  # fmt: skip
    further = counted(grouped_warnings(analysis.model_copy(update={"warnings": [analysis.warnings[0], *noted]})))
    assert further.endswith(", 2 about spec_d4, 1 about the set-up.") and further.startswith("4 warnings (see -v): ")
    assert counted(grouped_warnings(analysis.model_copy(update={"warnings": noted[2:]}))) == (
        "1 warning about the set-up (see -v)."
    )


def test_an_arm_whose_attestation_failed_says_so(analysis: Analysis) -> None:
    failed = analysis.verdicts[0].model_copy(
        update={"attestation": "failed", "reason": "refused", "refusal": "It never ran."}
    )
    text = printed(analysis.model_copy(update={"verdicts": [failed, *analysis.verdicts[1:]]}), 80)
    words = " ".join(text.split())
    assert f"{failed.arm}: Its speed is not assessed" in words and "It never ran." in words


def test_only_the_baseline() -> None:
    assert "No conclusion" in printed(build_analysis(["baseline"]), 80)


def test_an_arm_that_misses_blocks_names_its_baselines_rate(analysis: Analysis) -> None:
    speedups = [
        row.model_copy(update={"by_block": row.by_block[:2], "baseline_rate": 3.21})
        if (row.arm, row.task) == ("spec_d4", ALL_TASKS)
        else row.model_copy(update={"baseline_rate": None})
        for row in analysis.speedups
    ]
    words = " ".join(printed(analysis.model_copy(update={"speedups": speedups}), 80).split())
    assert re.search(r"spec_d4 \S+ 3.21 0.57×", words), "the baseline's rate in the same answers"
    of_page = " ".join(printed(analysis.model_copy(update={"speedups": speedups}), 80, verbose=True).split())
    assert "spec_d4 is compared in 2 of 3 repetitions (blocks); in those the baseline made 3.21 tok/s." in of_page
