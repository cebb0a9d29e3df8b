"""Losslessness: what is equal, what differs, what cannot be known, and where answers divergence."""

from __future__ import annotations

import random
from typing import Any

import pytest

from benchctl.analysis.answers import AGREED, common_length, find_answers, find_divergence
from benchctl.analysis.conditions.split import split
from benchctl.analysis.frame import make_frame
from benchctl.analysis.losslessness import because
from benchctl.analysis.output_results import Comparison, Losslessness
from benchctl.data.record import Record
from benchctl.data.scores import ScoredAnswer
from benchctl.lossless.judge.divergence import Evidence
from benchctl.lossless.judge.run import analyse_run
from benchctl.lossless.judge.selection import select_answers
from benchctl.lossless.judge.verdicts import judge_arm
from benchctl.lossless.score.plan import prefixes_to_score
from tests.lossless.replayed import codes, scores

OTHER = [*range(100, 107), 7, 8, 9, 10]


def verdict_on(records: list[Any], make_run: Any, **options: Any) -> Losslessness:
    return analyse_run(make_run(records, **options)).losslessness[0]


def only(judged: Losslessness) -> Comparison:
    assert len(judged.comparisons) == 1
    return judged.comparisons[0]


def both(make_record: Any, blocks: int = 2, **arm: Any) -> list[Any]:
    records = [make_record("baseline", block=block) for block in range(blocks)]
    return records + [make_record("spec", block=block, **arm) for block in range(blocks)]


def test_equal_text_and_tokens_in_every_block_is_lossless(make_record: Any, make_run: Any) -> None:
    judged = verdict_on(both(make_record), make_run)
    assert (judged.verdict, judged.counts) == ("identical", {"identical": 1})
    comparison = only(judged)
    assert (
        comparison.text_equal,
        comparison.tokens_equal,
        comparison.blocks_compared,
        comparison.blocks_differing,
    ) == (True, True, 2, 0)


@pytest.mark.parametrize(
    ("sampling", "verdict"),
    [
        ({"temperature": 0.0, "top_k": 0}, "undetermined"),
        ({"temperature": 0.7, "top_k": 1}, "undetermined"),
        ({"temperature": 0.7, "top_k": 40}, "undetermined"),
    ],
)
def test_sampled_answers_that_differ_prove_nothing(
    make_record: Any, make_run: Any, make_manifest: Any, sampling: Any, verdict: str
) -> None:
    manifest = make_manifest({"baseline": None, "spec": {}}, prompts=1, blocks=2, recipe={"sampling": sampling})
    judged = verdict_on(both(make_record, text="else", ids=OTHER), make_run, manifest=manifest)
    assert judged.verdict == verdict


@pytest.mark.parametrize(
    ("setting", "scored"),
    [
        ({"repeat_penalty": 1.1}, False),
        ({"grammar": "root ::= [a-z]+"}, False),
        ({"presence_penalty": 0.5, "logit_bias": {"7": -100.0}}, True),
        ({"repeat_penalty": 1.0, "logit_bias": {}}, True),  # as a recipe without them is stored
    ],
)
def test_scores_decide_only_with_penalties_that_they_take_into_account(
    make_record: Any, make_run: Any, make_manifest: Any, setting: dict[str, Any], scored: bool
) -> None:
    recipe = {"engine": {"kind": "llama.cpp"}, "sampling": {"temperature": 0, **setting}}
    manifest = make_manifest({"baseline": None, "spec": {}}, prompts=1, blocks=1, recipe=recipe)
    judged = verdict_on(both(make_record, text="else", ids=OTHER, blocks=1), make_run, manifest=manifest)
    assert judged.comparisons[0].outcome == ("differs" if scored else "undetermined")
    changed = manifest.model_copy(update={"recipe": recipe | {"engine": {"kind": "vllm"}}})
    judged = verdict_on(both(make_record, text="else", ids=OTHER, blocks=1), make_run, manifest=changed)
    neutral = setting == {"repeat_penalty": 1.0, "logit_bias": {}}
    assert judged.comparisons[0].outcome == ("differs" if neutral else "undetermined"), "its scores are raw logits"


