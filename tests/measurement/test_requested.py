"""Which recipe a command line names, and what its options change."""

from __future__ import annotations

from pathlib import Path

from benchctl.measurement.requested import named_recipe
from benchctl.recipes.from_options import RecipeOptions


def test_of_another_suite_those_tasks_are_asked_that_are_set(tmp_path: Path) -> None:
    """All of them were once: `--prompts` came last, and no message said so."""
    options = RecipeOptions(prompts="many", settings=["prompts.tasks=[code]"], limit=3)
    prompts = named_recipe("quickstart", tmp_path, options).recipe.prompts
    assert (Path(prompts.suite).name, prompts.tasks, prompts.limit) == ("many", ["code"], 3)
    assert named_recipe("quickstart", tmp_path, RecipeOptions(prompts="many")).recipe.prompts.tasks is None
