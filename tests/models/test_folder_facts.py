"""Hugging Face folders: their facts, their vocabularies, and how a recipe's source becomes one."""

import json
import shutil
from pathlib import Path

import pytest

from benchctl.errors import UsageError
from benchctl.models.folder_facts import folder_facts, vocabulary_differences
from benchctl.models.sources import ModelSearch
from benchctl.recipes.schema import ModelPair, ModelSpec


def pair(source: str) -> ModelPair:
    return ModelPair(target=ModelSpec(source=source))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled hybrid as a folder of one's own."""
    derived = ModelSearch(Path()).pair(pair("bundled:tiny-hybrid"), "huggingface").target
    assert derived.folder is not None
    mine = tmp_path_factory.mktemp("models") / "mine"
    shutil.copytree(derived.folder, mine)
    return mine


def test_a_bundled_model_is_derived_with_all_its_files(folder: Path) -> None:
    model = ModelSearch(Path()).pair(pair("bundled:tiny-hybrid"), "huggingface").target
    assert model.path == model.folder
    names = {file.path.name for file in model.files}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert "derived-from.json" not in names


def test_a_folder_resolves_and_a_gguf_file_does_not(folder: Path, tiny_target: Path) -> None:
    derived = ModelSearch(Path()).pair(pair("bundled:tiny-hybrid"), "huggingface").target
    named = ModelSearch(folder.parent).pair(pair(folder.name), "huggingface").target
    assert named.folder == folder
    assert [file.sha256 for file in named.files] == [file.sha256 for file in derived.files]
    with pytest.raises(UsageError, match="Hugging Face folders"):
        ModelSearch(Path()).pair(pair(str(tiny_target)), "huggingface")


def test_a_hub_source_is_found_in_the_models_folder(folder: Path) -> None:
    search = ModelSearch(Path(), models_dir=folder.parent).pair(pair(f"hf:someone/{folder.name}"), "huggingface")
    assert search.target.folder == folder


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="this folder has no model"):
        ModelSearch(Path()).pair(pair(str(tmp_path)), "huggingface")


def test_a_file_of_a_repository_is_refused() -> None:
    with pytest.raises(UsageError, match="whole repositories"):
        ModelSearch(Path()).pair(pair("hf:someone/model/model.gguf"), "huggingface")


def test_a_served_model_has_no_files() -> None:
    model = ModelSearch(Path()).pair(pair("served:gpt"), "served").target
    assert (model.source, model.files) == ("served:gpt", ())


def test_facts_of_a_hybrid(folder: Path) -> None:
    facts = folder_facts(folder)
    assert facts["architecture"] == "FalconH1ForCausalLM"
    assert facts["memory"] == "hybrid"
    assert facts["vocab_size"] == len(json.loads((folder / "tokenizer.json").read_text("utf-8"))["model"]["vocab"])
    assert facts["parameters"] == sum(facts["parameters_by_dtype"].values()) > 1_000_000


def test_facts_of_an_attention_model() -> None:
    model = ModelSearch(Path()).pair(pair("bundled:tiny-transformer"), "huggingface").target
    assert folder_facts(model.path)["memory"] == "attention"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("[]", "expected a JSON object"),
        ("[" * 100_000, "nested too deeply"),
    ],
    ids=["empty", "cut off", "list", "nested"],
)
def test_a_damaged_config_is_one_clear_error(folder: Path, tmp_path: Path, damage: str, message: str) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    (broken / "config.json").write_text(damage, "utf-8")
    with pytest.raises(UsageError, match=message):
        folder_facts(broken)


def test_damaged_weights_are_one_clear_error(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    (broken / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(UsageError, match="truncated or damaged"):
        folder_facts(broken)


def test_vocabularies_are_compared_by_what_ids_mean(folder: Path, tmp_path: Path) -> None:
    second = tmp_path / "other"
    shutil.copytree(folder, second)
    assert vocabulary_differences(folder, second) == []
    tokenizer = json.loads((second / "tokenizer.json").read_text("utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    token, two = list(vocabulary)[300:302]
    vocabulary[token], vocabulary[two] = vocabulary[two], vocabulary[token]
    (second / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    (reason,) = vocabulary_differences(folder, second)
    assert reason.startswith("2 token ids mean different texts")
