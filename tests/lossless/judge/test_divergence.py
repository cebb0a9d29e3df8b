"""From a replay to a class: what is excused, what is condemned, and what stays open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchctl.analysis.cells import verify_width
from benchctl.analysis.losslessness import because
from benchctl.analysis.output_results import Comparison, Losslessness
from benchctl.data.scores import Position
from benchctl.data.store import RunData
from benchctl.lossless.judge.divergence import Evidence
from benchctl.lossless.judge.run import OutputComparison, analyse_run
from benchctl.lossless.score.plan import prefixes_to_score
from tests.lossless.replayed import ANSWER, codes, divergence_at, reading, sample, scores

OTHER = [*ANSWER[:7], 7, 8, 9, 10]
NOISY = sample([0.3] * 99)
QUIET = sample([0.0] * 40)

DivergingRun = Callable[..., RunData]


@pytest.fixture
def diverging_run(make_record: Any, make_manifest: Any) -> DivergingRun:
    """A run of depth 4 (width 5) whose arm leaves the baseline at token 7."""

    def make(positions: list[Position] | None, *, ids: list[int] = OTHER, **arm: Any) -> RunData:
        manifest = make_manifest({"baseline": None, "spec": {"type": "draft-simple", "max": 4}}, prompts=1, blocks=2)
        records = [make_record("baseline", block=block) for block in range(2)]
        fields = {"text": "def add(a, b): pass", "draft_n": 8, "rounds": 2} | arm
        records += [make_record("spec", block=block, ids=ids, **fields) for block in range(2)]
        judged = None if positions is None else scores(positions)
        return RunData(Path("by-hand"), manifest, records, [], scores=judged)

    return make


def verdict(run: RunData) -> tuple[Losslessness, Comparison]:
    judged = analyse_run(run).losslessness[0]
    return judged, judged.comparisons[0]


def test_a_margin_within_the_noise_is_a_near_tie_and_never_lossless(diverging_run: DivergingRun) -> None:
    judged, comparison = verdict(
        diverging_run([*NOISY, divergence_at(7, 7, [("decode", 1, 0.05), ("verify", 5, 0.2)])])
    )
    assert (judged.verdict, comparison.outcome) == ("undetermined", "near-tie")
    assert judged.reasons[0].values["near_ties"] == 1
    assert comparison.divergence is not None
    assert comparison.divergence.margin == pytest.approx(0.05)
    assert comparison.divergence.noise_floor is not None and 0.3 < comparison.divergence.noise_floor < 3.0
    assert comparison.divergence.width == 5
    assert codes(comparison) == ["near-tie"] and comparison.reasons[0].values["margin"] == pytest.approx(0.05)
    assert "99 prefixes" in str(comparison.reasons[0].values["method"])


def test_a_margin_beyond_the_noise_is_a_violation(diverging_run: DivergingRun) -> None:
    judged, comparison = verdict(diverging_run([*NOISY, divergence_at(7, 7, [("decode", 1, 3.0), ("verify", 5, 2.9)])]))
    assert (judged.verdict, comparison.outcome) == ("violation", "violation")
    assert judged.reasons[0].values["violations"] == 1
    assert codes(comparison) == ["not-noise"] and comparison.reasons[0].values["margin"] == pytest.approx(3.0)


def test_a_wrong_token_is_a_violation_also_where_what_follows_is_garbage(diverging_run: DivergingRun) -> None:
    """vLLM's damaged hybrids: 17 nats, then broken characters; four such answers left the arm undetermined."""
    broken = {"text": "def add(" + "\ufffd" * 12}
    beyond = divergence_at(7, 7, [("decode", 1, 3.0), ("verify", 5, 2.9)])
    judged, comparison = verdict(diverging_run([*NOISY, beyond], **broken))
    assert (judged.verdict, comparison.outcome, codes(comparison)) == (
        "violation",
        "violation",
        ["not-noise", "degenerate"],
    )
    near = divergence_at(7, 7, [("decode", 1, 0.05), ("verify", 5, 0.2)])
    judged, comparison = verdict(diverging_run([*NOISY, near], **broken))
    assert (judged.verdict, comparison.outcome) == ("undetermined", "degenerate")


