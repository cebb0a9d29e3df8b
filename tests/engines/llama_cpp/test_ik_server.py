"""ik_llama.cpp's server: a scripted one of a newer build, and the real one of PyPI's package where it was built."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchctl.engines.base import Ledger, Rendered
from benchctl.engines.llama_cpp.adapter import LlamaCppSpec
from benchctl.engines.llama_cpp.engine import LlamaCppEngine
from benchctl.errors import UsageError
from benchctl.models.files import ResolvedPair
from benchctl.models.gguf_header import read_header
from benchctl.models.vocabulary import end_tokens
from benchctl.recipes.schema import Sampling
from tests.engines.cells import HERE, arm_of, complete, recipe_of
from tests.engines.conftest import StartServer

NEW = {"FAKE_HELP": str(HERE / "data" / "help_ik_new.txt")}
PROMPT = Rendered("a b c", (1, 2, 3))
SAMPLING = Sampling(max_tokens=8)


@pytest.fixture
def ik(tmp_path: Path) -> Path:
    path = tmp_path / "llama-server"
    path.write_text(f"#!{sys.executable}\n{(HERE / 'fake_ik_server.py').read_text()}")
    path.chmod(0o755)
    return path


def test_tokens_past_the_end_are_not_counted(ik: Path, start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    """Its usage says 6; the answer has 3 tokens and the one that ends it."""
    server = start_server(arm_of("draft-mtp", max=3), tiny_pair, binary=ik, env=NEW)
    answer = complete(server, PROMPT, SAMPLING)
    assert (answer.n_predicted, answer.token_ids, answer.text) == (4, (11, 12, 13, 2), "one two three")
    assert answer.ledger == Ledger(4, 3, 2, drafted_by_position=(2, 2), accepted_by_position=(2, 1))
    assert server.attest(None).state == "active"


def test_the_end_is_told_by_the_last_token(ik: Path, start_server: StartServer, tiny_pair: ResolvedPair) -> None:
    """Token 2 ends an answer of the bundled models; each of its answers calls itself stopped."""
    server = start_server(arm_of(), tiny_pair, binary=ik, env=NEW)
    answer = complete(server, PROMPT, SAMPLING)
    ends = end_tokens(read_header(tiny_pair.target.path))
    assert answer.finish_reason == ("stop" if 2 in ends else "length")
    assert answer.ledger == Ledger()
    assert server.attest(None).state == "off"


def test_one_request_at_a_time(ik: Path, tiny_pair: ResolvedPair) -> None:
    spec = LlamaCppSpec.model_validate({"binary": str(ik), "env": NEW})
    with pytest.raises(UsageError, match="one request at a time"):
        LlamaCppEngine(spec).check(recipe_of(arm_of().model_copy(update={"concurrency": 2}), engine=spec), tiny_pair)
