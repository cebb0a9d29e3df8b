"""What is settled before an engine starts."""

from pathlib import Path

import pytest

from benchctl.measure.prepare import new_manifest, prepare
from benchctl.recipes.schema import Recipe


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


@pytest.mark.engine
def test_a_manifest_does_not_tell_whose_home_the_models_lie_in(
    llama_server: Path, tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    mine = tmp_path / "models" / "mine.gguf"
    mine.parent.mkdir()
    mine.write_bytes(tiny_target.read_bytes())
    recipe = Recipe.model_validate(
        {
            "name": "try",
            "engine": {"binary": str(llama_server)},
            "models": {"target": {"source": str(mine)}},
            "prompts": {"suite": "tiny.json", "limit": 1},
            "arms": [{"name": "baseline"}],
        }
    )
    manifest = new_manifest(prepare(recipe, recipe_folder=tmp_path), ["benchctl", "run", "try.yaml"])
    assert manifest.target.source == manifest.recipe["models"]["target"]["source"] == "~/models/mine.gguf"
    again = prepare(Recipe.model_validate(manifest.recipe), recipe_folder=tmp_path)
    assert again.models.target.path == mine
