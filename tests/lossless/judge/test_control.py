"""What scores do not decide is tested against a control, prompt by prompt: exact, corrected, with its power."""

from __future__ import annotations

from itertools import combinations
from math import comb
from pathlib import Path
from typing import Any

import pytest

from benchctl.analysis.analyse import conditions_of
from benchctl.analysis.output_results import Losslessness
from benchctl.data.record import sha256_text, sha256_tokens
from benchctl.data.scores import DivergedToken, NullPass, ScoredAnswer
from benchctl.data.store import open_run
from benchctl.lossless.judge.control import by_class, exact_p, find_controls, paired, power
from benchctl.lossless.judge.run import analyse_run
from tests.analysis.conditions.simulated import Sweep, write_sweep
from tests.lossless.replayed import codes, scores

DRAFT = {"type": "draft-simple", "max": 4}
GRAMMAR = {"grammar": "root ::= x"}
ARMS = {"baseline": None, "sound": DRAFT, "faulty": DRAFT}


def judged(folder: Path) -> dict[str, Losslessness]:
    return {row.arm: row for row in analyse_run(open_run(folder)).losslessness}


def answer(record: dict[str, Any], ids: list[int]) -> None:
    text = " ".join(map(str, ids))
    record |= {"token_ids": ids, "token_sha": sha256_tokens(ids), "content": text, "content_sha": sha256_text(text)}
    record["n_predicted"] = len(ids)


def spoil(record: dict[str, Any], arms: tuple[str, ...], prompts: int) -> None:
    """All answers are the target's own, but those of these arms to the first prompts."""
    ids = [100 + record["prompt_idx"], *range(200, 230)]
    if record["label"] in arms and record["prompt_idx"] < prompts:
        ids[20:] = range(700, 700 + len(ids) - 20)
    answer(record, ids)


@pytest.mark.parametrize(("prompts", "verdict"), [(0, "undetermined"), (8, "undetermined"), (12, "violation")])
def test_of_overlapping_requests_an_arm_of_the_same_width_is_the_control(
    tmp_path: Path, prompts: int, verdict: str
) -> None:
    sweep = Sweep(concurrency=(4,), arms=ARMS, prompts=24, blocks=2)
    write_sweep(tmp_path / "run", sweep, edit=lambda record: spoil(record, ("faulty",), prompts))
    arms = judged(tmp_path / "run")
    assert (arms["sound"].verdict, arms["faulty"].verdict) == ("undetermined", verdict)
    if prompts:
        test = arms["faulty"].control
        assert test is not None
        assert (test.against, test.control, test.outside, test.differing) == ("arm", "sound", prompts, prompts)
        assert test.p == pytest.approx(2.0**-prompts)
        assert test.p_adjusted == pytest.approx(2 * 2.0**-prompts)  # Holm over two arms
        assert codes(arms["faulty"])[0] == "control"


def test_where_all_arms_of_a_width_differ_the_width_may_be_why(tmp_path: Path) -> None:
    sweep = Sweep(concurrency=(4,), arms=ARMS, prompts=24, blocks=2)
    write_sweep(tmp_path / "run", sweep, edit=lambda record: spoil(record, ("sound", "faulty"), 12))
    assert {row.verdict for row in judged(tmp_path / "run").values()} == {"undetermined"}


def test_an_arm_without_a_control_says_what_is_missing(tmp_path: Path) -> None:
    arms = {"baseline": None, "faulty": DRAFT, "wide": {"type": "draft-simple", "max": 8}}
    sweep = Sweep(concurrency=(4,), arms=arms, prompts=24, blocks=2)
    write_sweep(tmp_path / "run", sweep, edit=lambda record: spoil(record, ("faulty",), 24))
    faulty = judged(tmp_path / "run")["faulty"]
    assert faulty.verdict == "undetermined"
    assert faulty.control is not None
    assert faulty.control.against is None
    assert codes(faulty)[0] == "control" and "Measure another arm of the same depth" in faulty.reason


def test_under_a_constraint_an_arm_beside_it_is_the_control(tmp_path: Path) -> None:
    """A grammar's answers cannot be scored: an honest arm is identical, and one that weakens it is a violation."""
    sweep = Sweep(arms=ARMS, prompts=24, blocks=1, sampling=GRAMMAR)
    write_sweep(tmp_path / "run", sweep, edit=lambda record: spoil(record, ("faulty",), 21))
    arms = judged(tmp_path / "run")
    assert (arms["sound"].verdict, arms["faulty"].verdict) == ("identical", "violation")