def test_the_baselines_own_shape_decides_and_not_a_larger_margin_in_another(diverging_run: DivergingRun) -> None:
    _, comparison = verdict(
        diverging_run([*NOISY, divergence_at(7, 7, [("decode", 1, 0.1), ("verify", 5, 0.4), ("prefill", 20, 0.9)])])
    )
    assert comparison.outcome == "near-tie"
    assert comparison.divergence is not None
    assert [round(shape.margin or 0, 3) for shape in comparison.divergence.shapes] == [0.1, 0.4, 0.9]


def test_a_target_that_chooses_the_arms_token_at_the_arms_width_explains_it(diverging_run: DivergingRun) -> None:
    _, comparison = verdict(diverging_run([*NOISY, divergence_at(7, 7, [("decode", 1, 2.5), ("verify", 5, -0.01)])]))
    assert comparison.outcome == "near-tie"
    assert comparison.reasons[0].values["chosen"] is True
    _, second = verdict(diverging_run([*NOISY, divergence_at(7, 7, [("decode", 1, 2.5), ("prefill", 20, -0.01)])]))
    assert second.outcome == "violation"  # no arm reads everything at once
    scored = divergence_at(7, 7, [("decode", 1, 2.5), ("verify", 9, -0.01), ("verify", 5, 2.5)])
    _, wider = verdict(diverging_run([*NOISY, scored]))
    assert wider.outcome == "violation"  # another arm's width
    assert wider.divergence is not None and [shape.width for shape in wider.divergence.shapes] == [1, 5]


def test_on_an_engine_that_reproduces_itself_no_divergence_is_excused(diverging_run: DivergingRun) -> None:
    judged, comparison = verdict(
        diverging_run([*QUIET, divergence_at(7, 7, [("decode", 1, 1e-6), ("verify", 5, 1e-6)])])
    )
    assert comparison.outcome == "violation"
    assert judged.noise[0].floor == 0


def test_an_arm_that_drafted_nothing_has_no_wider_batch_to_blame(diverging_run: DivergingRun) -> None:
    _, comparison = verdict(diverging_run([*NOISY, divergence_at(7, 7, [("decode", 1, 0.01)])], draft_n=0, rounds=0))
    assert comparison.outcome == "violation"
    assert comparison.reasons[0].values["width"] == 1


def test_noise_of_another_width_excuses_nothing(diverging_run: DivergingRun) -> None:
    wider = sample([0.3] * 99, width=9)
    _, comparison = verdict(diverging_run([*wider, divergence_at(7, 7, [("decode", 1, 0.05), ("verify", 5, 0.05)])]))
    assert comparison.outcome == "differs"
    assert codes(comparison) == ["not-explained"] and "noise is not known" in str(
        comparison.reasons[0].values["lacking"]
    )


def test_a_target_that_does_not_repeat_the_baseline_decides_nothing(diverging_run: DivergingRun) -> None:
    _, comparison = verdict(diverging_run([*NOISY, divergence_at(7, 7, [("decode", 1, -0.2), ("verify", 5, -0.2)])]))
    assert comparison.outcome == "undetermined"
    assert codes(comparison) == ["not-the-baselines"] and comparison.reasons[0].values["likeliest"] == "arm"


@pytest.mark.parametrize("likeliest", [ANSWER[7], 7])
def test_an_exact_tie_is_no_fault_whichever_token_the_target_lists_first(
    diverging_run: DivergingRun, likeliest: int
) -> None:
    tie = divergence_at(7, 7, [("decode", 1, 0.0)])
    tie.readings[0].likeliest = likeliest
    _, comparison = verdict(diverging_run([tie]))  # nor is any noise needed
    assert (comparison.outcome, codes(comparison)) == ("near-tie", ["tie"])


