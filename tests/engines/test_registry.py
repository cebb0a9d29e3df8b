from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from benchctl.adapters import ADAPTERS, runnable
from benchctl.engines.llama_cpp.engine import LlamaCppEngine
from benchctl.engines.registry import make_engine
from benchctl.errors import UsageError
from benchctl.recipes.schema import EngineSpec


def test_llama_cpp_is_made() -> None:
    assert isinstance(make_engine(EngineSpec(), binary="somewhere"), LlamaCppEngine)


@pytest.mark.parametrize("kind", runnable())
def test_every_line_of_the_table_is_an_adapter(kind: str) -> None:
    module, _, name = ADAPTERS[kind].partition(":")
    adapter = getattr(importlib.import_module(module), name)
    for method in ("probe", "check", "launch", "tool", "start"):
        assert callable(getattr(adapter, method))
    assert adapter.model_format in ("gguf", "huggingface", "served")
    made = make_engine(EngineSpec(kind=kind, url="http://127.0.0.1:9" if kind == "openai" else None))
    assert isinstance(made, adapter)


@pytest.mark.parametrize("kind", sorted(set(ADAPTERS) - set(runnable())))
def test_kinds_that_are_not_built_are_refused_with_those_that_are(kind: str) -> None:
    with pytest.raises(UsageError, match=f"`{kind}`") as caught:
        make_engine(EngineSpec(kind=kind))
    assert "llama.cpp, openai, sglang, vllm" in str(caught.value.fix)


def test_the_table_imports_nothing() -> None:
    code = "import sys, benchctl.adapters; print(sorted(m for m in sys.modules if m.startswith('benchctl.engines')))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
