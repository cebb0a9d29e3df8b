"""How long a plan will take, learnt from an earlier run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchctl.data.cell import Cell
from benchctl.data.record import SCHEMA_VERSION, Record
from benchctl.data.writer import RunWriter
from benchctl.measure.estimate import estimate_run
from benchctl.measure.plan import make_plan
from benchctl.prompts.suite import PromptItem
from benchctl.recipes.schema import Recipe

ENDED = Cell(block=0, arm="baseline", order=0, status="finished", started_at="", wall_s=6, startup_s=1.0, log="")


@pytest.mark.parametrize(("concurrency", "seconds"), [(1, 2 * (1 + 2 * 4)), (2, 2 * (1 + 5))])
def test_requests_in_flight_together_are_not_added_up(
    concurrency: int,
    seconds: float,
    recipe: Recipe,
    prompts: list[PromptItem],
    writer: RunWriter,
    folder: Path,
) -> None:
    for number, sent_s in enumerate((0.0, 1.0)):  # both take 4 s, and together 5 s
        record = Record(label="baseline", task="code", prompt_idx=number, rep=0, schema_version=SCHEMA_VERSION)
        writer.append(record.changed(sent_s=sent_s, late_s=0.0, e2e_s=4.0))
    writer.add_cell(ENDED)
    arm = recipe.arms[0].model_copy(update={"concurrency": concurrency})
    plan = make_plan(recipe.model_copy(update={"arms": [arm]}), prompts)
    assert estimate_run(plan, 8, folder.parent).seconds == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("tokens", "finish_reason", "max_tokens", "seconds"),
    [
        (8, "length", 16, 8.0),
        (8, "length", 4, 2.0),
        (6, "stop", 16, 4.0),  # it ended by itself, and would again
        (6, "stop", 3, 2.0),
    ],
)
def test_another_limit_of_tokens_takes_another_time(
    tokens: int,
    finish_reason: Any,
    max_tokens: int,
    seconds: float,
    recipe: Recipe,
    prompts: list[PromptItem],
    writer: RunWriter,
    folder: Path,
) -> None:
    for number in range(2):
        record = Record(label="baseline", task="code", prompt_idx=number, rep=0, schema_version=SCHEMA_VERSION)
        writer.append(record.changed(e2e_s=4.0, n_predicted=tokens, finish_reason=finish_reason))
    writer.add_cell(ENDED)
    plan = make_plan(recipe.model_copy(update={"arms": recipe.arms[:1]}), prompts)
    assert estimate_run(plan, max_tokens, folder.parent).seconds == pytest.approx(2 * (1 + 2 * seconds))