def test_a_promise_of_equal_numbers_leaves_ties_alone_as_an_excuse(diverging_run: DivergingRun) -> None:
    run = diverging_run([*NOISY, divergence_at(7, 7, [("decode", 1, 0.05), ("prefill", 20, -0.05)])])
    assert run.manifest is not None
    baseline, arm = run.manifest.arms
    engine = run.manifest.engine.model_copy(update={"kind": "vllm"})
    run.manifest.engine = engine
    assert verdict(run)[1].outcome == "near-tie"
    arm.env = ["VLLM_BATCH_INVARIANT=1"]
    assert verdict(run)[1].outcome == "near-tie"  # the baseline was without it
    baseline.env = ["VLLM_BATCH_INVARIANT=1"]
    judged, comparison = verdict(run)
    assert (judged.verdict, codes(comparison)) == ("violation", ["not-noise"])
    assert comparison.reasons[0].values["invariant"] == "VLLM_BATCH_INVARIANT=1"
    assert run.scores is not None
    run.scores.positions[-1] = divergence_at(7, 7, [("decode", 1, 0.0)])
    assert verdict(run)[1].outcome == "near-tie"


def test_equal_answers_say_what_promises_them(make_record: Any, make_manifest: Any) -> None:
    manifest = make_manifest({"baseline": None, "spec": {"type": "ngram-simple", "max": 4}}, prompts=1, blocks=1)
    manifest.engine = manifest.engine.model_copy(update={"kind": "vllm"})
    run = RunData(Path("by-hand"), manifest, [make_record("baseline"), make_record("spec", draft_n=8, rounds=2)], [])
    assert codes(verdict(run)[0]) == ["identical"]
    for arm in manifest.arms:
        arm.env = ["VLLM_BATCH_INVARIANT=1"]
    judged, _ = verdict(run)
    assert codes(judged) == ["identical", "batch-invariant"]
    assert judged.reason.endswith("VLLM_BATCH_INVARIANT=1 promises the same numbers in any batch: no numeric noise can "
                                  "make a difference.")  # fmt: skip


def test_a_token_too_far_down_the_list_has_at_least_that_margin(diverging_run: DivergingRun) -> None:
    far = divergence_at(7, 7, [("verify", 5, 9.0)])
    far.readings.insert(
        0, reading("decode", 1, 9.0, ANSWER[7], 7).model_copy(update={"rival": None, "rival_at_most": -9.5})
    )
    _, comparison = verdict(diverging_run([*NOISY, far]))
    assert comparison.outcome == "violation"
    assert comparison.divergence is not None and comparison.divergence.margin_is_least
    assert comparison.reasons[0].values["margin_is_least"] is True


@pytest.mark.parametrize("change", ["none", "other-token", "other-prefix", "other-run"])
def test_a_divergence_that_was_not_replayed_stays_open(diverging_run: DivergingRun, change: str) -> None:
    scored = divergence_at(7, 7, [("decode", 1, 0.05), ("verify", 5, 0.1)])
    changes: dict[str, dict[str, Any]] = {"other-token": {"rival": 8}, "other-prefix": {"agreed_sha": "0" * 64}}
    changed = changes.get(change, {})
    run = diverging_run(None if change == "none" else [*NOISY, scored.model_copy(update=changed)])
    if change == "other-run" and run.scores:
        run.scores.run = "another"
    judged, comparison = verdict(run)
    assert (judged.verdict, comparison.outcome) == ("undetermined", "differs")
    assert "another run" in comparison.reason if change == "other-run" else "has not replayed it" in comparison.reason


def test_the_reason_why_it_was_not_replayed_is_reported(diverging_run: DivergingRun) -> None:
    failed = because("divergence-failed", message="the model is gone")
    evidence = Evidence(reason=failed, by_answer={("code", 1): because("divergence-not-replayed")})
    result = OutputComparison(diverging_run(None)).verdicts(evidence)
    assert "the model is gone" in result[0].comparisons[0].reason