@pytest.mark.parametrize("stored", ["response_format", None])
def test_scores_decide_nothing_of_answers_that_a_schema_holds(
    make_record: Any, make_run: Any, make_manifest: Any, stored: str | None
) -> None:
    manifest = make_manifest({"baseline": None, "spec": {"type": "draft-simple", "max": 4}}, prompts=2, blocks=1)
    manifest.prompts[0].constrained = stored
    records = [make_record("baseline", prompt) for prompt in range(2)]
    run = make_run([*records, *(make_record("spec", prompt, text="else", ids=OTHER) for prompt in range(2))], manifest)
    judged = analyse_run(run).losslessness[0]
    constrained, free = judged.comparisons
    assert (constrained.outcome, free.outcome) == ("undetermined" if stored else "differs", "differs")
    assert codes(constrained) == ["constrained" if stored else "not-explained"]
    assert judged.verdict == "undetermined"
    (group,) = split(run)
    frame = make_frame(run.records, manifest)
    scored = [1] if stored else [0, 1]
    assert sorted(answer.prompt_idx for answer in select_answers([(group, frame)]).baseline_answers) == scored
    assert [answer.prompt_idx for answer in prefixes_to_score(frame, [judged])] == scored
    same = [*records, *(make_record("spec", prompt) for prompt in range(2))]
    assert analyse_run(make_run(same, manifest)).losslessness[0].verdict == "identical"


def test_a_divergence_is_named_by_token_with_both_continuations(make_record: Any, make_run: Any) -> None:
    judged = verdict_on(both(make_record, text="def add(a, b): pass", ids=OTHER), make_run)
    assert judged.verdict == "undetermined"
    comparison = only(judged)
    assert (comparison.outcome, comparison.blocks_differing) == ("differs", 2)
    assert comparison.divergence is not None
    assert (
        comparison.divergence.index,
        comparison.divergence.unit,
        comparison.divergence.baseline_token,
        comparison.divergence.arm_token,
    ) == (
        7,
        "token",
        107,
        7,
    )
    assert (comparison.divergence.agreed_text, comparison.divergence.baseline_text) == (
        "def add(a, b): ",
        "return a + b",
    )
    assert comparison.divergence.arm_text == "pass"
    assert (comparison.reasons[0].code, comparison.reasons[0].values["index"]) == ("not-explained", 7)


def test_one_differing_block_is_enough(make_record: Any, make_run: Any) -> None:
    records = both(make_record, blocks=3)
    records[-1] = make_record("spec", block=2, text="else", ids=OTHER)
    judged = verdict_on(records, make_run)
    assert (judged.verdict, only(judged).outcome, only(judged).blocks_differing) == ("undetermined", "differs", 1)


def test_equal_text_of_other_tokens_differs(make_record: Any, make_run: Any) -> None:
    comparison = only(verdict_on(both(make_record, ids=OTHER), make_run))
    assert (comparison.outcome, comparison.text_equal, comparison.tokens_equal) == ("differs", True, False)
    assert comparison.divergence is not None and comparison.divergence.index == 7


def test_equal_text_is_no_other_answer_by_a_count(make_record: Any, make_run: Any) -> None:
    gone = {"token_ids": None, "token_sha": None}
    records = [make_record("baseline", **gone), make_record("spec", n_predicted=12, **gone)]
    judged = verdict_on(records, make_run)
    assert (judged.verdict, only(judged).outcome) == ("undetermined", "undetermined")
    assert only(judged).reasons == (because("counts-differ", baseline=11, arm=12),)
    assert codes(judged) == ["undetermined"]


def test_an_equal_text_that_ends_otherwise_is_another_ending(make_record: Any, make_run: Any) -> None:
    gone = {"token_ids": None, "token_sha": None}
    records = [make_record("baseline", **gone), make_record("spec", finish_reason="length", **gone)]
    judged = verdict_on(records, make_run)
    assert judged.reasons[0].values["diverging"] is False and codes(only(judged)) == ["other-ending"]


def test_a_baseline_that_varies_excuses_and_condemns_nothing(make_record: Any, make_run: Any) -> None:
    records = both(make_record)
    records[1] = make_record("baseline", block=1, text="another", ids=OTHER)
    analysis = analyse_run(make_run(records))
    assert analysis.losslessness[0].verdict == "undetermined"
    assert codes(only(analysis.losslessness[0])) == ["unstable"]
    assert analysis.consistency[0].differing == ["code/0"]
    assert (analysis.consistency[1].prompts, analysis.consistency[1].reproducible) == (1, 1)
    assert "baseline-not-reproducible" in {comparison.id for comparison in analysis.warnings}


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"error": {"kind": "crash", "message": "the engine died"}}, "the engine died"),
        ({"finish_reason": None}, "cut off"),
        ({"content": "def add(a, b): return a + c"}, "does not match its hash"),
        ({"content": None}, "has no text"),
        ({"token_ids": list(range(11))}, "do not match their hash"),
        ({"prompt_sha": "0" * 64}, "The rendered prompt"),
        ({"token_ids": None, "token_sha": None}, "only one side has token ids"),
    ],
)
@pytest.mark.parametrize("side", ["baseline", "spec"])
def test_what_is_broken_is_undetermined(make_record: Any, make_run: Any, broken: Any, message: str, side: str) -> None:
    records = both(make_record)
    position = 1 if side == "baseline" else 3
    records[position] = Record.from_dict(records[position].to_dict() | broken)
    judged = verdict_on(records, make_run)
    assert (judged.verdict, only(judged).outcome) == ("undetermined", "undetermined")
    assert message in only(judged).reason


