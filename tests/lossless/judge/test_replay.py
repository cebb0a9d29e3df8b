"""The verdict by replay, on findings made by hand: the answer has tokens 100 to 110, whose first the prompt decides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchctl.analysis.output_results import Losslessness
from benchctl.data.record import Record
from benchctl.data.scores import DeviatingToken, ReplayedAnswer, Replays, ReplayTarget, sha256_steps
from benchctl.data.store import RunData
from benchctl.lossless.judge.replay import find_step
from benchctl.lossless.judge.run import analyse_run
from tests.analysis.conftest import build_manifest, build_record
from tests.lossless.replayed import codes, scores

OTHER = [*range(100, 107), 7, 8, 9, 10]
STEPS = [[4, 3], [4, 2], [4, 2]]
"""Steps that bring ten tokens: four, three and three."""
PLAIN = [[0, 0]] * 10
COUNTERS: dict[str, Any] = {"draft_n": 12, "draft_n_accepted": 7, "rounds": 3}


def speculating(label: str = "spec", prompt_idx: int = 0, **more: Any) -> Record:
    return build_record(label, prompt_idx, **{"target_steps": STEPS, **COUNTERS, **more})


def replayed(record: Record, diverged: Sequence[tuple[int, float | None]] = (), **more: Any) -> ReplayedAnswer:
    steps = PLAIN if record.target_steps is None else record.target_steps
    values: dict[str, Any] = {
        "task": record.task,
        "prompt_idx": record.prompt_idx,
        "prompt_sha": record.prompt_sha,
        "token_sha": record.token_sha,
        "steps_sha": sha256_steps(steps),
        "rows": len(record.token_ids or ()),
        "diverged": [DeviatingToken(index=index, likeliest=999, gap=gap) for index, gap in diverged],
    }
    return ReplayedAnswer(**values | more)


def verdicts(
    records: Sequence[Record],
    answers: Sequence[ReplayedAnswer],
    lacks: dict[str, str] | None = None,
    constrained: str | None = None,
    **manifest: Any,
) -> list[Losslessness]:
    arms = dict.fromkeys(record.label for record in records)
    prompts = len({record.prompt_idx for record in records})
    manifest = {"prompts": prompts, "blocks": 1} | manifest
    made = build_manifest({arm: None if arm == "baseline" else {"type": "draft-simple"} for arm in arms}, **manifest)
    made.prompts[0].constrained = constrained
    target = ReplayTarget(
        arms=list(arms), command=["replay"], evidence="by hand", program_sha256=None, answers=list(answers)
    )
    of_run = scores([]).model_copy(update={"replays": Replays(targets=[target], lacks=lacks or {})})
    run = RunData(Path("by-hand"), made, list(records), [], scores=of_run)
    return analyse_run(run).losslessness


BASELINE = build_record("baseline")
DIFFERING = speculating(ids=OTHER, text="else")
EQUAL = speculating()


def test_answers_that_differ_and_replay_exactly_are_exact() -> None:
    (judged,) = verdicts([BASELINE, DIFFERING], [replayed(BASELINE), replayed(DIFFERING)])
    assert (judged.verdict, judged.counts, judged.audit) == ("exact", {"exact": 1}, None)
    assert codes(judged) == ["differing", "replay", "widths"]
    assert judged.replay is not None
    assert (judged.replay.answers, judged.replay.of, judged.replay.rounds, judged.replay.tokens) == (1, 1, 3, 11)
    assert "all 11 tokens of 1 answer (3 rounds) are the likeliest" in judged.reason
    tie = replayed(DIFFERING, [(8, 0.0)])
    assert verdicts([BASELINE, DIFFERING], [replayed(BASELINE), tie])[0].verdict == "exact", "either may be chosen"


@pytest.mark.parametrize("key", ["grammar", "repeat_penalty", "response_format"])
def test_constrained_answers_are_decided_by_replay(key: str) -> None:
    """There the target's own sampler chooses, with what constrains it; no score takes that into account."""
    sampling: dict[str, Any] = {"grammar": "root ::= [a-z]*", "repeat_penalty": 1.2}
    manifest: dict[str, Any] = (
        {"recipe": {"sampling": {key: sampling[key]}}} if key in sampling else {"constrained": key}
    )
    judged = verdicts([BASELINE, DIFFERING], [], **manifest)[0]
    assert (judged.verdict, codes(judged.comparisons[0])) == ("undetermined", ["constrained"])
    assert verdicts([BASELINE, DIFFERING], [replayed(BASELINE), replayed(DIFFERING)], **manifest)[0].verdict == "exact"
    outside = [replayed(BASELINE), replayed(DIFFERING, [(7, None)])]
    judged = verdicts([BASELINE, DIFFERING], outside, **manifest)[0]
    assert (judged.verdict, judged.counts) == ("violation", {"violation": 1})
    assert "the target alone chooses 999 there, since the request forbids the other (step 2," in judged.reason


