from __future__ import annotations

import io

from rich.console import Console

from benchctl.prompts.suite import PromptItem
from benchctl.recipes.schema import Recipe
from benchctl.runs.plan import make_plan
from benchctl.runs.progress import Lines


def test_in_a_pipe_a_cell_is_one_line(recipe: Recipe, prompts: list[PromptItem]) -> None:
    written = io.StringIO()
    lines = Lines(Console(file=written, width=40))
    cells = make_plan(recipe, prompts)
    lines.begin(cells)
    lines.note("warning: one that is longer than\x1b[2J the forty columns of this console")
    lines.cell_started(cells[0])
    lines.cell_ended(cells[0], "The engine ended with status 3 before it was healthy.")
    told = written.getvalue().splitlines()
    assert told == [
        "warning: one that is longer than␛[2J the forty columns of this console",
        "[1/4] block 1, baseline: failed: The engine ended with status 3 before it was healthy.",
    ]


def test_an_open_end_is_said(recipe: Recipe, prompts: list[PromptItem]) -> None:
    written = io.StringIO()
    lines = Lines(Console(file=written, width=80))
    first, *rest = make_plan(recipe, prompts)
    lines.begin([first], open_ended=True)
    lines.cell_started(first)
    lines.cell_ended(first, None)
    lines.more(rest)
    lines.cell_started(rest[0])
    lines.cell_ended(rest[0], None)
    assert written.getvalue().splitlines() == [
        "[1/1+] block 1, baseline: 0 answers, 0.0 tok/s",
        "[2/4+] block 1, spec: 0 answers, 0.0 tok/s",
    ]
