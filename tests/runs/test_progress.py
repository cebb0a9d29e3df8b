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