@pytest.mark.parametrize("position", [1, 3])
def test_equal_text_is_identical_where_a_stream_cannot_give_all_ids(
    make_record: Any, make_run: Any, position: int
) -> None:
    gap = {"token_ids": None, "token_sha": None, "token_gap": "the stream lacks 2 of 11 token ids"}
    records = both(make_record)
    records[position] = Record.from_dict(records[position].to_dict() | gap)
    judged = verdict_on(records, make_run)
    assert (judged.verdict, only(judged).outcome) == ("identical", "identical")
    assert only(judged).reasons == (because("equal-but-gap", gap="the stream lacks 2 of 11 token ids"),)

    records[position] = Record.from_dict(records[position].to_dict() | {"n_predicted": 12})
    assert verdict_on(records, make_run).verdict != "identical"


@pytest.mark.parametrize("missing", range(4))
def test_a_missing_record_is_undetermined(make_record: Any, make_run: Any, make_manifest: Any, missing: int) -> None:
    records = both(make_record)
    del records[missing]
    manifest = make_manifest({"baseline": None, "spec": {"type": "ngram-simple"}}, prompts=1, blocks=2)
    judged = verdict_on(records, make_run, manifest=manifest)
    assert (judged.verdict, only(judged).outcome) == ("undetermined", "undetermined")
    assert only(judged).reasons[0].code == "flawed" and "is missing" in str(only(judged).reasons[0].values["flaws"])


def test_a_prompt_that_no_arm_answered_is_undetermined(make_record: Any, make_run: Any, make_manifest: Any) -> None:
    manifest = make_manifest({"baseline": None, "spec": {"type": "ngram-simple"}}, prompts=2, blocks=2)
    judged = verdict_on(both(make_record), make_run, manifest=manifest)
    assert (judged.verdict, judged.counts) == ("undetermined", {"identical": 1, "undetermined": 1})


def test_a_whole_arm_without_records_is_undetermined(make_record: Any, make_run: Any, make_manifest: Any) -> None:
    manifest = make_manifest({"baseline": None, "spec": {"type": "ngram-simple"}}, prompts=1, blocks=1)
    analysis = analyse_run(make_run([make_record()], manifest=manifest))
    assert analysis.losslessness[0].verdict == "undetermined"
    assert analysis.verdicts[0].speed == "unknown"


def test_no_records_at_all_is_undetermined(make_run: Any, make_manifest: Any) -> None:
    manifest = make_manifest({"baseline": None, "spec": {"type": "ngram-simple"}}, prompts=1, blocks=1)
    assert verdict_on([], make_run, manifest=manifest).verdict == "undetermined"


def test_a_damaged_line_without_a_manifest_may_have_been_anyones(make_record: Any, make_run: Any) -> None:
    judged = verdict_on(both(make_record), make_run, damaged=["records.jsonl:5 is cut off."])
    assert judged.verdict == "undetermined"
    assert judged.reasons == (because("undetermined", prompts=1, lost_lines=1),)


def test_without_ids_on_both_sides_the_text_decides_and_says_so(make_record: Any, make_run: Any) -> None:
    gone = {"token_ids": None, "token_sha": None}
    records = [make_record("baseline", **gone), make_record("spec", **gone)]
    judged = verdict_on(records, make_run)
    assert judged.verdict == "identical"
    assert judged.reasons[0].values["without_ids"] == 1 and codes(only(judged)) == ["equal-texts"]
    assert only(judged).tokens_equal is None
    changed = [records[0], make_record("spec", text="def add(a, b): pass", **gone)]
    divergence = only(verdict_on(changed, make_run)).divergence
    assert divergence is not None and (divergence.index, divergence.unit) == (15, "character")


def test_an_empty_answer_of_the_arm_is_degenerate_and_not_lossless(make_record: Any, make_run: Any) -> None:
    judged = verdict_on(both(make_record, text="", ids=[2]), make_run)
    assert (judged.verdict, judged.counts) == ("undetermined", {"degenerate": 1})
    assert only(judged).reasons[0] == because("degenerate", fault="is empty")


def test_equal_answers_are_identical_also_where_the_target_itself_is_broken(make_record: Any, make_run: Any) -> None:
    loop = {"text": "la " * 40, "ids": [5] * 40}
    records = [make_record("baseline", **loop), make_record("spec", **loop)]
    judged = verdict_on(records, make_run)
    assert (judged.verdict, judged.counts) == ("identical", {"identical": 1})
    assert codes(only(judged)) == ["equal", "degenerate-alike"]
    assert judged.reasons[0].values["degenerate"] == 1


