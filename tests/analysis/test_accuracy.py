"""Right answers beside the baseline's: counted over prompts, tested in pairs, told what so many prompts can show."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from scipy.stats import binomtest

from benchctl.analysis.accuracy import LEVEL, POWER, Accuracy, detectable_loss, find_accuracy
from benchctl.data.manifest import Manifest, PromptIdentity, SetupIdentity
from benchctl.data.record import RecordError
from benchctl.lossless.judge.run import analyse_run
from benchctl.prompts.answers import Answer
from tests.analysis.conftest import MakeRecord, MakeRun

MakeManifest = Callable[..., Manifest]


@pytest.fixture
def accuracy_of(
    make_record: MakeRecord, make_run: MakeRun, make_manifest: MakeManifest
) -> Callable[..., Accuracy | None]:
    """Analyse texts by (arm, block), a character a prompt: `1` gives the right answer, `x` failed, `c` was cut off."""

    def find(texts: dict[tuple[str, int], str], *, answered: bool = True, **manifest: Any) -> Accuracy | None:
        arms: dict[str, dict[str, Any] | None] = {arm: None if arm.startswith("base") else {"type": "draft-simple"}
                                                  for arm, _ in texts}  # fmt: skip
        count = max(map(len, texts.values()))
        answer = Answer(kind="numeric", value="1") if answered else None
        prompts = [PromptIdentity(task="code", prompt_idx=index, sha256="0", answer=answer) for index in range(count)]
        failed = RecordError(kind="timeout", message="")
        records = [
            make_record(
                arm,
                index,
                block=block,
                text="1" if letter == "c" else letter,
                finish_reason="length" if letter == "c" else "stop",
                error=failed if letter == "x" else None,
            )
            for (arm, block), text in texts.items()
            for index, letter in enumerate(text)
        ]
        run = make_run(records, make_manifest(arms, count, 2).model_copy(update={"prompts": prompts, **manifest}))
        assert run.manifest is not None
        return find_accuracy(run, run.manifest.compared())

    return find


def test_pairs_are_prompts_in_the_first_block_that_has_both(accuracy_of: Callable[..., Accuracy]) -> None:
    result = accuracy_of({("baseline", 0): "1100x", ("baseline", 1): "11111", ("arm", 0): "x0111", ("arm", 1): "00000"})
    baseline, arm = result.arms
    # The baseline: 1100 of its first block, the last of its second. The arm's pairs: 0 of the second block, then 0111.
    assert (baseline.arm, baseline.baseline, baseline.correct, baseline.prompts) == ("baseline", None, 3, 5)
    assert (arm.prompts, arm.correct, arm.baseline_correct) == (5, 2, 3)
    assert (arm.lost, arm.gained) == (["code/0", "code/1", "code/4"], ["code/2", "code/3"])
    assert arm.p == pytest.approx(binomtest(3, 5).pvalue)


def test_a_loss_beyond_chance_is_told(accuracy_of: Callable[..., Accuracy]) -> None:
    rows = accuracy_of({("baseline", 0): "1" * 12, ("arm", 0): "0" * 8 + "1" * 4, ("same", 0): "1" * 12}).arms
    assert [(row.arm, len(row.lost), row.worse) for row in rows] == [
        ("baseline", 0, False),
        ("arm", 8, True),
        ("same", 0, False),
    ]
    assert [rows[1].p, rows[1].p_adjusted] == pytest.approx([2 * 0.5**8, 4 * 0.5**8]), "two comparisons"
    assert (rows[2].p, rows[2].p_adjusted) == (1.0, 1.0)


def test_an_answer_that_was_cut_off_is_counted(accuracy_of: Callable[..., Accuracy]) -> None:
    arm = accuracy_of({("baseline", 0): "111", ("arm", 0): "11c"}).arms[1]
    assert (arm.correct, arm.cut) == (2, 1)


def test_a_target_that_differs_is_compared_with_the_first(
    accuracy_of: Callable[..., Accuracy], make_manifest: MakeManifest
) -> None:
    bare = make_manifest({"baseline": None}, 1, 1)
    arms = [
        bare.arms[0].model_copy(update={"name": f"{name}{kv}", "of": name, "setup": f"s{kv}", "group": f"g{kv}",
                                        "speculation": None if name == "baseline" else {"type": "ngram-simple"}})
        for kv, name in product(("_f16", "_q4"), ("baseline", "ngram"))
    ]  # fmt: skip
    setups = [
        SetupIdentity(name=f"s{kv}", group=f"g{kv}", axes={}, engine=bare.engine, target=bare.target, draft=None)
        for kv in ("_f16", "_q4")
    ]
    texts = {(arm.name, 0): text for arm, text in zip(arms, ("1111", "1110", "1100", "1000"), strict=True)}
    rows = accuracy_of(texts, arms=arms, setups=setups, baseline="baseline_f16").arms
    assert [(row.arm, row.baseline, len(row.lost)) for row in rows] == [
        ("baseline_f16", None, 0),
        ("ngram_f16", "baseline_f16", 1),
        ("baseline_q4", "baseline_f16", 2),
        ("ngram_q4", "baseline_q4", 1),
    ]


def test_without_answers_there_is_nothing(accuracy_of: Callable[..., Accuracy | None]) -> None:
    assert accuracy_of({("baseline", 0): "11", ("arm", 0): "10"}, answered=False) is None


def test_analysis_json_has_it_only_where_prompts_carry_answers(
    make_record: MakeRecord, make_run: MakeRun, make_manifest: MakeManifest
) -> None:
    manifest = make_manifest({"baseline": None, "arm": {"type": "ngram-simple"}}, 2, 1)
    records = [make_record(arm, index, text="1") for arm in ("baseline", "arm") for index in range(2)]
    assert "accuracy" not in analyse_run(make_run(records, manifest)).model_dump()
    answer = Answer(kind="numeric", value="1")
    judged = [prompt.model_copy(update={"answer": answer}) for prompt in manifest.prompts]
    dumped = analyse_run(make_run(records, manifest.model_copy(update={"prompts": judged}))).model_dump()
    assert [row["correct"] for row in dumped["accuracy"]["arms"]] == [2, 2]


def brute_power(prompts: int, lost: float, gained: float, level: float) -> float:
    """Sum over every outcome: the chance that McNemar's exact test rejects."""
    from scipy.stats import multinomial

    return sum(
        float(multinomial.pmf([b, c, prompts - b - c], prompts, [lost, gained, 1 - lost - gained]))
        for b in range(prompts + 1)
        for c in range(prompts + 1 - b)
        if b > c and binomtest(b, b + c).pvalue <= level
    )


@pytest.mark.parametrize(("prompts", "gained", "claims"), [(24, 0, 1), (24, 2, 1), (30, 1, 3)])
def test_the_loss_that_is_found_in_eight_of_ten_runs(prompts: int, gained: int, claims: int) -> None:
    loss = detectable_loss(prompts, prompts, gained, LEVEL / claims)
    assert loss is not None
    share = gained / prompts
    assert brute_power(prompts, share + loss, share, LEVEL / claims) >= POWER
    assert brute_power(prompts, share + loss - 1 / prompts, share, LEVEL / claims) < POWER


def test_few_prompts_can_show_nothing(accuracy_of: Callable[..., Accuracy]) -> None:
    assert detectable_loss(5, 5, 0, LEVEL) is None
    assert detectable_loss(24, 8, 0, LEVEL) == pytest.approx(8 / 24)
    assert detectable_loss(24, 7, 0, LEVEL) is None, "there are no more to lose"
    few = accuracy_of({("baseline", 0): "11", ("arm", 0): "10"})
    assert few.arms[1].detectable is None
