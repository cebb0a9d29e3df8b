"""The figures of tokens per time and of what drafts left out: drawn where a run has them, else not mentioned."""

from __future__ import annotations

import csv

import numpy as np

from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.results import Analysis
from benchctl.analysis.round_model import predictors
from benchctl.analysis.round_results import RoundModel, RoundSplit
from benchctl.data.rounds import LeftOut
from benchctl.data.store import RunData
from benchctl.reports.figures.arms import draw_left_out
from benchctl.reports.figures.style import styled
from benchctl.reports.write import render_files

FIGURES = {"figures/left-out.svg", "figures/tokens-per-time.svg"}


def split(arm: str, tokens: float, verify_s: float) -> RoundSplit:
    """Drafting takes 0.1 s, as does a step of the baseline; 0.2 s are left over."""
    parts = {"draft": 0.1, "verify": verify_s, "left over": 0.2}
    return RoundSplit.model_validate(
        {"arm": arm, "task": ALL_TASKS, "rounds": 9, "seconds": verify_s + 0.3, "tokens": tokens, "step_s": 0.1}
        | {"drafted_round_tokens": tokens, "parts": parts, "inferred": []}
    )


def traced(analysis: Analysis) -> Analysis:
    """Two arms at three contexts; of `spec_d2` layer 1 lost its attention in half of the rounds, beyond 32 tokens."""
    left_out = [
        LeftOut("spec_d2", 32, rounds=10, layers=3, times={"0.mlp": 10}),
        LeftOut("spec_d2", 64, rounds=8, layers=3, times={"1.attention": 4, "0.mlp": 8}),
        LeftOut("spec_d4", 64, rounds=5, layers=3, times={"2.layer": 5}),
    ]
    splits = [split("spec_d2", 2.0, 0.1), split("spec_d4", 3.0, 0.2)]
    return analysis.model_copy(update={"left_out": left_out, "rounds": RoundModel(splits=splits)})


def test_a_run_that_has_them_shows_them(run_data: RunData, analysis: Analysis) -> None:
    files = render_files(run_data, traced(analysis))
    assert set(files) >= FIGURES
    rows = {(row["arm"], row["context"]): row for row in csv.DictReader(files["left-out.csv"].decode().splitlines())}
    assert float(rows["spec_d2", "64"]["attention"]) == 0.5 / 3, "of three layers"
    assert rows["spec_d2", "32"]["attention"] == rows["spec_d4", "64"]["mlp"] == ""
    rounds = {row["arm"]: row for row in csv.DictReader(files["rounds.csv"].decode().splitlines())}
    assert float(rounds["spec_d4"]["tokens_per_time"]) == 1.0
    assert "What drafts left out" in files["index.html"].decode()


def test_a_run_without_them_says_nothing_of_them(run_data: RunData, analysis: Analysis) -> None:
    files = render_files(run_data, analysis)
    assert not FIGURES & set(files)
    assert "left-out.csv" not in files
    assert "What drafts left out" not in files["index.html"].decode()


def test_the_map_has_a_line_a_part_and_context(analysis: Analysis) -> None:
    with styled():
        figure = draw_left_out(traced(analysis))
    assert figure is not None
    first, second, *_ = figure.axes
    assert [label.get_text() for label in first.get_yticklabels()] == [
        *("attention, to 32", "attention, to 64"),
        *("MLP, to 32", "MLP, to 64"),
    ]
    (mesh,) = first.collections
    assert np.asarray(mesh.get_array()).tolist() == [[0, 0, 0], [0, 0.5, 0], [1, 0, 0], [1, 0, 0]]
    assert [label.get_text() for label in second.get_yticklabels()] == ["layer, to 64"]


def test_five_arms_tell_what_predicts_their_speed(analysis: Analysis) -> None:
    arms = [arm for arm in analysis.arms if arm.startswith("spec")]
    splits = [split(arm, 1.0 + number, 0.1 * number**2) for number, arm in enumerate([*arms, "ngram_simple"], start=1)]
    result = predictors(splits, analysis.acceptance)
    assert result.keys() == {"tokens per time", "acceptance"}
    assert result["tokens per time"] > result["acceptance"]
    assert predictors(splits[1:], analysis.acceptance) == {}
