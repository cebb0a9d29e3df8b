from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from benchctl.measurement.plan import make_plan
from benchctl.measurement.progress import RunningSpeedups, RunProgress, _time_left, shown_steps
from benchctl.prompts.suite import PromptItem
from benchctl.recipes.schema import Recipe
from benchctl.text import spoken
from tests.measurement.toy_engine import answer


def test_in_a_pipe_a_cell_is_one_line(recipe: Recipe, prompts: list[PromptItem]) -> None:
    stream = io.StringIO()
    lines = RunProgress(Console(file=stream, width=40))
    cells = make_plan(recipe, prompts)
    lines.begin(cells)
    lines.note("warning: one that is longer than\x1b[2J the forty columns of this console")
    lines.cell_started(cells[0])
    lines.cell_ended(cells[0], "The engine ended with status 3 before it was healthy.")
    printed = stream.getvalue().splitlines()
    assert printed == [
        "warning: one that is longer than␛[2J the forty columns of this console",
        "[1/4] block 1, baseline: failed: The engine ended with status 3 before it was healthy.",
    ]


def test_a_cell_with_several_in_flight_says_what_it_yields_in_all(
    recipe: Recipe, prompts: list[PromptItem], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 1000.0
    monkeypatch.setattr("benchctl.measurement.progress.time.monotonic", lambda: clock)
    stream = io.StringIO()
    lines = RunProgress(Console(file=stream, width=80))
    arm = recipe.arms[0].model_copy(update={"concurrency": 2})
    (cell,) = make_plan(recipe.model_copy(update={"arms": [arm]}), prompts, blocks=[0])
    lines.begin([cell])
    lines.cell_started(cell)
    lines.cell_ready(cell)
    for item in prompts:
        lines.request_sent(cell, item.task, item.prompt_idx)
    clock += 10
    for _ in prompts:
        lines.answered(cell, answer())
    clock += 5  # the engine takes its time to stop, and nothing is measured then
    lines.cell_ended(cell, None)
    assert re.search(r"baseline: 2 answers, 10\.0 tok/s each, 1\.6 tok/s together", stream.getvalue())


def test_the_time_left_goes_by_the_starts_and_answers_so_far(
    recipe: Recipe, prompts: list[PromptItem], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 1000.0
    monkeypatch.setattr("benchctl.measurement.progress.time.monotonic", lambda: clock)
    stream = io.StringIO()
    shown = RunProgress(Console(file=stream, width=80))
    first, *later_cells = make_plan(recipe, prompts)
    shown.begin([first, *later_cells])
    assert shown.left() == ""
    shown.cell_started(first)
    clock += 60
    shown.cell_ready(first)
    for item in prompts:
        shown.request_sent(first, item.task, item.prompt_idx)
        clock += 20
        shown.answered(first, replace(answer(), e2e_s=20.0))
    clock += 4
    shown.cell_ended(first, None)
    assert shown.left() == f"about {spoken(3 * (64 + 2 * 20))} left"
    for cell in later_cells:
        shown.cell_started(cell)
        shown.cell_ended(cell, "it did not start")
    assert shown.left() == "", "what was not answered will not come"
    assert stream.getvalue().splitlines()[:2] == [
        f"By the first answers: about {spoken(20 + 3 * (60 + 2 * 20))} left.",
        "[1/4] block 1, baseline: 2 answers, 10.0 tok/s, about 5 min left",
    ]


def test_the_time_left_under_load_counts_the_time_of_all_requests_in_flight(
    recipe: Recipe, prompts: list[PromptItem], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 1000.0
    monkeypatch.setattr("benchctl.measurement.progress.time.monotonic", lambda: clock)
    arms = [arm.model_copy(update={"concurrency": 2}) for arm in recipe.arms]
    shown = RunProgress(Console(file=io.StringIO(), width=80))
    first, *later_cells = make_plan(recipe.model_copy(update={"arms": arms}), prompts)
    shown.begin([first, *later_cells])
    shown.cell_started(first)
    clock += 60
    shown.cell_ready(first)
    for item in prompts:
        shown.request_sent(first, item.task, item.prompt_idx)
    clock += 30
    for _ in prompts:
        shown.answered(first, replace(answer(), e2e_s=30.0))
    shown.cell_ended(first, None)
    assert shown.left() == f"about {spoken(len(later_cells) * (60 + 30))} left"


def test_an_open_end_is_said(recipe: Recipe, prompts: list[PromptItem]) -> None:
    stream = io.StringIO()
    lines = RunProgress(Console(file=stream, width=80))
    first, *later_cells = make_plan(recipe, prompts)
    lines.begin([first], open_ended=True)
    lines.cell_started(first)
    lines.cell_ended(first, None)
    lines.more(later_cells)
    lines.cell_started(later_cells[0])
    lines.cell_ended(later_cells[0], None)
    assert stream.getvalue().splitlines() == [
        "[1/1+] block 1, baseline: 0 answers",
        "[2/4+] block 1, spec: 0 answers",
    ]


def test_the_speed_up_so_far_is_over_both_cells_of_the_baseline(recipe: Recipe, prompts: list[PromptItem]) -> None:
    second_baseline = recipe.arms[0].model_copy(update={"name": "baseline-again", "again": True})
    recipe = recipe.model_copy(update={"arms": [*recipe.arms, second_baseline]})
    result = RunningSpeedups(recipe.compared)
    paces = {"baseline": 0.10, "baseline-again": 0.14, "spec": 0.08}
    for cell in make_plan(recipe, prompts, blocks=[0]):
        for item in cell.prompts:
            result.request_sent(cell, item.task, item.prompt_idx)
            result.answered(cell, replace(answer(), decode_s=7 * paces[cell.arm.name]))
    lines = {line.partition(":")[0]: line for line in result.lines()}
    assert lines["spec"].startswith("spec: 1.50× so far"), "0.12 s a token over 0.08 s"
    assert lines["baseline-again"].startswith("baseline-again: 0.71× so far"), "against the first cell alone"


def test_a_counted_step_says_how_long_the_rest_takes(capsys: pytest.CaptureFixture[str]) -> None:
    """As compiling an engine: its pace so far, from a twentieth of it on."""
    with shown_steps("engine") as show:
        for done in (0, 20, 40):
            show("compiling", done, 40)
    first, second, last = capsys.readouterr().err.splitlines()
    assert (first, last) == ("engine: compiling 0/40", "engine: compiling 40/40")
    assert re.fullmatch(r"engine: compiling 20/40, about .* left", second)
    assert _time_left(6.0, 2, 38) == "about 2 min left" and _time_left(6.0, 1, 99) == ""
