"""The verdict of a check from its stored answers, in words that never promise too much."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchctl.data.cell import Cell
from benchctl.data.manifest import Manifest
from benchctl.experiments.sampling.judge import sampling_verdict
from benchctl.experiments.sampling.stored import SampledAnswer, SamplingCheck, SamplingData, SamplingSettings

SEEDS, TOKENS = 120, 4
DRAFT = {"type": "draft-simple", "max": 4}


def answers(arm: str, share: float, seed: int, drafted: int | None = 3) -> list[SampledAnswer]:
    """Answers to two prompts whose second token is 7 with a probability of `share`, else 8; 5 and 6 are about it."""
    rng = np.random.default_rng(seed)
    return [
        SampledAnswer(
            arm=arm,
            task="code",
            prompt_idx=prompt,
            seed=number,
            token_ids=[5, 7 if rng.random() < share else 8, 6],
            drafted=drafted,
            accepted=drafted,
        )
        for number in range(SEEDS)
        for prompt in range(2)
    ]


@pytest.fixture
def make_check(make_manifest: Callable[..., Manifest]) -> Callable[..., SamplingData]:
    """Make a check of one arm, `spec`, whose answers are given."""

    def make(
        ours: list[SampledAnswer], *, finished: tuple[str, ...] = ("baseline", "spec"), **of_arm: Any
    ) -> SamplingData:
        manifest = make_manifest({"baseline": None, "spec": DRAFT}, 2, 1)
        manifest.recipe = {"sampling": {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "max_tokens": TOKENS}}
        manifest.arms[1] = manifest.arms[1].model_copy(update=of_arm)
        manifest.cells = [
            Cell(block=0, arm=arm, order=0, status="finished", started_at="", wall_s=1.0, log="log") for arm in finished
        ]
        settings = SamplingSettings(seeds=SEEDS, level=0.01, planned=["spec"], seeding="spread")
        everything = [*answers("baseline", 0.5, seed=1, drafted=None), *ours]
        return SamplingData(Path("check"), SamplingCheck(settings=settings, manifest=manifest), everything, 0)

    return make


def test_the_same_distribution(make_check: Callable[..., SamplingData]) -> None:
    result = sampling_verdict(make_check(answers("spec", 0.5, seed=2)))
    arm = result.arms[0]
    assert arm.verdict == "no difference found"
    assert "variation of 0." in arm.reason
    assert "lossless" not in arm.model_dump_json()
    assert result.power is not None
    assert arm.drafted == 3 * 2 * SEEDS


def test_equal_answers_give_equal_numbers(make_check: Callable[..., SamplingData]) -> None:
    data = make_check(answers("spec", 0.45, seed=2))
    assert sampling_verdict(data) == sampling_verdict(data)


def test_another_distribution(make_check: Callable[..., SamplingData]) -> None:
    arm = sampling_verdict(make_check(answers("spec", 0.8, seed=2))).arms[0]
    assert arm.verdict == "difference found"
    assert min(test.adjusted for test in arm.tests) <= 0.01
    assert "first 2 tokens" in arm.reason


def test_a_first_token_that_differs_is_not_laid_at_speculation(make_check: Callable[..., SamplingData]) -> None:
    changed = [answer.model_copy(update={"token_ids": [9, 7]}) for answer in answers("spec", 0.5, seed=2)]
    reason = sampling_verdict(make_check(changed)).arms[0].reason
    assert "differs already" in reason


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda ours: ours[:-1], "can be read"),
        (lambda ours: [], "have no token ids"),
        (lambda ours: [one.model_copy(update={"drafted": 0}) for one in ours], "never fired"),
        (lambda ours: [one.model_copy(update={"token_ids": None}) for one in ours[:9]] + ours[9:], "no token ids"),
    ],
    ids=["missing", "none", "idle", "unknown ids"],
)
def test_unusable_answers_are_undetermined(make_check: Callable[..., SamplingData], spoil: Any, message: str) -> None:
    arm = sampling_verdict(make_check(spoil(answers("spec", 0.5, seed=2)))).arms[0]
    assert arm.verdict == "undetermined"
    assert message in arm.reason


@pytest.mark.parametrize("finished", [("baseline",), ("spec",), ()])
def test_an_interrupted_check_is_undetermined(make_check: Callable[..., SamplingData], finished: Any) -> None:
    arm = sampling_verdict(make_check(answers("spec", 0.9, seed=2), finished=finished)).arms[0]
    assert arm.verdict == "undetermined"
    assert arm.tests == []


def test_lossy_by_design_is_never_passed(make_check: Callable[..., SamplingData]) -> None:
    lossy = {"lossy": ["synthetic acceptance"]}
    equal = sampling_verdict(make_check(answers("spec", 0.5, seed=2), **lossy)).arms[0]
    assert (equal.verdict, equal.lossy) == ("lossy by design", ["synthetic acceptance"])
    changed = sampling_verdict(make_check(answers("spec", 0.9, seed=2), **lossy)).arms[0]
    assert changed.verdict == "difference found"
    assert changed.reason.startswith("Lossy by design (synthetic acceptance). ")
