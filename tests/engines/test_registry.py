from __future__ import annotations

from typing import get_args

import pytest

from benchctl.engines.llama_cpp.engine import LlamaCppEngine
from benchctl.engines.registry import make_engine
from benchctl.errors import UsageError
from benchctl.recipes.schema import EngineKind, EngineSpec


def test_llama_cpp_is_made() -> None:
    assert isinstance(make_engine(EngineSpec(), binary="somewhere"), LlamaCppEngine)


@pytest.mark.parametrize("kind", sorted(set(get_args(EngineKind)) - {"llama.cpp"}))
def test_kinds_that_are_not_built_are_refused_with_those_that_are(kind: EngineKind) -> None:
    with pytest.raises(UsageError, match=f"`{kind}`") as caught:
        make_engine(EngineSpec(kind=kind))
    assert "llama.cpp" in str(caught.value.fix)
