"""What is settled before an engine starts."""

from pathlib import Path

import pytest

from benchctl.recipes.schema import Recipe
from benchctl.runs.prepare import prepare


@pytest.mark.engine
def test_a_lossy_arm_is_told_before_it_runs(llama_server: Path, tmp_path: Path) -> None:
    recipe = Recipe.model_validate(
        {
            "name": "try",
            "engine": {"binary": str(llama_server)},
            "models": {
                "target": {"source": "bundled:tiny-hybrid"},
                "draft": {"source": "bundled:tiny-hybrid-draft"},
            },
            "prompts": {"suite": "tiny.json", "limit": 1},
            "arms": [
                {"name": "baseline"},
                {"name": "exact", "speculation": {"type": "draft-simple", "max": 2}},
                {
                    "name": "faked",
                    "speculation": {"type": "draft-simple", "max": 2},
                    "args": ["--spec-synth-len", "2"],
                },
            ],
        }
    )
    warnings = prepare(recipe, recipe_folder=tmp_path).warnings
    assert warnings == ["Arm faked is lossy by design (synthetic acceptance): its text is not the target's."]
