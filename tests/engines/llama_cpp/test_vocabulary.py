"""The rule on vocabularies is the adapter's: llama-server takes no draft of another one, and says nothing of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchctl.engines.llama_cpp.adapter import LlamaCppSpec
from benchctl.engines.llama_cpp.engine import LlamaCppEngine
from benchctl.errors import UsageError
from benchctl.models.files import ResolvedPair
from benchctl.recipes.schema import Arm
from benchctl.recipes.speculation import Speculation
from tests.engines.cells import recipe_of

pytestmark = pytest.mark.engine
BASELINE = Arm(name="baseline")


def test_a_plain_draft_must_speak_the_targets_tokens(llama_server: Path, foreign_pair: ResolvedPair) -> None:
    engine = LlamaCppEngine(LlamaCppSpec(binary=str(llama_server), device="cpu"))
    draft = Arm(name="spec", speculation=Speculation(type="draft-simple", max=4))
    with pytest.raises(UsageError, match=r"does not fit the target"):
        engine.check(recipe_of(BASELINE, draft), foreign_pair)
    lookup = Arm(name="ngram", speculation=Speculation(type="ngram-simple", max=4, size_n=4))
    assert engine.check(recipe_of(BASELINE, lookup), foreign_pair) == []