@pytest.mark.parametrize("seed", range(20))
def test_the_divergence_is_the_first_difference(make_record: Any, seed: int) -> None:
    rng = random.Random(seed)
    size = rng.randrange(1, 200)
    ids = [rng.randrange(50) for _ in range(size)]
    index = rng.randrange(size)
    changed = [*ids[:index], ids[index] + 1, *(rng.randrange(50) for _ in range(rng.randrange(5)))]
    divergence = find_divergence(make_record(ids=ids), make_record(ids=changed, text="é" * index))
    assert divergence is not None
    assert (divergence.index, divergence.baseline_token, divergence.arm_token) == (index, ids[index], ids[index] + 1)
    assert len(divergence.agreed_text) <= AGREED
    assert common_length(ids, changed) == index == next(i for i, b in enumerate(changed) if ids[i] != b)


def test_an_answer_that_stops_early_divergences_at_its_end(make_record: Any) -> None:
    divergence = find_divergence(make_record(ids=[1, 2, 3], text="abc"), make_record(ids=[1, 2], text="ab"))
    assert divergence is not None
    assert (divergence.index, divergence.baseline_token, divergence.arm_token, divergence.arm_text) == (2, 3, None, "")


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_records_changes_no_comparison(make_record: Any, make_run: Any, seed: int) -> None:
    rng = random.Random(seed)
    records = [
        make_record(arm, index, block=block, ids=rng.choice([None, OTHER]))
        for arm in ("baseline", "spec", "other")
        for block in range(3)
        for index in range(4)
        if rng.random() < 0.9
    ]
    shuffled = rng.sample(records, len(records))
    assert analyse_run(make_run(shuffled)).losslessness == analyse_run(make_run(records)).losslessness


def test_the_reason_names_what_could_not_be_determined(make_record: Any, make_run: Any) -> None:
    records = [make_record("baseline", i) for i in range(3)]
    records += [make_record("spec", 0), make_record("spec", 1, ids=OTHER, text="def sub")]
    judged = verdict_on(records, make_run)
    assert (judged.verdict, codes(judged)) == ("undetermined", ["differing", "not-audited"])
    assert [judged.reasons[0].values[name] for name in ("differing", "prompts", "undetermined")] == [1, 3, 1]
    judged = verdict_on([comparison for comparison in records if comparison.prompt_idx != 1], make_run)
    assert judged.reason == ("1 of 2 prompts could not be determined (code/2: The record of block 1, spec is missing).")


@pytest.mark.parametrize("evidence", ["recipe", "counters"])
def test_nothing_is_lossless_against_a_baseline_that_speculates(
    make_record: Any, make_run: Any, make_manifest: Any, evidence: str
) -> None:
    arms = {"spec_a": {"type": "ngram-simple"}, "spec_b": {"type": "ngram-simple"}}
    drafted = {"draft_n": 4, "draft_n_accepted": 2} if evidence == "counters" else {}
    records = [make_record(arm, **drafted) for arm in arms]
    manifest = make_manifest(arms, 1, 1, baseline="spec_a") if evidence == "recipe" else None
    analysis = analyse_run(make_run(records, manifest), baseline="spec_a")
    judged = analysis.losslessness[0]
    assert (judged.verdict, judged.counts) == ("undetermined", {"identical": 1})
    assert codes(judged) == ["baseline-speculates"]
    assert "baseline-speculates" in {comparison.id for comparison in analysis.warnings}


@pytest.mark.parametrize(("drafted", "chance"), [(4, 1 - 0.5**2), (0, 0.0), (None, 1 - 0.95**2)])
def test_the_power_of_an_identical_arm_counts_the_answers_to_which_it_drafted(
    make_record: Any, make_run: Any, make_manifest: Any, drafted: int | None, chance: float
) -> None:
    """Two near-ties, at each of which a draft proposes another token half the time: none where nothing was drafted."""
    rejected = {} if drafted is None else {"draft_n": drafted, "draft_n_accepted": 0, "rounds": drafted // 4}
    ids = [1, 2] if drafted else [*range(100, 111)]
    records = [make_record("baseline", ids=ids), make_record("spec", ids=ids, **rejected)]
    run = make_run(records, make_manifest({"baseline": None, "spec": {"type": "draft-simple", "max": 4}}, 1, 1))
    record = records[0]
    scored = ScoredAnswer(task=record.task, prompt_idx=record.prompt_idx, prompt_sha=record.prompt_sha,
                          token_sha=record.token_sha, margins=[0.1, 0.2, 5.0])  # fmt: skip
    evidence = Evidence(scores([]).model_copy(update={"answers": [scored]}))
    frame = make_frame(run.records, run.manifest, "baseline")
    judged = judge_arm(frame, find_answers(frame), 1, evidence=evidence)
    assert judged.power is not None
    assert judged.power.chance == pytest.approx(chance)