def test_an_exact_arm_names_the_widths_with_and_without_its_answers() -> None:
    records = [BASELINE, DIFFERING]
    for label, drafted in (("alike", 5), ("shallow", 2), ("deep", 9)):
        steps = [[drafted, 1]] * 5
        counters: dict[str, Any] = {"draft_n": 5 * drafted, "draft_n_accepted": 5, "rounds": 5, "target_steps": steps}
        own: dict[str, Any] = {"text": "else", "ids": OTHER if label == "alike" else [*OTHER[:9], 12, 13]}
        records.append(build_record(label, **counters, **({} if label == "shallow" else own)))
    judged = {row.arm: row for row in verdicts(records, [replayed(record) for record in records])}
    assert {row.verdict for row in judged.values()} == {"exact", "identical"}
    assert judged["spec"].reason.endswith(
        "The same answers: width 6 (alike). Other answers: width 1 (baseline), width 3 (shallow), width 10 (deep). "
        "The first difference is at token 7 of code/0."
    )


def test_a_token_that_is_not_the_batchs_likeliest_is_a_violation_with_its_place() -> None:
    (judged,) = verdicts([BASELINE, DIFFERING], [replayed(BASELINE), replayed(DIFFERING, [(7, 0.004), (9, 2.0)])])
    assert (judged.verdict, judged.counts) == ("violation", {"violation": 1})
    assert judged.replay is not None
    deviation = judged.replay.first
    assert deviation is not None
    assert (deviation.task, deviation.prompt_idx, deviation.index, deviation.token) == ("code", 0, 7, 7)
    assert (deviation.likeliest, deviation.gap, deviation.step, deviation.width, deviation.draft) == (
        999,
        0.004,
        2,
        5,
        None,
    )
    assert judged.replay.deviating == 2


def test_equal_answers_are_replayed_too() -> None:
    """Equal by luck: the engine accepted a token where its own batch preferred another."""
    (judged,) = verdicts([BASELINE, EQUAL], [replayed(BASELINE), replayed(EQUAL)])
    assert (judged.verdict, judged.power, judged.power_lacking) == ("identical", None, None)
    assert judged.replay is not None
    assert judged.replay.exact
    (judged,) = verdicts([BASELINE, EQUAL], [replayed(BASELINE), replayed(EQUAL, [(3, 0.1)])])
    assert (judged.verdict, judged.counts, codes(judged)) == ("violation", {"violation": 1}, ["replay"])


@pytest.mark.parametrize(
    ("control", "lacking"),
    [
        ([replayed(BASELINE, [(4, 0.01)])], "1 of 1 answers of the baseline do not replay"),
        ([], "0 of 1 answers of the baseline, the control, were replayed"),
        ([replayed(BASELINE, steps_sha="0" * 64)], "0 of 1 answers of the baseline"),
        ([replayed(BASELINE, rows=5)], "0 of 1 answers of the baseline"),
    ],
)
def test_without_an_exact_control_replay_decides_nothing(control: list[ReplayedAnswer], lacking: str) -> None:
    for diverged in ([], [(7, 2.0)]):
        (judged,) = verdicts([BASELINE, DIFFERING], [*control, replayed(DIFFERING, diverged)])
        assert (judged.verdict, judged.counts) == ("undetermined", {"differs": 1})
        assert judged.audit is not None
        assert judged.replay is not None
        assert lacking in str(judged.replay.lacking)
        assert lacking in judged.reason


def test_an_arm_that_is_replayed_in_part_is_not_exact_and_the_others_decide() -> None:
    records = [build_record("baseline", 0), build_record("baseline", 1), DIFFERING]
    unknown = speculating(prompt_idx=1, ids=OTHER, text="else", target_steps=None)
    control = [replayed(record) for record in records[:2]]
    (judged,) = verdicts([*records, unknown], [*control, replayed(DIFFERING)])
    assert (judged.verdict, judged.counts) == ("undetermined", {"differs": 1, "exact": 1})
    assert "1 of 2 answers were replayed: the steps of the others are not recorded" in judged.reason
    assert judged.audit is not None, "the hazard test decides the rest"
    (judged,) = verdicts([*records, unknown], [*control, replayed(DIFFERING, [(7, 0.1)])])
    assert (judged.verdict, judged.counts) == ("violation", {"differs": 1, "violation": 1})
    (judged,) = verdicts([*records, unknown], control, lacks={"spec": "the engine failed: it is gone"})
    assert "0 of 2 answers were replayed: the engine failed: it is gone" in judged.reason


