"""Answers under constraints: invalid where the target alone is valid is a violation of its own kind."""

from __future__ import annotations

from typing import Any

import pytest

from benchctl.analysis.frame import make_frame
from benchctl.analysis.losslessness import Validity
from benchctl.analysis.output_results import Losslessness
from benchctl.lossless.judge.run import analyse_run
from benchctl.lossless.judge.validity import find_validity
from benchctl.prompts.rules import Rules
from benchctl.reports.tables.output import validity as validity_table
from benchctl.words.validity import logprobs as in_words

VALID, INVALID = '{"a": 1}', '{{"a": 1}'
SCHEMA = Rules(answer_schema={"type": "object", "required": ["a"]})
ARMS = {"baseline": None, "spec": {"type": "draft-simple", "max": 4}}
FREE = Rules(tools={"f": {"type": "object", "required": ["a"]}})
CALL, EMPTY_CALL = ('<tool_call>{"name": "f", "arguments": ' + arguments + "}" for arguments in ('{"a": 1}', "{}"))


@pytest.fixture
def judged(make_record: Any, make_run: Any, make_manifest: Any) -> Any:
    """Return the verdict on an arm by rules and the texts of its answers; the baseline's are `theirs`."""

    def judge(
        rules: Rules | None, ours: list[dict[str, Any]], theirs: str | list[str] = VALID, **more: Any
    ) -> Losslessness:
        texts = [theirs] * len(ours) if isinstance(theirs, str) else theirs
        manifest = make_manifest(ARMS, prompts=len(ours), blocks=1, **more)
        for prompt in manifest.prompts:
            prompt.rules, prompt.constrained = rules, "response_format"
        listed = {"logprobs": [-0.5] * 11} if rules is not None and rules.logprobs else {}
        prompts = range(len(ours))
        baseline = [
            make_record("baseline", index, text=texts[index], finish_reason="stop", **listed) for index in prompts
        ]
        arm = [
            make_record(
                "spec", index, **({"finish_reason": "stop", "ids": _ids(fields["text"] == texts[index])} | fields)
            )
            for index, fields in enumerate(ours)
        ]
        return analyse_run(make_run([*baseline, *arm], manifest)).losslessness[0]

    return judge


def _ids(same: bool) -> list[int]:
    return [*range(100, 104), 104 if same else 99, *range(105, 111)]


def validity(verdict: Losslessness) -> Validity:
    assert verdict.validity is not None
    return verdict.validity


def test_an_answer_that_its_grammar_forbids_is_a_violation_with_its_place(judged: Any) -> None:
    steps = {"target_steps": [[0, 0], [4, 3], [4, 4]], "draft_n": 8, "draft_n_accepted": 7, "rounds": 2}
    sound = {"text": VALID}
    verdict = judged(SCHEMA, [sound, {"text": INVALID, **steps}, sound])
    assert (verdict.verdict, verdict.counts) == ("violation", {"identical": 2, "violation": 1})
    of_arm = validity(verdict)
    assert (of_arm.counts.valid, of_arm.counts.invalid, of_arm.baseline.valid) == (2, 1, 3)
    assert (of_arm.arm_alone, of_arm.baseline_alone, of_arm.p) == (["code/1"], [], 0.5)
    assert (broken := of_arm.broken) is not None
    assert (broken.code, broken.index, broken.step, broken.draft) == ("json", 4, 2, 3), "the third draft of step 2"
    assert "Invalid where the target alone is valid at 1 prompt (code/1)" in verdict.reason
    (row,) = validity_table([verdict]).rows
    assert row is of_arm
    assert f"token {broken.index} (draft token {broken.draft} of step {broken.step})" in verdict.reason


@pytest.mark.parametrize(
    ("ours", "theirs", "counts"),
    [
        ({"text": '{"a": ', "finish_reason": "length"}, VALID, {"cut": 1}),
        ({"text": INVALID}, INVALID, {"invalid": 1}),  # the target alone does it, too
        ({"text": VALID}, INVALID, {"valid": 1}),
    ],
)
def test_what_is_cut_or_invalid_without_speculation_is_no_violation(
    judged: Any, ours: dict[str, Any], theirs: str, counts: dict[str, int]
) -> None:
    verdict = judged(SCHEMA, [ours], theirs)
    assert verdict.verdict != "violation"
    assert validity(verdict).counts.model_dump(exclude_defaults=True) == counts


