"""`schedule: interleaved`: whose turn it is, and that a failing engine costs its own cell only."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchctl.data.store import open_run
from benchctl.data.writer import RunWriter
from benchctl.engines.base import Completion, Launch
from benchctl.errors import EngineError
from benchctl.measurement.plan import make_plan, turns
from benchctl.measurement.progress import RunProgress
from benchctl.measurement.runner import Runner
from benchctl.prompts.suite import PromptItem
from benchctl.recipes.schema import Recipe
from tests.measurement.toy_engine import ToyEngine, answer


@pytest.fixture
def interleaved(recipe: Recipe) -> Recipe:
    return recipe.model_copy(update={"schedule": "interleaved", "blocks": 1})


def execute(engine: ToyEngine, recipe: Recipe, prompts: list[PromptItem], writer: RunWriter) -> None:
    launches = {arm.name: Launch(argv=("toy", arm.name), env={}) for arm in recipe.arms}
    Runner(recipe, engine, launches, writer).run(make_plan(recipe, prompts), RunProgress())


def test_each_prompt_goes_round_the_arms_and_begins_one_later(interleaved: Recipe, prompts: list[PromptItem]) -> None:
    cells = make_plan(interleaved, prompts)
    turns_taken = [(cells[index].arm.name, item.prompt_idx, order) for index, item, order in turns(cells)]
    assert turns_taken == [("baseline", 0, 0), ("spec", 0, 1), ("spec", 1, 0), ("baseline", 1, 1)]


def test_a_resumed_cell_answers_only_what_it_lacks(interleaved: Recipe, prompts: list[PromptItem]) -> None:
    cells = make_plan(interleaved, prompts, done={(0, "spec", "code", 0)})
    order = [(cells[index].arm.name, item.prompt_idx) for index, item, _ in turns(cells)]
    assert order == [("baseline", 0), ("spec", 1), ("baseline", 1)]


def test_all_engines_are_up_while_prompts_alternate(
    interleaved: Recipe, prompts: list[PromptItem], writer: RunWriter, folder: Path
) -> None:
    engine = ToyEngine(answers=lambda arm, number: answer(drafted=None if arm == "baseline" else 10))
    execute(engine, interleaved, prompts, writer)
    assert engine.steps == [
        *["baseline: start", "baseline: attest(None)", "baseline: ask"],  # the warm-up
        *["spec: start", "spec: attest(None)", "spec: ask"],
        *["baseline: ask", "spec: ask", "spec: ask", "baseline: ask"],
        *["baseline: attest(None)", "baseline: stop", "spec: attest(30)", "spec: stop"],
    ]
    measured = [record for record in open_run(folder).records if record.phase == "measure"]
    assert [(r.label, r.prompt_idx, r.order) for r in measured] == [
        ("baseline", 0, 0),
        ("spec", 0, 1),
        ("spec", 1, 0),
        ("baseline", 1, 1),
    ]


@pytest.mark.parametrize("fault", ["start", "answer"])
def test_a_failing_engine_is_stopped_at_once_and_the_others_go_on(
    fault: str, interleaved: Recipe, prompts: list[PromptItem], writer: RunWriter, folder: Path
) -> None:
    def answers(arm: str, number: int) -> Completion:
        if fault == "answer" and (arm, number) == ("baseline", 2):
            raise EngineError("It died.", kind="crash")
        return answer()

    dead = {"spec": EngineError("It died.", kind="launch")} if fault == "start" else {}
    failing, healthy = ("spec", "baseline") if fault == "start" else ("baseline", "spec")
    engine = ToyEngine(answers=answers, start_failures=dead)
    execute(engine, interleaved, prompts, writer)
    run = open_run(folder)
    assert run.manifest is not None
    assert [(cell.arm, cell.status) for cell in run.manifest.cells] == [(failing, "failed"), (healthy, "finished")]
    assert [r.label for r in run.records if r.phase == "measure" and r.error is None] == [healthy, healthy]
    if fault == "answer":
        assert engine.steps.index("baseline: stop") < engine.steps.index("spec: stop") - 2, "not kept up until the end"


def test_an_interrupt_stops_every_engine(
    interleaved: Recipe, prompts: list[PromptItem], writer: RunWriter, folder: Path
) -> None:
    def answers(arm: str, number: int) -> Completion:
        if arm == "spec" and number == 3:
            raise KeyboardInterrupt
        return answer()

    engine = ToyEngine(answers=answers)
    with pytest.raises(KeyboardInterrupt):
        execute(engine, interleaved, prompts, writer)
    assert {"baseline: stop", "spec: stop"} <= set(engine.steps)
    run = open_run(folder)
    assert run.manifest is not None
    assert [cell.status for cell in run.manifest.cells] == ["interrupted", "interrupted"]
    remaining = make_plan(interleaved, prompts, {r.key for r in run.records if r.phase == "measure"})
    assert sum(len(cell.prompts) for cell in remaining) == 2, "what was answered is kept"