def test_an_arm_whose_differing_answers_replay_is_exact_whatever_its_identical_ones_lack() -> None:
    records = [build_record("baseline", 0), build_record("baseline", 1), DIFFERING]
    identical = speculating(prompt_idx=1, target_steps=None)
    control = [replayed(record) for record in records[:2]]
    (judged,) = verdicts([*records, identical], [*control, replayed(DIFFERING)])
    assert (judged.verdict, judged.counts) == ("exact", {"exact": 1, "identical": 1})
    assert codes(judged)[:3] == ["differing", "replayed-differing", "replay"]
    assert "1 of 2 answers were replayed" in judged.reason


def test_steps_that_contradict_the_counters_are_none() -> None:
    contradictions: list[list[list[int]]] = [[[4, 3], [4, 2]], [[4, 3], [4, 9], [4, 2]], [[]], [[4]]]
    for steps in contradictions:
        record = DIFFERING.changed(target_steps=steps)
        (judged,) = verdicts([BASELINE, record], [replayed(BASELINE), replayed(record)])
        assert judged.verdict == "undetermined"
        assert "were not replayed: they are not recorded" in judged.reason


@pytest.mark.parametrize(
    ("changes", "lacking"),
    [
        ({"recipe": {"engine": {"prefix_caching": True}}}, "the prompt cache was on"),
        ({"recipe": {"sampling": {"temperature": 0.7}}}, "answers are sampled"),
    ],
)
def test_where_replay_would_show_nothing_it_is_not_used(changes: dict[str, Any], lacking: str) -> None:
    for record in (EQUAL, DIFFERING):
        (judged,) = verdicts([BASELINE, record], [replayed(BASELINE), replayed(record)], **changes)
        assert judged.verdict == ("identical" if record is EQUAL else "undetermined")
        assert judged.replay is not None
        assert lacking in str(judged.replay.lacking)


def test_endings_are_judged_whatever_replays() -> None:
    longer = speculating(ids=[*OTHER, 11], text="else", target_steps=[[4, 3], [4, 2], [4, 3]], draft_n_accepted=8)
    limit: dict[str, Any] = {"recipe": {"sampling": {"max_tokens": 11}}}
    (judged,) = verdicts([BASELINE, longer], [replayed(BASELINE), replayed(longer)], **limit)
    assert (judged.verdict, judged.counts) == ("violation", {"violation": 1})
    model = {"source": "bundled:none", "path": "none.gguf", "files": [], "facts": {"end_tokens": [110]}}
    (judged,) = verdicts([BASELINE, DIFFERING], [replayed(BASELINE), replayed(DIFFERING)], target=model)
    assert (judged.verdict, judged.counts) == ("undetermined", {"undetermined": 1}), "it stopped without an end token"


def test_a_failed_answer_keeps_an_arm_from_being_exact() -> None:
    failed = speculating(prompt_idx=1, ids=[], text="", error={"kind": "crash", "message": "gone"}, target_steps=None)
    baseline = [BASELINE, build_record("baseline", 1)]
    (judged,) = verdicts([*baseline, DIFFERING, failed], [*map(replayed, baseline), replayed(DIFFERING)])
    assert (judged.verdict, judged.counts) == ("undetermined", {"exact": 1, "undetermined": 1})


def test_the_step_of_a_token() -> None:
    assert find_step(STEPS, 0) == (0, 0, None)
    assert [find_step(STEPS, index) for index in (1, 3, 4, 5, 10)] == [
        (1, 5, 1), (1, 5, 3), (1, 5, None), (2, 5, 1), (3, 5, None),
    ]  # fmt: skip
    assert find_step(PLAIN, 4) == (4, 1, None)
    again = [[4, 2, 1], [0, 0]]  # two accepted and its own token are read again, of which the first is accepted
    assert [find_step(again, index) for index in (1, 2, 3)] == [(1, 4, 1), (1, 4, None), (2, 1, None)]
    with_prompt = [[0, 4, 2], [4, 0]]  # the prompt's own pass brought three tokens
    assert [find_step(with_prompt, index) for index in (0, 2, 3)] == [(0, 0, 1), (0, 0, None), (1, 5, None)]
    with pytest.raises(ValueError, match="no token 11"):
        find_step(STEPS, 11)


def test_stored_readings_of_another_run_or_beyond_an_answer_are_refused() -> None:
    with pytest.raises(ValueError, match="beyond its end"):
        replayed(BASELINE, [(11, 0.1)])
    (judged,) = verdicts([BASELINE, DIFFERING], [replayed(BASELINE), replayed(DIFFERING)], run="20261121-110500-aaaa")
    assert (judged.verdict, judged.replay) == ("undetermined", None)
