"""Engines are found through entry points: benchctl's own, and those that other packages bring."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name

import pytest

from benchctl.engines.llama_cpp.adapter import LlamaCppSpec
from benchctl.engines.llama_cpp.engine import LlamaCppEngine
from benchctl.engines.registry import make_engine
from benchctl.errors import UsageError
from benchctl.recipes.adapters import adapter_of, default_spec, kinds, registered
from benchctl.recipes.engine_spec import EngineSpec

ADAPTER = """
from typing import Literal
from benchctl.recipes.adapters import Adapter
from benchctl.recipes.engine_spec import LaunchedEngineSpec

class Spec(LaunchedEngineSpec):
    kind: Literal["{kind}"]

ADAPTER = Adapter(spec=Spec, engine="other:Engine", inventory="other:inventory", model_format="gguf")
"""
ASK = "from benchctl.recipes.adapters import registered as r; print(list(r().adapters), dict(r().broken))"


def test_llama_cpp_is_made() -> None:
    assert isinstance(make_engine(LlamaCppSpec(), binary="somewhere"), LlamaCppEngine)
    assert isinstance(default_spec(), LlamaCppSpec)
    assert kinds()[0] == default_spec().kind


@pytest.mark.parametrize("kind", kinds())
def test_every_declaration_is_that_of_an_engine(kind: str) -> None:
    adapter = adapter_of(kind)
    engine_class = resolve_name(adapter.engine)
    for method in ("probe", "check", "launch", "tool", "start"):
        assert callable(getattr(engine_class, method))
    engine = make_engine(adapter.spec.model_validate({"kind": kind}))
    assert isinstance(engine, engine_class)
    assert engine.model_format == adapter.model_format
    assert resolve_name(adapter.inventory)()[0].kind == kind
    for reference in (adapter.installer, adapter.doctor):
        assert reference is None or callable(resolve_name(reference))


def test_a_kind_that_nothing_brings_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(UsageError, match="`tensorrt`") as caught:
        make_engine(EngineSpec(kind="tensorrt"))
    assert ", ".join(kinds()) in str(caught.value.fix)


def test_declarations_import_no_engine() -> None:
    code = (
        "import sys; from benchctl.recipes.adapters import registered; registered();"
        "print(sorted(m for m in sys.modules if m.startswith('benchctl.') and not m.startswith('benchctl.recipes')"
        " and not m.endswith(('.adapter', '.options'))"
        " and m.count('.') > 1 and not hasattr(sys.modules[m], '__path__')))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == "[]"


def ask(folder: Path, *packages: tuple[str, str, str]) -> str:
    """Return what is registered with further packages: (name, entry point, its module's text)."""
    for name, entry, text in packages:
        (folder / f"{name}.py").write_text(text)
        info = folder / f"{name}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[benchctl.engines]\n{entry}\n")
    printed = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.append({str(folder)!r}); {ASK}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return printed.stdout


def test_another_package_brings_an_engine(tmp_path: Path) -> None:
    printed = ask(tmp_path, ("other", "other = other:ADAPTER", ADAPTER.format(kind="other")))
    assert "'other'" in printed.partition("{")[0]


@pytest.mark.parametrize(
    ("entry", "text", "reason"),
    [
        ("other = other:ADAPTER", "import nothing_of_that_name", "No module named"),
        ("other = other:ADAPTER", "ADAPTER = 5", "is no Adapter"),
        ("other = other:ADAPTER", ADAPTER.format(kind="another"), "is registered as other and declares another"),
        (f"{kinds()[0]} = other:ADAPTER", ADAPTER.format(kind=kinds()[0]), "belongs to benchctl"),
        (f"{kinds()[-1]} = other:ADAPTER", ADAPTER.format(kind=kinds()[-1]), "belongs to benchctl"),
    ],
)
def test_a_package_that_is_broken_harms_no_other_engine(tmp_path: Path, entry: str, text: str, reason: str) -> None:
    usable, _, broken = ask(tmp_path, ("other", entry, text)).partition("{")
    assert reason in broken
    assert usable.strip() == str(list(registered().adapters))
