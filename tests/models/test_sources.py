"""A recipe's sources, resolved to files: every kind, and everything that can be wrong with one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchctl.errors import UsageError
from benchctl.measurement.prepare import unmade_models
from benchctl.models import shipped, sources
from benchctl.models.files import ResolvedPair
from benchctl.models.hub import OfflineError
from benchctl.models.quantize import Program
from benchctl.models.sources import ModelSearch
from benchctl.recipes.schema import ModelPair, ModelSpec, QuantizeSpec
from benchctl.recipes.source import HubSource

MakeGguf = Callable[..., Path]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, away from the hub."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def offline(source: HubSource, notice: object, *, safetensors: bool) -> Path:
        raise OfflineError("the hub cannot be reached, and its cache does not have the file")

    monkeypatch.setattr(sources, "fetch", offline)


def resolve(target: str, folder: Path, models_dir: Path | None = None, draft: str | None = None) -> ResolvedPair:
    pair = ModelPair(target=ModelSpec(source=target), draft=None if draft is None else ModelSpec(source=draft))
    return ModelSearch(folder, models_dir=models_dir).pair(pair)


def refusal(target: str, folder: Path, models_dir: Path | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        resolve(target, folder, models_dir)
    return str(caught.value)


def test_a_path_is_relative_to_the_recipe_first(make_gguf: MakeGguf, tmp_path: Path) -> None:
    in_recipes, in_cwd = make_gguf("recipes/m.gguf"), make_gguf("cwd/m.gguf", tokens=["other"])
    file = resolve("m.gguf", tmp_path / "recipes").target.files[0]
    assert (file.path, file.size) == (in_recipes, in_recipes.stat().st_size)
    assert file.sha256 == hashlib.sha256(in_recipes.read_bytes()).hexdigest()
    assert resolve("m.gguf", tmp_path).target.path == in_cwd
    assert resolve(str(in_cwd), tmp_path).target.path == in_cwd


def test_a_path_below_home_is_expanded(make_gguf: MakeGguf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = make_gguf("m.gguf")
    assert resolve("~/m.gguf", tmp_path / "recipes").target.path == path


def test_a_path_is_looked_for_in_the_models_folder_last(make_gguf: MakeGguf, tmp_path: Path) -> None:
    path = make_gguf("store/head.gguf")
    assert resolve("models/head.gguf", tmp_path, models_dir=tmp_path / "store").target.path == path


@pytest.mark.parametrize("path", ["C:\\models\\t.gguf", "D:modelst.gguf", "models\\t.gguf"])
def test_a_path_of_windows_is_named_as_one(path: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        ModelSearch(tmp_path).first(path)
    assert (error.value.fix or "").startswith("This is a path of Windows")


def test_a_missing_file_names_where_it_was_looked_for(tmp_path: Path) -> None:
    assert refusal("m.gguf", tmp_path / "r") == (
        f"models.target (m.gguf): there is no such model file\nSearched: {tmp_path}/r/m.gguf and {tmp_path}/cwd/m.gguf."
    )


def test_a_bare_repository_name_is_explained(tmp_path: Path) -> None:
    assert refusal("Qwen/Qwen3-4B", tmp_path).endswith(
        "For a repository of the Hugging Face hub write hf:Qwen/Qwen3-4B."
    )


def test_a_broken_draft_is_named_as_the_draft(make_gguf: MakeGguf, tmp_path: Path) -> None:
    make_gguf("good.gguf")
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF")
    with pytest.raises(UsageError) as caught:
        resolve("good.gguf", tmp_path, draft="bad.gguf")
    assert str(caught.value) == (
        f"models.draft (bad.gguf): {bad}: the model file is truncated or corrupt: it ends within the header\n"
        "Download or convert it again."
    )


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert refusal(str(tmp_path), tmp_path) == (
        f"models.target ({tmp_path}): {tmp_path}: this folder has no model\n"
        "A model is a folder with config.json and *.safetensors or, for llama.cpp, a GGUF file."
    )


def test_any_shard_stands_for_all_of_them(make_gguf: MakeGguf, tmp_path: Path) -> None:
    paths = [make_gguf(f"m-{number:05d}-of-00002.gguf", tensors=(f"t{number}.weight",)) for number in (1, 2)]
    for path in paths:
        assert [file.path for file in resolve(path.name, tmp_path).target.files] == paths


def test_a_missing_shard_is_named(make_gguf: MakeGguf, tmp_path: Path) -> None:
    make_gguf("m-00001-of-00002.gguf")
    assert "m-00002-" in refusal("m-00001-of-00002.gguf", tmp_path)


def test_the_bundled_pair_resolves(tmp_path: Path, tiny_target: Path, tiny_draft: Path) -> None:
    pair = resolve("bundled:tiny-hybrid", tmp_path, draft="bundled:tiny-hybrid-draft")
    assert pair.draft is not None
    assert (pair.target.path, pair.draft.path) == (tiny_target, tiny_draft)
    assert pair.target.source == "bundled:tiny-hybrid"


def test_an_unknown_bundled_model_suggests_the_nearest(tmp_path: Path) -> None:
    assert refusal("bundled:tiny-hybird", tmp_path) == (
        "models.target (bundled:tiny-hybird): benchctl ships no model called 'tiny-hybird'\nDid you mean 'tiny-hybrid'?"
    )


def test_a_bundled_file_that_was_changed_is_refused(
    make_gguf: MakeGguf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_gguf("bundle/m.gguf")
    facts = {"role": "target", "architecture": "llama", "parameters": 1, "bytes": 1, "licence": "MIT"}
    model = {**facts, "file": "m.gguf", "sha256": "0" * 64}
    (tmp_path / "bundle" / "index.json").write_text(json.dumps({"m": model}))
    monkeypatch.setattr(shipped, "bundled_folder", lambda: tmp_path / "bundle")
    assert "benchctl ships" in refusal("bundled:m", tmp_path)
    (tmp_path / "bundle" / "index.json").write_text(json.dumps({"m": {**model, "file": "gone.gguf"}}))
    assert "gone.gguf" in refusal("bundled:m", tmp_path)
    (tmp_path / "bundle" / "index.json").unlink()
    assert "has no bundled models" in refusal("bundled:m", tmp_path)


def test_the_models_folder_is_searched_before_the_hub(make_gguf: MakeGguf, tmp_path: Path) -> None:
    path = make_gguf("store/Repo/q.gguf")
    assert resolve("hf:Org/Repo/q.gguf", tmp_path, models_dir=tmp_path / "store").target.path == path


def test_a_models_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    assert refusal("hf:Org/Repo/q.gguf", tmp_path, models_dir=tmp_path / "none") == (
        f"models.target (hf:Org/Repo/q.gguf): --models-dir {tmp_path}/none: this folder does not exist"
    )


@pytest.mark.parametrize("place", ["cwd/q.gguf", "cwd/models/q.gguf", "recipes/q.gguf", "recipes/models/q.gguf"])
def test_without_a_network_a_local_file_of_that_name_serves(make_gguf: MakeGguf, tmp_path: Path, place: str) -> None:
    path = make_gguf(place)
    assert resolve("hf:Org/Repo/q.gguf", tmp_path / "recipes").target.path == path


def test_without_network_and_file_the_remedy_is_named(tmp_path: Path) -> None:
    assert refusal("hf:Org/Repo-GGUF/q.gguf", tmp_path) == (
        "models.target (hf:Org/Repo-GGUF/q.gguf): the model is not on this machine: "
        "the hub cannot be reached, and its cache does not have the file\n"
        "Connect, or put q.gguf into a folder and name it: --models-dir FOLDER"
    )
    with pytest.raises(UsageError) as caught:
        ModelSearch(tmp_path, find_tool=lambda name: Program((name,), "1", lambda argv, log, on_line: 0)).files(
            "hf:pfnet/plamo-2-8b"
        )
    assert "plamo-2-8b.gguf" in str(caught.value)


def test_control_characters_of_a_source_are_made_visible(tmp_path: Path) -> None:
    assert "\x1b" not in refusal("\x1b[31mm.gguf", tmp_path)


def test_a_source_stands_in_for_what_is_not_to_be_quantized_now(make_gguf: MakeGguf, tmp_path: Path) -> None:
    source = make_gguf("m.gguf", tensors=("blk.0.attn_k.weight",))
    pair = ModelPair(target=ModelSpec(source="m.gguf", quantize=QuantizeSpec(type="q8_0")))
    tool = Program(("/no/such/tool",), "1", lambda argv, log, on_line: pytest.fail("it was run"))
    model = ModelSearch(tmp_path, find_tool=lambda name: tool, quantizes=False).pair(pair).target
    assert (model.path, model.unmade) == (source, "q8_0")
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder := tmp_path / "hf").mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(UsageError, match="a dry run converts nothing"):
        ModelSearch(tmp_path, find_tool=lambda name: tool, quantizes=False).files("hf")
    (warning,) = unmade_models(ResolvedPair(model, None))
    assert "m.gguf to q8_0 first" in warning


def test_an_engine_without_a_quantizer_is_refused(make_gguf: MakeGguf, tmp_path: Path) -> None:
    make_gguf("m.gguf")
    pair = ModelPair(target=ModelSpec(source="m.gguf", quantize=QuantizeSpec(type="q8_0")))
    with pytest.raises(UsageError, match="cannot quantize"):
        ModelSearch(tmp_path).pair(pair)
