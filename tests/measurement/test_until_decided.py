"""`blocks: auto` ends when every arm is decided: who drops out, what the rest runs in, what a report says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchctl.data.digests import canonical_sha256
from benchctl.data.manifest import ArmIdentity, PromptIdentity
from benchctl.data.store import RunData, open_run
from benchctl.data.writer import RunWriter
from benchctl.engines.base import Launch
from benchctl.lossless.judge.run import analyse_run
from benchctl.measurement.plan import arms_of_block, make_plan, measured
from benchctl.measurement.progress import RunProgress
from benchctl.measurement.runner import Runner
from benchctl.measurement.schedule import blocks_as_needed
from benchctl.prompts.suite import PromptItem
from benchctl.recipes.schema import AutoBlocks, Recipe
from tests.measurement.toy_engine import ToyEngine, answer

SPEEDS = {"baseline": 1.0, "slow": 0.5, "fast": 1.4, "fastest": 1.44, "equal": 1.0}
"""A difference of 3 % between the fastest is within 5 %, and takes a few blocks to show."""


def measure(
    recipe: Recipe, prompts: list[PromptItem], writer: RunWriter, rule: AutoBlocks, noise: float = 0.005
) -> RunData:
    """Measure by a rule, from wherever the run folder stands; every process draws how fast it is."""
    rng = np.random.default_rng(len(open_run(writer.folder).records))
    paces: dict[tuple[str, int], float] = {}
    starts = {"count": 0}

    def answers(arm: str, number: int) -> Any:
        if number == 1:
            starts["count"] += 1
            paces[arm, 0] = float(np.exp(noise * rng.standard_normal()))
        drafts = None if arm == "baseline" else 4
        return replace(answer(drafted=drafts), decode_s=0.7 / SPEEDS[arm] * paces[arm, 0])

    launches = {arm.name: Launch(argv=("toy", arm.name), env={}) for arm in recipe.arms}
    manifest = writer.manifest
    runner = Runner(recipe, ToyEngine(answers=answers), launches, writer)
    prepared: Any = SimpleNamespace(recipe=recipe, prompts=prompts)
    done = measured(open_run(writer.folder), len(prompts))
    sure = range(max(rule.first_look, manifest.blocks))
    plan = make_plan(recipe, prompts, done, sure, ended=manifest.ended())
    for cells in blocks_as_needed(rule, prepared, writer, plan, RunProgress()):
        runner.run(cells, RunProgress())
    manifest.status = "finished"
    writer.save()
    return open_run(writer.folder, check=False)  # the toy's times are made up


@pytest.fixture
def decided_recipe(recipe: Recipe, writer: RunWriter, prompts: list[PromptItem]) -> Recipe:
    arms = [recipe.arms[0], *(recipe.arms[1].model_copy(update={"name": name}) for name in list(SPEEDS)[1:])]
    recipe = recipe.model_copy(update={"arms": arms, "blocks": AutoBlocks()})
    manifest = writer.manifest
    manifest.recipe, manifest.blocks = recipe.model_dump(mode="json"), 0
    manifest.engine.binary = manifest.target.path = None
    manifest.recipe_sha256 = canonical_sha256(manifest.recipe)
    manifest.arms = [
        ArmIdentity(
            name=arm.name,
            baseline=arm.name == "baseline",
            argv=[],
            env=[],
            speculation=None if arm.speculation is None else arm.speculation.model_dump(mode="json"),
        )
        for arm in arms
    ]
    manifest.prompts = [PromptIdentity(task=item.task, prompt_idx=item.prompt_idx, sha256="0") for item in prompts]
    return recipe


def test_decided_arms_drop_out_and_the_others_keep_their_order(
    decided_recipe: Recipe, prompts: list[PromptItem], writer: RunWriter
) -> None:
    run = measure(decided_recipe, prompts, writer, AutoBlocks())
    manifest = run.manifest
    assert manifest is not None and manifest.stopped is not None
    assert manifest.stopped.reason == "decided"
    speeds = {name: (row.speed, row.blocks) for name, row in manifest.decided.items()}
    assert speeds["slow"] == ("slower", 3)
    assert {name: speed for name, (speed, _) in speeds.items()} == {
        "slow": "slower",
        "fast": "faster",
        "fastest": "faster",
        "equal": "within",
    }
    for block in range(manifest.blocks):
        ran = list(dict.fromkeys(record.label for record in run.records if record.block == block))
        remaining = [
            arm.name
            for arm in arms_of_block(decided_recipe, block)
            if arm.name == "baseline" or block < speeds[arm.name][1]
        ]
        assert ran == remaining


def test_a_report_judges_each_arm_by_the_blocks_that_it_has(
    decided_recipe: Recipe, prompts: list[PromptItem], writer: RunWriter
) -> None:
    run = measure(decided_recipe, prompts, writer, AutoBlocks())
    assert run.manifest is not None
    analysis = analyse_run(run)
    rows = {row.arm: row for row in analysis.speedups if row.task == "all"}
    for name, decision in run.manifest.decided.items():
        assert len(rows[name].by_block) == decision.blocks and rows[name].pairs_missing == 0
        assert next(row for row in analysis.verdicts if row.arm == name).speed == decision.speed, "as it was decided"
    assert all(row.verdict == "identical" for row in analysis.losslessness), "later blocks are not missing answers"
    assert not {"missing-records"} & {warning.id for warning in analysis.warnings}
    assert analysis.stopping is not None
    slow = analysis.stopping.decided["slow"]
    assert (slow.speed, slow.blocks, analysis.stopping.reason) == ("slower", 3, "decided")


def test_what_is_open_at_the_limit_is_named(
    decided_recipe: Recipe, prompts: list[PromptItem], writer: RunWriter, folder: Path
) -> None:
    rule = AutoBlocks(max=4)
    run = measure(decided_recipe, prompts, writer, rule, noise=0.2)
    assert run.manifest is not None and run.manifest.stopped is not None
    assert run.manifest.stopped.reason == "maximum" and run.manifest.blocks == 4
    stopping = analyse_run(run).stopping
    assert stopping is not None and stopping.half_widths.keys() - stopping.decided.keys()
    before = run.records
    second_run = measure(decided_recipe, prompts, writer, rule, noise=0.2)
    assert second_run.records == before, "a resumed run measures nothing of an arm that was dropped, or after its end"


def test_the_time_goes_to_the_open_arms(decided_recipe: Recipe, prompts: list[PromptItem], writer: RunWriter) -> None:
    run = measure(decided_recipe, prompts, writer, AutoBlocks(max=12), noise=0.03)
    cells = {arm: len({record.block for record in run.records if record.label == arm}) for arm in SPEEDS}
    assert cells["slow"] == 3 < cells["equal"] <= cells["baseline"]
