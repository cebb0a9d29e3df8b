"""What `training.publish` would write is what the package holds."""

import json
from pathlib import Path

import pytest

from training.publish import MODELS

FOLDER = Path(__file__).parents[2] / "benchctl" / "models" / "bundled"
INDEX = json.loads((FOLDER / "index.json").read_text("utf-8"))


def test_every_bundled_model_is_published_by_the_script() -> None:
    assert INDEX.keys() == MODELS.keys()


@pytest.mark.parametrize("name", sorted(INDEX))
def test_the_index_says_what_the_script_says(name: str) -> None:
    assert (INDEX[name]["role"], INDEX[name]["architecture"]) == (MODELS[name].role, MODELS[name].architecture)


def test_no_two_models_come_from_one_run() -> None:
    assert len({model.run for model in MODELS.values()}) == len(MODELS)
