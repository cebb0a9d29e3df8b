from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchctl.data.cell import Cell, CellStatus
from benchctl.data.manifest import ArmIdentity, Manifest
from benchctl.data.record import SCHEMA_VERSION, Record
from benchctl.data.store import RunData
from benchctl.errors import UsageError
from benchctl.measurement.plan import (
    EarlierProcesses,
    arms_of_block,
    earlier_processes,
    groups_of,
    idle_slots,
    keep_only,
    make_plan,
    measured,
    mirrored,
    rotated,
    unclosed,
    with_blocks,
)
from benchctl.prompts.suite import PromptItem
from benchctl.recipes.schema import Arm, AutoBlocks, Recipe


def test_each_block_begins_one_arm_later() -> None:
    arms = [Arm(name=name) for name in "abc"]
    assert ["".join(arm.name for arm in rotated(arms, block)) for block in range(4)] == ["abc", "bca", "cab", "abc"]


@pytest.mark.parametrize("count", range(2, 9))
def test_an_arm_stands_at_every_place_and_follows_every_other_equally_often(count: int) -> None:
    blocks = [mirrored(range(count), block) for block in range(count if count % 2 == 0 else 2 * count)]
    for column in zip(*blocks, strict=True):
        assert sorted(column) == sorted([*range(count)] * (len(blocks) // count))
    follows = Counter(pair for block in blocks for pair in pairwise(block))
    assert len(follows) == count * (count - 1)
    assert len(set(follows.values())) == 1
    assert mirrored([7], 3) == [7]


@pytest.mark.parametrize("count", range(2, 12))
def test_every_second_block_is_the_one_before_it_backwards(count: int) -> None:
    for pair in range(2 * count):
        assert mirrored(range(count), 2 * pair + 1) == mirrored(range(count), 2 * pair)[::-1]


@pytest.mark.parametrize("count", range(3, 12))
def test_in_five_blocks_an_arm_seldom_follows_the_same_one(count: int) -> None:
    """Of four arms and a baseline one followed the same arm in three of five blocks, and was slow as often as that."""
    order = [arm for block in range(5) for arm in mirrored(range(count), block)]
    follows = Counter(pair for pair in pairwise(order) if pair[0] != pair[1])
    assert max(follows.values()) <= (3 if count == 4 else 2)


def test_prompts_begin_one_later_in_every_block(recipe: Recipe, prompts: list[PromptItem]) -> None:
    plan = make_plan(recipe, prompts, blocks=range(3))
    assert [cell.prompts[0].prompt_idx for cell in plan if cell.arm.name == "spec"] == [0, 1, 0]


def test_the_plan_is_blocks_times_arms_times_prompts(recipe: Recipe, prompts: list[PromptItem]) -> None:
    plan = make_plan(recipe, prompts)
    assert [(cell.block, cell.order, cell.arm.name) for cell in plan] == [
        (0, 0, "baseline"),
        (0, 1, "spec"),
        (1, 0, "spec"),
        (1, 1, "baseline"),
    ]
    assert [[item.prompt_idx for item in cell.prompts] for cell in plan] == [[0, 1], [0, 1], [1, 0], [1, 0]]


def test_what_is_done_is_not_planned_again(recipe: Recipe, prompts: list[PromptItem]) -> None:
    done = {(0, "baseline", "code", 0), (0, "baseline", "code", 1), (1, "spec", "code", 0)}
    plan = make_plan(recipe, prompts, done)
    assert [(cell.block, cell.arm.name, len(cell.prompts)) for cell in plan] == [
        (0, "spec", 2),
        (1, "spec", 1),
        (1, "baseline", 2),
    ]
    assert plan[0].order == 1, "an arm keeps its place in the rotation when others are done"


@pytest.mark.parametrize("status", ["finished", "interrupted", "failed", None])
@pytest.mark.parametrize("answers", [1, 2])
def test_every_good_answer_is_kept_and_a_cell_without_its_last_attestation_is_opened_again(
    recipe: Recipe, prompts: list[PromptItem], manifest: Manifest, status: CellStatus | None, answers: int
) -> None:
    if status is not None:
        manifest.cells = [Cell(block=0, arm="spec", order=1, status=status, started_at="", wall_s=1.0, log="")]
    records = [
        Record(label="spec", task="code", prompt_idx=index, rep=0, schema_version=SCHEMA_VERSION, draft_n=3)
        for index in range(answers)
    ]
    run = RunData(Path(), manifest, records, [])
    done = measured(run, prompts=2)
    assert len(done) == answers
    assert earlier_processes(records) == {(0, "spec"): EarlierProcesses(attempt=0, drafted=3 * answers)}
    planned = make_plan(recipe, prompts, done, [0], unclosed=unclosed(run, done))
    counts = [len(cell.prompts) for cell in planned if cell.arm.name == "spec"]
    assert counts == ([2 - answers] if answers < 2 or status != "finished" else [])


@pytest.mark.parametrize(("attempts", "kept"), [([0], 0), ([0, 0], 2), ([0, 1], 0)])
@pytest.mark.parametrize("condition", [{"concurrency": 4}, {"rate": 5.0}])
def test_a_cell_of_overlapping_requests_is_measured_as_a_whole(
    manifest: Manifest, condition: dict[str, Any], attempts: list[int], kept: int
) -> None:
    manifest.arms = [ArmIdentity(name="spec", baseline=False, speculation=None, argv=[], env=[], **condition)]
    manifest.cells = [Cell(block=0, arm="spec", order=1, status="finished", started_at="", wall_s=1.0, log="")]
    records = [
        Record(label="spec", task="code", prompt_idx=index, rep=0, schema_version=SCHEMA_VERSION, attempt=attempt)
        for index, attempt in enumerate(attempts)
    ]
    assert len(measured(RunData(Path(), manifest, records, []), prompts=2)) == kept


def test_only_keeps_the_baseline(recipe: Recipe) -> None:
    assert [arm.name for arm in keep_only(recipe, ["spec"]).arms] == ["baseline", "spec"]
    with pytest.raises(UsageError, match="no arm 'spek'") as caught:
        keep_only(recipe, ["spek"])
    assert "baseline, spec" in (caught.value.fix or "")


@pytest.fixture
def swept(recipe: Recipe) -> Recipe:
    """Both arms with one and with four requests in flight."""
    arms = [
        arm.model_copy(update={"name": f"{arm.name}-c{count}", "of": arm.name, "concurrency": count})
        for count in (1, 4)
        for arm in recipe.arms
    ]
    return recipe.model_copy(update={"arms": arms, "baseline": "baseline-c1"})


@pytest.mark.parametrize(
    ("names", "kept", "baseline"),
    [
        (["spec"], ["baseline-c1", "spec-c1", "baseline-c4", "spec-c4"], "baseline-c1"),
        (["spec-c4"], ["baseline-c4", "spec-c4"], "baseline-c4"),
        (["baseline"], ["baseline-c1", "baseline-c4"], "baseline-c1"),
    ],
)
def test_only_takes_an_arm_under_all_its_conditions_or_under_one(
    swept: Recipe, names: list[str], kept: list[str], baseline: str
) -> None:
    chosen = keep_only(swept, names)
    assert [arm.name for arm in chosen.arms] == kept
    assert chosen.baseline == baseline
    with pytest.raises(UsageError) as caught:
        keep_only(swept, ["spec-c2"])
    assert caught.value.fix == "The arms are: baseline, baseline-c1, spec, spec-c1, baseline-c4, spec-c4."


def test_arms_of_a_condition_stay_neighbours_in_every_block(swept: Recipe) -> None:
    assert [" ".join(arm.name for arm in arms_of_block(swept, block)) for block in range(3)] == [
        "baseline-c1 spec-c1 baseline-c4 spec-c4",
        "spec-c4 baseline-c4 spec-c1 baseline-c1",
        "baseline-c1 spec-c1 baseline-c4 spec-c4",
    ]


def test_too_few_prompts_for_a_concurrency_are_said(swept: Recipe) -> None:
    assert idle_slots(swept, 8) == []
    (sentence,) = idle_slots(swept, 7)
    assert sentence.startswith("Concurrency 4: with 7 prompts there are less than 4 requests in flight")
    assert idle_slots(swept.model_copy(update={"arms": [Arm(name="a", concurrency=4, rate=1.0)]}), 1) == []


def test_blocks_of_the_command_line(recipe: Recipe) -> None:
    assert with_blocks(recipe, "7").blocks == 7
    assert with_blocks(recipe, "auto").blocks == AutoBlocks()
    configured = recipe.model_copy(update={"blocks": AutoBlocks(max=9)})
    assert with_blocks(configured, "auto").blocks == AutoBlocks(max=9), "the recipe's own limits"


@pytest.mark.parametrize("text", ["0", "1001", "-3", "three", "2.5", "9" * 5000, "²", "\x1b[2J"])
def test_blocks_of_the_command_line_are_checked(recipe: Recipe, text: str) -> None:
    with pytest.raises(UsageError, match=r"1 to 1000 blocks") as caught:
        with_blocks(recipe, text)
    assert "\x1b" not in str(caught.value)


def test_a_group_of_a_block_is_a_baseline_and_its_arms(prompts: list[PromptItem]) -> None:
    models = {"target": {"source": "t.gguf"}, "draft": {"source": "d.gguf"}}
    setups = [
        {"name": f"d{draft}-kv{kv}", "group": f"kv{kv}", "axes": {}, "engine": {"kind": "llama.cpp"}, "models": models}
        for kv in (1, 2)
        for draft in (1, 2)
    ]
    spec = {"type": "draft-simple", "max": 4}
    arms = [
        arm
        for kv in (1, 2)
        for arm in (
            {"name": f"base{kv}", "of": "base", "setup": f"d1-kv{kv}", "group": f"kv{kv}"},
            {"name": f"one{kv}", "of": "spec", "setup": f"d1-kv{kv}", "group": f"kv{kv}", "speculation": spec},
            {"name": f"two{kv}", "of": "spec", "setup": f"d2-kv{kv}", "group": f"kv{kv}", "speculation": spec},
        )
    ]
    recipe = Recipe.model_validate(
        {"name": "x", "models": models, "prompts": {"suite": "s"}, "baseline": "base1", "blocks": 2}
        | {"arms": arms, "setups": setups}
    )
    groups = groups_of(make_plan(recipe, prompts))
    assert [(group.block, group.key.setups, len(group.cells)) for group in groups] == [
        *((0, "kv1", 3), (0, "kv2", 3), (1, "kv2", 3), (1, "kv1", 3)),
    ]
    compared = recipe.compared
    for group in groups:
        assert [cell.arm.of for cell in group.cells].count("base") == 1
        assert {compared[cell.arm.name].baseline for cell in group.cells} == {f"base{(group.key.setups or '')[-1]}"}
    assert groups[0].name == "block 1, kv1"
    assert set(groups[0].setups) == {"d1-kv1", "d2-kv1"}
    half = keep_only(recipe, ["two2"])
    assert [arm.name for arm in half.arms] == ["base2", "two2"]
    assert [setup.name for setup in half.setups] == ["d1-kv2", "d2-kv2"]
