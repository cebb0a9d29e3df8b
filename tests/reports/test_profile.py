"""The speculation profile of a run: both conventions of acceptance from the rounds that were counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchctl.data.store import open_run
from benchctl.errors import UsageError
from benchctl.lossless.analysed import analyse_run
from benchctl.reports.profile import profile

KEPT = Path(__file__).parents[2] / "results"


def of(recipe: str) -> tuple[Path, dict[str, object]]:
    (folder,) = (KEPT / recipe).glob("2*")
    run = open_run(folder)
    return folder, json.loads(profile(run, analyse_run(run)))


def test_rates_are_those_of_the_rounds_of_the_deepest_draft() -> None:
    folder, found = of("qwen2.5-coder")
    records = [
        record
        for record in open_run(folder).records
        if record.label == "spec_d16" and record.phase == "measure" and record.accepted_by_position
    ]
    rounds = sum(record.rounds or 0 for record in records)
    first, second = (sum((record.accepted_by_position or [0, 0])[place] for record in records) for place in (0, 1))
    marginal, conditional = found["marginal_accept_rates"], found["conditional_accept_rates"]
    assert isinstance(marginal, list) and isinstance(conditional, list)
    assert marginal[:2] == pytest.approx([first / rounds, second / rounds], abs=1e-6)
    assert conditional[:2] == pytest.approx([first / rounds, second / first], abs=1e-6)
    assert len(marginal) == len(conditional) == found["num_speculative_tokens"] == 16
    assert found["mean_accept_length"] == pytest.approx(1 + sum(marginal), abs=1e-5)
    histogram = found["acceptance_length_histogram"]
    assert isinstance(histogram, dict)
    assert sum(histogram.values()) == rounds
    assert list(histogram) == [str(length) for length in range(1, 18)]
    assert found["method"] == "draft_model"
    lengths = found["accept_length_by_k"]
    assert isinstance(lengths, dict)
    assert list(lengths) == ["2", "4", "8", "16"]


def test_a_run_without_a_draft_model_has_no_profile() -> None:
    with pytest.raises(UsageError) as refused:
        of("vllm-hybrid")
    assert "0" in refused.value.what