def test_an_answer_that_ends_without_a_token_cannot_be_scored(diverging_run: DivergingRun) -> None:
    _, comparison = verdict(diverging_run(NOISY, ids=ANSWER[:7]))
    assert comparison.outcome == "differs"
    assert "nothing to score" in comparison.reason


def test_the_most_serious_of_several_divergences_counts(diverging_run: DivergingRun, make_record: Any) -> None:
    run = diverging_run(
        [
            *NOISY,
            divergence_at(7, 7, [("decode", 1, 0.05), ("verify", 5, 0.1)]),
            divergence_at(3, 9, [("decode", 1, 4.0), ("verify", 5, 4.0)]),
        ]
    )
    run.records[3] = make_record("spec", block=1, ids=[*ANSWER[:3], 9, 9], text="else", draft_n=8, rounds=2)
    _, comparison = verdict(run)
    assert (comparison.outcome, comparison.blocks_differing) == ("violation", 2)
    assert comparison.divergence is not None and comparison.divergence.index == 3
    assert [divergence.index for divergence in comparison.other_divergences] == [7]


def test_prefixes_to_score_are_the_divergences_with_their_width_and_every_answer(diverging_run: DivergingRun) -> None:
    outputs = OutputComparison(diverging_run(None))
    frame, judged = outputs.frame, outputs.verdicts()
    (answer,) = prefixes_to_score(frame, judged)
    assert (answer.task, answer.prompt_idx, answer.token_ids) == ("code", 0, tuple(ANSWER))
    assert [(divergence.index, divergence.rival, divergence.width) for divergence in answer.divergences] == [(7, 7, 5)]
    outputs = OutputComparison(diverging_run(None, ids=ANSWER, text="def add(a, b): return a + b"))
    frame, judged = outputs.frame, outputs.verdicts()
    assert prefixes_to_score(frame, judged) == []


@pytest.mark.parametrize(
    ("speculation", "counters", "width"),
    [
        ({"type": "draft-simple", "max": 4}, {}, 5),
        ({"type": "draft-simple", "max": 4}, {"draft_n": 0}, 1),
        ({"type": "draft-eagle3", "max": 4}, {"draft_n": 48, "rounds": 4}, 13),  # a tree of twelve
        ({"type": "ngram-mod"}, {"draft_n": 27, "rounds": 2}, 15),
        ({"type": "ngram-mod"}, {}, None),
    ],
)
def test_the_width_is_the_depth_or_what_was_drafted(
    make_record: Any, make_manifest: Any, speculation: Any, counters: Any, width: int | None
) -> None:
    manifest = make_manifest({"baseline": None, "spec": speculation}, prompts=1, blocks=1)
    assert verify_width(manifest, make_record("spec", **counters)) == width


def test_where_no_width_can_be_read_reading_at_once_is_the_measure(diverging_run: DivergingRun) -> None:
    positions = [
        comparison.model_copy(update={"readings": [reading("decode", 1, 3.0, 1, 2), reading("prefill", 40, 3.1, 1, 2)]})
        for comparison in QUIET
    ]
    divergence = divergence_at(7, 7, [("decode", 1, 9.0), ("prefill", 20, 8.9)])
    absent = {"verify": "this engine reads on no more than one token at a time"}
    judged, comparison = verdict(diverging_run([*positions, divergence.model_copy(update={"absent": absent})]))
    assert comparison.outcome == "violation"
    assert "at margins up to" in comparison.reason
    assert judged.noise[0].by_prefill
    assert comparison.divergence is not None and comparison.divergence.shapes_absent == absent
    near = divergence_at(7, 7, [("decode", 1, 0.05), ("prefill", 20, -0.01)])
    _, tied = verdict(diverging_run([*positions, near.model_copy(update={"absent": absent})]))
    assert tied.outcome == "near-tie"
    assert "the arm's token" in tied.reason
