"""How divergences and their margins are written."""

from __future__ import annotations

import pytest

from benchctl.analysis.losslessness import FirstDivergence, ShapeMargin
from benchctl.data.store import open_run
from benchctl.lossless.judge.run import analyse_run
from benchctl.reports.tables.output import TargetNoise, divergence_start, margin, noise_floors, scored_divergences
from benchctl.words.numbers import nats
from tests.kept_runs import ROOT
from tests.reports.handmade import NOISE, build_analysis

KEPT = ROOT / "results"
FORK = FirstDivergence(
    index=17,
    unit="token",
    agreed_text="",
    baseline_text="Arc",
    arm_text="",
    margin=9.0,
    margin_is_least=True,
    shapes=(
        ShapeMargin(shape="decode", width=1, margin=9.0, prefers="baseline"),
        ShapeMargin(shape="verify", width=5, margin=-0.0351, prefers="arm"),
    ),
)


@pytest.mark.parametrize(("shape", "text"), [("decode", "≥ 9.000"), ("verify", "-0.035 (5) ←"), ("prefill", "–")])
def test_a_margin_says_its_width_and_whether_it_flips(shape: str, text: str) -> None:
    assert margin(FORK, shape) == text


@pytest.mark.parametrize(("value", "text"), [(None, "–"), (0.0, "0.000"), (0.4049, "0.405"), (1.9e-6, "2e-06")])
def test_nats(value: float | None, text: str) -> None:
    assert nats(value) == text


def test_the_start_of_an_answer_is_one_short_line() -> None:
    assert divergence_start("a\nb") == "a⏎b"
    assert len(divergence_start("x" * 100)) == 12
    assert divergence_start("") == "(end)"


def test_every_scored_fork_has_a_row_and_every_width_one_noise() -> None:
    analysis = build_analysis(["spec_d4", "ngram"])
    rows = scored_divergences(analysis).rows
    assert rows
    assert all(row.divergence is not None and row.divergence.margin is not None for row in rows)
    assert noise_floors(analysis).rows == [TargetNoise("baseline", NOISE)]


def test_noise_is_of_one_target_and_kv_type() -> None:
    """Each part of a run over axes was scored on its own target: floors of one width are not one number."""
    (folder,) = (path.parent for path in KEPT.glob("qwen2.5-coder-axes/*/manifest.json"))
    rows = noise_floors(analyse_run(open_run(folder))).rows
    floors = {(row.baseline, row.noise.width): row.noise.floor for row in rows}
    assert len(floors) == len(rows)
    assert floors["baseline-kv_f16", 5] == pytest.approx(1.106, abs=0.001)
    assert floors["baseline-kv_q8_0", 5] == pytest.approx(0.825, abs=0.001)
