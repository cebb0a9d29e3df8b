"""The drafter that the documentation shows is one: its very text, registered as it says, drafts, and the answer stays
the target's."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from benchctl.engines.base import Capabilities
from benchctl.engines.common.launched_server import Probe
from benchctl.engines.transformers.adapter import TransformersSpec
from benchctl.engines.transformers.engine import TransformersEngine
from benchctl.engines.transformers.methods import GROUP, registered
from benchctl.engines.transformers.serving import UnsuitableError
from benchctl.engines.transformers.serving.answering import Speculation, make_drafter
from benchctl.engines.transformers.serving.decoder import Decoder
from benchctl.errors import UsageError
from benchctl.models.files import ResolvedModel, ResolvedPair
from tests.engines.cells import arm_of, recipe_of
from tests.engines.transformers.tiny_models import decoded

pytestmark = pytest.mark.torch
PAGE = (Path(__file__).parents[3] / "docs" / "self-speculation.md").read_text("utf-8")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The documentation's package, installed."""
    shown, example = (re.search(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL) for kind in ("toml", "python"))
    assert shown is not None and example is not None
    entries = tomllib.loads(shown[1])["project"]["entry-points"]
    (tmp_path / "toy_drafter.py").write_text(example[1])
    info = tmp_path / "toy_drafter-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-drafter\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in entries[GROUP].items()]
    builtin_name = "self-layerskip = toy_drafter:SelfToy"
    (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines, builtin_name]))
    monkeypatch.syspath_prepend(tmp_path)
    registered.cache_clear()
    yield
    registered.cache_clear()


@pytest.mark.usefixtures("package")
def test_the_toy_of_the_documentation_drafts(load: Callable[[str], Any]) -> None:
    loaded = load("tiny-transformer")
    decoder = Decoder(loaded.model)
    toy = make_drafter(decoder, Speculation("self-toy", 4, {"every": 2}), loaded)
    assert toy.describe()["left_out"] == ["1.mlp", "3.mlp"]
    answer, tokens = decoded(decoder, [5, 6, 7, 300], 24, toy)
    assert tokens == decoded(decoder, [5, 6, 7, 300], 24)[1]
    assert answer.ledger()["drafted"] > 0


@pytest.mark.usefixtures("package")
def test_no_package_replaces_a_method_of_benchctls_own() -> None:
    assert registered()["self-layerskip"].entry_point.startswith("benchctl.")


def refused(drafters: tuple[str, ...], folder: Path, **options: Any) -> str:
    engine = TransformersEngine(TransformersSpec(kind="transformers", device="cpu", context=512))
    capabilities = Capabilities("transformers", Path("/python"), "recipe", "transformers 5.19.0", "5.19.0", None, ())
    engine.__dict__["_probe"] = Probe(capabilities, {"devices": ("cpu",), "drafters": drafters})
    models = ResolvedPair(ResolvedModel(str(folder), (), folder=folder), None)
    try:
        engine.check(recipe_of(arm_of("self-toy", max=4, options=options), draft=False), models)
    except UsageError as error:
        return error.what
    return ""


@pytest.mark.usefixtures("package")
def test_a_recipe_may_name_it_where_both_pythons_have_it(folder_of: Callable[[str], Path]) -> None:
    folder = folder_of("tiny-transformer")
    assert refused(("self-toy",), folder, every=3) == ""
    assert "not installed in /python" in refused((), folder)
    assert "options.every" in refused(("self-toy",), folder, every="3")


def test_without_the_package_it_is_refused(load: Callable[[str], Any], folder_of: Callable[[str], Path]) -> None:
    loaded = load("tiny-transformer")
    assert "no method `self-toy`" in refused(("self-toy",), folder_of("tiny-transformer"))
    with pytest.raises(UnsuitableError, match="no package"):
        make_drafter(Decoder(loaded.model), Speculation("self-toy", 4, {}), loaded)