@pytest.mark.parametrize(("sizes", "arms"), [([3, 3], 3), ([4, 1, 1], 3), ([2, 2, 1], 2), ([6], 3)])
def test_the_chances_by_class_are_those_of_all_choices(sizes: list[int], arms: int) -> None:
    labels = [number for number, size in enumerate(sizes) for _ in range(size)]
    counts = [0] * (arms + 1)
    for chosen in combinations(range(len(labels)), arms):
        remaining = {labels[index] for index in range(len(labels)) if index not in chosen}
        counts[sum(labels[index] not in remaining for index in chosen)] += 1
    assert by_class(sizes, arms) == pytest.approx([count / comb(len(labels), arms) for count in counts])


def test_the_p_value_is_mcnemars_and_the_power_binomial() -> None:
    arm, control, tied = paired(True, False), paired(False, True), paired(True, True)
    assert exact_p([arm] * 8) == pytest.approx(2.0**-8)
    assert exact_p([arm] * 8 + [control] * 2) == pytest.approx(sum(comb(10, count) for count in (8, 9, 10)) / 2**10)
    assert exact_p([tied] * 24) == pytest.approx(1)
    assert power(4, 0.25, 0.25**4) == pytest.approx(0.25**4)
    assert power(24, 0.5, 1e-9) == 0


def test_scores_by_prefill_are_a_control_of_the_arms_worst_tokens(tmp_path: Path) -> None:
    """The baseline's own answers in the crowd are behind by 0.1 nats at most; twelve of the arm's by a whole nat."""
    sweep = Sweep(concurrency=(4,), arms={"baseline": None, "faulty": DRAFT}, prompts=24, blocks=1)
    write_sweep(tmp_path / "run", sweep, edit=lambda record: spoil(record, ("faulty",), 24))
    run = open_run(tmp_path / "run")
    for beyond, scored, expected in ((12, 24, 2.0**-12), (12, 12, 2.0**-12), (0, 24, 1.0)):
        target_scores = scores([]).model_copy(update={"shape": "prefill", "answers": [
            ScoredAnswer(
                task=record.task, prompt_idx=record.prompt_idx,
                prompt_sha=record.prompt_sha, token_sha=record.token_sha or "",
                margins=[1.0] * 30, diverged=[DivergedToken(index=20, likeliest=1, gap=gap)],
            )
            for record in run.records
            if record.prompt_idx < scored  # the time to score may end early
            for gap in [1.0 if record.label == "faulty" and record.prompt_idx < beyond else 0.1]
        ]})  # fmt: skip
        test = find_controls(conditions_of(run), ["faulty"], {None: target_scores}, {})["faulty"]
        assert (test.against, test.differing, test.outside) == ("scores", beyond, 24)
        assert (test.prompts, test.tested) == (24, scored)
        assert test.p == pytest.approx(expected)
        assert test.violates == bool(beyond)


@pytest.mark.parametrize(("loss", "against"), [(0.0, "noise"), (0.01, None)])
def test_on_a_target_without_noise_the_baseline_repeated_is_a_control(
    tmp_path: Path, loss: float, against: str | None
) -> None:
    sweep = Sweep(arms={"baseline": None, "faulty": DRAFT}, prompts=24, blocks=2, sampling=GRAMMAR)
    write_sweep(tmp_path / "run", sweep, edit=lambda record: spoil(record, ("faulty",), 12))
    key: dict[str, Any] = {"task": "code", "prompt_idx": 0, "prompt_sha": None, "token_sha": "x"}
    places = list(range(1000))
    target_scores = scores([]).model_copy(update={
        "answers": [ScoredAnswer(**key, margins=[1.0] * 1000)],
        "passes": [NullPass(**key, width=5, first=5, places=places, losses=[loss] * 1000)],
    })  # fmt: skip
    run = open_run(tmp_path / "run")
    test = find_controls(conditions_of(run), ["faulty"], {None: target_scores}, {})["faulty"]
    assert test.against == against
    if against:  # both of the arm's answers, or both of the baseline's: 2 of the C(4, 2) choices
        assert test.p == pytest.approx(3.0**-12)
        assert test.violates
        again = find_controls(conditions_of(run), ["faulty"], {None: target_scores}, {}, times_asked=3)["faulty"]
        assert again.p_adjusted == pytest.approx(10 * 3.0**-12), "a test each time that prompts were asked"