def test_what_the_target_alone_breaks_elsewhere_its_engine_does_not_enforce(judged: Any) -> None:
    verdict = judged(SCHEMA, [{"text": INVALID}] * 2, [INVALID, VALID])
    assert (validity(verdict).arm_alone, validity(verdict).broken) == (["code/1"], None)
    assert verdict.verdict != "violation"


def test_a_stop_string_that_was_passed_is_a_violation(judged: Any) -> None:
    verdict = judged(Rules(stop=("END",)), [{"text": "a END b"}], "a ")
    assert (verdict.verdict, validity(verdict).counts.invalid) == ("violation", 1)
    assert "it goes on past its stop string (it has 'END')" in verdict.reason


def test_steps_that_do_not_bring_the_answer_place_nothing(judged: Any) -> None:
    verdict = judged(SCHEMA, [{"text": INVALID, "target_steps": [[0, 0]]}])
    assert (broken := validity(verdict).broken) is not None
    assert (verdict.verdict, broken.index, broken.step) == ("violation", 4, None)


def test_only_where_the_target_alone_is_valid_is_an_answer_invalid_in_the_arm_alone(judged: Any) -> None:
    """Eight times the target alone called nothing, so that there was nothing to check."""
    of_arm = judged(FREE, [{"text": EMPTY_CALL}] * 8, "It rains.")
    assert (of_arm.verdict, validity(of_arm).arm_alone, validity(of_arm).p) == ("undetermined", [], 1.0)
    both = judged(FREE, [{"text": EMPTY_CALL}] * 9, [EMPTY_CALL, *[CALL] * 8])
    assert both.verdict == "violation"
    assert (first := validity(both).first) is not None and first.prompt_idx == 1, "where the target alone is valid"


def test_the_level_is_shared_by_the_arms_of_all_conditions(make_record: Any, make_manifest: Any) -> None:
    frames = []
    for name in ("spec", "wide"):
        manifest = make_manifest({"baseline": None, name: ARMS["spec"]}, prompts=8, blocks=1)
        for prompt in manifest.prompts:
            prompt.rules = FREE
        records = [make_record(arm, index, text=text, finish_reason="stop") for index in range(8)
                   for arm, text in (("baseline", CALL), (name, EMPTY_CALL))]  # fmt: skip
        frames.append((make_frame(records, manifest), [1]))
    alone, together = find_validity(frames[:1])["spec"], find_validity(frames)["spec"]
    assert (alone.p_adjusted, together.p_adjusted) == (alone.p, 2 * alone.p) == (2.0**-8, 2.0**-7)


@pytest.mark.parametrize(("prompts", "verdict"), [(4, "undetermined"), (8, "violation")])
def test_calls_that_the_model_was_free_to_make_are_counted(judged: Any, prompts: int, verdict: str) -> None:
    """Rounding may change the arguments of a call; so often it does not."""
    of_arm = judged(FREE, [{"text": EMPTY_CALL}] * prompts, CALL)
    assert (of_arm.verdict, validity(of_arm).broken) == (verdict, None)
    assert len(validity(of_arm).arm_alone) == prompts


@pytest.mark.parametrize(
    ("logprobs", "wrong", "said"),
    [
        ([-0.5] * 10 + [-0.4], False, "11 tokens, at most 0.1 nats off the baseline's"),
        ([-0.5] * 9 + [0.0, 0.0], True, "exactly 0 for 2 tokens that the baseline gives less"),
        ([-0.5] * 9 + [None, None], True, "absent for 2 tokens"),
        (None, True, "absent for 11 tokens"),
    ],
)
def test_log_probabilities_are_held_against_the_baselines(
    judged: Any, logprobs: list[float | None] | None, wrong: bool, said: str
) -> None:
    verdict = judged(Rules(logprobs=True), [{"text": VALID, "logprobs": logprobs}])
    check = validity(verdict).logprobs
    assert check is not None and (check.wrong, in_words(check)) == (wrong, said)
    assert verdict.verdict == "identical", "the text is the target's own"


def test_without_rules_nothing_is_said_of_forms(judged: Any) -> None:
    assert judged(None, [{"text": VALID}]).validity is None
