"""Loading a folder whose files are damaged or made to do harm: one error that names the file."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from benchctl.engines.transformers.adapter import TransformersSpec
from benchctl.engines.transformers.engine import TransformersEngine
from benchctl.engines.transformers.serving import UnsuitableError
from benchctl.engines.transformers.serving.drafters.kangaroo import SelfKangaroo
from benchctl.engines.transformers.serving.loading import load
from benchctl.errors import EngineError
from benchctl.models.files import ResolvedModel, ResolvedPair
from tests.engines.cells import arm_of
from tests.engines.transformers.tiny_models import byte_tokenizer, loaded

pytestmark = pytest.mark.torch

NESTED = "[" * 100_000
NESTED_OBJECTS = '{"a":' * 100_000 + "1" + "}" * 100_000


@pytest.fixture(scope="module")
def sound_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    loaded("qwen2", vocab_size=300).model.save_pretrained(folder)
    byte_tokenizer(300).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(sound_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound_folder, tmp_path / "model"))


@pytest.mark.parametrize("text", [NESTED, NESTED_OBJECTS, "[]", '{"a": '], ids=["lists", "objects", "list", "cut off"])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"])
def test_a_damaged_file_is_named(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(UnsuitableError) as refused:
        load(folder, device="cpu", dtype="float32")
    assert str(folder / name) in str(refused.value)
    assert "again" in refused.value.fix


def test_nested_generation_defaults_are_named(folder: Path) -> None:
    (folder / "generation_config.json").write_text(NESTED)
    with pytest.raises(UnsuitableError, match=r"generation_config\.json.*nested"):
        load(folder, device="cpu", dtype="float32")


def test_a_tokenizer_that_is_none_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"model": 1}')
    with pytest.raises(UnsuitableError, match="cannot run the model"):
        load(folder, device="cpu", dtype="float32")


@pytest.mark.parametrize("text", [NESTED, "[]", "{"])
def test_a_damaged_adapter_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UnsuitableError, match=r"config\.json"):
        SelfKangaroo(SimpleNamespace(), {}, tmp_path)  # type: ignore[arg-type]


def test_the_server_ends_with_one_line(folder: Path, tmp_path: Path) -> None:
    (folder / "tokenizer.json").write_text(NESTED)
    spec = TransformersSpec(kind="transformers", device="cpu", dtype="float32", context=128, threads=1)
    engine, log = TransformersEngine(spec, binary=sys.executable), tmp_path / "cell.log"
    models = ResolvedPair(ResolvedModel(str(folder), (), folder=folder), None)
    with pytest.raises(EngineError, match=r"tokenizer\.json") as refused:
        engine.start(engine.launch(arm_of(), models), log)
    assert (refused.value.kind, refused.value.exit_code) == ("launch", 3)
    assert "Traceback" not in log.read_text("utf-8")
