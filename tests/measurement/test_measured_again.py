"""A cell with a pause is measured again, once; warm-ups go on until two requests take the same time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path

import pytest

from benchctl.data.store import open_run
from benchctl.data.writer import RunWriter
from benchctl.engines.base import Completion, Launch
from benchctl.lossless.judge.run import analyse_run
from benchctl.measurement.plan import earlier_processes, make_plan, measured, unclosed
from benchctl.measurement.progress import RunProgress
from benchctl.measurement.runner import Runner
from benchctl.measurement.schedule import fixed_blocks
from benchctl.prompts.suite import Prompt, PromptItem
from benchctl.recipes.schema import Recipe
from benchctl.words.warnings import seen
from tests.measurement.test_runner import execute
from tests.measurement.toy_engine import ToyEngine, answer

PAUSED = replace(answer(), decode_s=4.7, e2e_s=4.8, engine_decode_s=4.7, burst_gaps_s=[4.05])
USUAL = replace(answer(), burst_gaps_s=[0.1] * 7)


class Processes:
    """Answers by a script of (arm, process, request), each counted from 1."""

    def __init__(self, script: Callable[[str, int, int], Completion]) -> None:
        self.script = script
        self.started: defaultdict[str, int] = defaultdict(int)

    def __call__(self, arm: str, number: int) -> Completion:
        self.started[arm] += number == 1
        return self.script(arm, self.started[arm], number)


def pausing(*processes: int, arm: str = "spec") -> ToyEngine:
    """An engine whose processes of these numbers pause in their third request."""
    return ToyEngine(
        answers=Processes(
            lambda name, process, number: PAUSED if (name, number) == (arm, 3) and process in processes else USUAL
        )
    )


def test_a_cell_that_pauses_is_measured_again_and_its_first_measurement_is_not_used(
    recipe: Recipe, prompts: list[PromptItem], writer: RunWriter, folder: Path
) -> None:
    execute(pausing(1), recipe.model_copy(update={"blocks": 1}), prompts, writer)
    run = open_run(folder)
    assert run.manifest is not None
    assert [(cell.arm, cell.attempt, cell.status, cell.discarded) for cell in run.manifest.cells] == [
        ("baseline", 0, "finished", None),
        ("spec", 0, "finished", "it paused for 4.0 s between two tokens of code/1"),
        ("spec", 1, "finished", None),
    ]
    assert {record.attempt for record in run.records if record.label == "spec" and record.phase == "measure"} == {1}
    assert (folder / "records.jsonl").read_text().count('"label":"spec"') == 2 * 3, "the first measurement is kept"
    warning = next(warning for warning in analyse_run(run).warnings if warning.id == "pause")
    assert seen(warning) == "Block 1 was measured again, since it paused for 4.0 s between two tokens of code/1."


def test_a_cell_that_pauses_again_is_kept_and_named(
    recipe: Recipe, prompts: list[PromptItem], writer: RunWriter, folder: Path
) -> None:
    engine = pausing(1, 2)
    execute(engine, recipe.model_copy(update={"blocks": 1}), prompts, writer)
    assert engine.steps.count("spec: start") == 2
    run = open_run(folder)
    assert {record.attempt for record in run.records if record.label == "spec" and record.phase == "measure"} == {1}
    warning = next(warning for warning in analyse_run(run).warnings if warning.id == "pause")
    assert "Block 1: 4.0 s between two tokens of code/1." in seen(warning)


def test_a_cell_in_which_the_machine_was_suspended_is_measured_again(
    recipe: Recipe, prompts: list[PromptItem], writer: RunWriter, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = chain([100.0, 3700.0], repeat(3700.0))
    monkeypatch.setattr("benchctl.machine.monitor.suspended_s", lambda: next(clock))
    execute(pausing(), recipe.model_copy(update={"blocks": 1, "arms": recipe.arms[:1]}), prompts, writer)
    run = open_run(folder)
    assert run.manifest is not None
    assert [cell.discarded for cell in run.manifest.cells] == ["the machine was suspended for 1 h 0 min", None]
    assert [cell.watch and cell.watch.suspended_s for cell in run.manifest.cells] == [3600.0, 0.0]


SLOW = replace(USUAL, decode_s=1.4, e2e_s=1.5, engine_decode_s=1.4)


@pytest.mark.parametrize("again", [USUAL, SLOW])
def test_a_disturbed_cell_is_measured_again_after_all_blocks_once(
    again: Completion, recipe: Recipe, prompts: list[PromptItem], writer: RunWriter, folder: Path
) -> None:
    recipe = recipe.model_copy(update={"blocks": 5})
    slow = {("baseline", 2): SLOW, ("baseline", 6): again}
    engine = ToyEngine(answers=Processes(lambda arm, process, _: slow.get((arm, process), USUAL)))
    launches = {arm.name: Launch(argv=("toy", arm.name), env={}) for arm in recipe.arms}
    runner, progress = Runner(recipe, engine, launches, writer), RunProgress()
    plan = make_plan(recipe, prompts)
    for cells in fixed_blocks(plan, recipe, prompts, writer, progress):
        runner.run(cells, progress)
    run = open_run(folder)
    assert run.manifest is not None
    assert [(cell.block, cell.arm, cell.attempt) for cell in run.manifest.cells if cell.discarded] == [
        (1, "baseline", 0)
    ]
    assert engine.steps[-1] == "baseline: stop" and engine.steps.count("baseline: start") == 6
    analysis = analyse_run(run)
    assert analysis.speedups[0].blocks == ([1, 2, 3, 4, 5] if again is USUAL else [1, 3, 4, 5])
    evidence = [seen(warning) for warning in analysis.warnings if warning.where == "baseline" and warning.id == "pause"]
    assert evidence == ["Block 2 was measured again, since it ran 50 % slower than the arm's median cell."]
    assert [cells for cells in fixed_blocks([], recipe, prompts, writer, progress) if cells] == []


@pytest.mark.parametrize("broken_off", [False, True])
def test_a_resumed_run_measures_no_cell_a_third_time(
    broken_off: bool, recipe: Recipe, prompts: list[PromptItem], writer: RunWriter, folder: Path
) -> None:
    recipe = recipe.model_copy(update={"blocks": 1})

    def interrupting(arm: str, process: int, number: int) -> Completion:
        if broken_off and (arm, process, number) == ("spec", 2, 2):
            raise KeyboardInterrupt
        return PAUSED if (arm, number) == ("spec", 3) else USUAL

    engine = ToyEngine(answers=Processes(interrupting))
    if broken_off:
        with pytest.raises(KeyboardInterrupt):
            execute(engine, recipe, prompts, writer)
    else:
        execute(engine, recipe, prompts, writer)
    run = open_run(folder)
    done = measured(run, len(prompts))
    plan = make_plan(recipe, prompts, done, unclosed=unclosed(run, done))
    assert [cell.arm.name for cell in plan] == (["spec"] if broken_off else [])
    before = engine.steps.count("spec: start")
    launches = {arm.name: Launch(argv=("toy", arm.name), env={}) for arm in recipe.arms}
    Runner(recipe, engine, launches, writer, earlier=earlier_processes(run.records)).run(plan, RunProgress())
    assert engine.steps.count("spec: start") == before + broken_off


def test_interleaved_cells_are_measured_again_together(
    recipe: Recipe, prompts: list[PromptItem], writer: RunWriter, folder: Path
) -> None:
    execute(pausing(1), recipe.model_copy(update={"blocks": 1, "schedule": "interleaved"}), prompts, writer)
    run = open_run(folder)
    assert run.manifest is not None
    assert [cell.discarded is not None for cell in run.manifest.cells] == [True, True, False, False]
    assert {record.attempt for record in run.records if record.phase == "measure"} == {1}


@pytest.mark.parametrize(
    ("seconds", "requests"),
    [
        ([1.0], 2),
        ([8.5, 0.2], 3),
        ([8.5, 3.0, 0.9, 0.2], 5),
        ([40.0, 35.0, 1.0], 2),  # none is sent once the later ones took 30 s
        ([1.0, 2.0] * 6, 10),
    ],
)
def test_a_warm_up_ends_when_two_requests_take_the_same_time(
    seconds: list[float],
    requests: int,
    recipe: Recipe,
    prompts: list[PromptItem],
    writer: RunWriter,
    folder: Path,
) -> None:
    recipe = recipe.model_copy(update={"blocks": 1, "warmup": None, "arms": recipe.arms[:1]})
    engine = ToyEngine(
        answers=lambda arm, number: replace(USUAL, e2e_s=seconds[min(number, len(seconds)) - 1]),
    )
    execute(engine, recipe, prompts, writer)
    run = open_run(folder)
    assert [record.phase for record in run.records].count("warmup") == requests
    named = any(warning.id == "unsteady" for warning in analyse_run(run).warnings)
    assert named == (seconds[-2:] in ([35.0, 1.0], [1.0, 2.0]))


def scripted(seconds: list[float]) -> ToyEngine:
    """An engine whose requests decode for so long; the last value goes on."""

    def answers(arm: str, number: int) -> Completion:
        decode_s = seconds[min(number, len(seconds)) - 1]
        return replace(answer(), decode_s=decode_s, e2e_s=0.1 + decode_s, engine_decode_s=decode_s)

    return ToyEngine(answers=answers)


SLOW_FIRST = "Block 1: 6 answers decode at 0.9 to 10.0 tok/s, 1 of them over 2 times faster or slower than the median."
SWINGING = "Block 1: 6 answers decode at 15.5 to 166.6 tok/s, 3 of them over 2 times faster or slower than the median."
GPU = [7 / rate for rate in (15.5, 15.5, 15.5, 166.6, 20.4, 20.0, 152.3, 165.1)]
"""Two warm-ups, and the answers of a baseline of transformers on an H100."""


@pytest.mark.parametrize(
    ("seconds", "warm_ups", "evidence"),
    [
        ([0.7], 2, []),
        ([8.5, 3.0, 0.7], 4, []),  # compiled in the warm-up
        ([8.0, 8.0, 8.0, 0.7], 2, [SLOW_FIRST]),  # the first answer was
        (GPU, 2, [SWINGING]),
    ],
)
def test_a_process_that_never_was_steady_is_named(
    seconds: list[float], warm_ups: int, evidence: list[str], recipe: Recipe, writer: RunWriter, folder: Path
) -> None:
    prompts = [PromptItem(task="code", prompt_idx=index, prompt=Prompt(prompt=f"p{index}")) for index in range(6)]
    recipe = recipe.model_copy(update={"blocks": 1, "warmup": None, "arms": recipe.arms[:1]})
    execute(scripted(seconds), recipe, prompts, writer)
    run = open_run(folder)
    assert [record.phase for record in run.records].count("warmup") == warm_ups
    assert [seen(w) for w in analyse_run(run).warnings if w.id == "unsteady"] == evidence
