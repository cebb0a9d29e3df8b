"""DFlash and DSpark heads for the bundled transformer, trained for a minute, beat heads with random weights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchctl.engines.base import Completion, Server
from benchctl.models.files import ResolvedModel, ResolvedPair
from benchctl.models.shipped import bundled_models
from tests.engines.cells import arm_of, resolved
from tests.engines.conftest import StartServer
from tests.engines.llama_cpp.test_bundled_drafts import FEWEST, answers

pytestmark = [pytest.mark.engine, pytest.mark.torch, pytest.mark.slow]

DEPTH = 4
STEPS = 200
BETTER_THAN_CHANCE = 0.05
"""Chance would accept one token in thousands."""


@pytest.fixture(scope="module")
def target(llama_server: Path, tmp_path_factory: pytest.TempPathFactory) -> ResolvedModel:
    """The bundled transformer in float32: in bfloat16 a batch of five tokens decides some near-ties otherwise."""
    (source,) = (model.path for model in bundled_models() if model.name == "tiny-transformer")
    file = tmp_path_factory.mktemp("target") / "target.gguf"
    words = [str(llama_server.with_name("llama-quantize")), str(source), str(file), "F32"]
    subprocess.run(words, check=True, capture_output=True)
    return resolved(file)


def head(kind: str, folder: Path, steps: int) -> ResolvedModel:
    folder.mkdir()
    words = [sys.executable, "-m", "training.flash", kind, str(folder), "--steps", str(steps)]
    subprocess.run(words, check=True, capture_output=True)
    return resolved(folder / f"{kind}.gguf")


@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_a_trained_head_is_accepted_more_often_and_changes_no_answer(
    start_server: StartServer, target: ResolvedModel, tmp_path: Path, kind: str
) -> None:
    undrafted = tokens(answers(start_server(arm_of(), ResolvedPair(target, None))))

    def share_of(draft: ResolvedModel) -> float:
        server = start_server(arm_of(f"draft-{kind}", max=DEPTH), ResolvedPair(target, draft))
        result = answers(server)
        assert tokens(result) == undrafted
        drafted = sum(answer.ledger.drafted or 0 for answer in result)
        assert drafted > FEWEST and attested(server, drafted)
        return sum(answer.ledger.accepted or 0 for answer in result) / drafted

    share = share_of(head(kind, tmp_path / "trained", STEPS))
    assert share > BETTER_THAN_CHANCE
    assert share > share_of(head(kind, tmp_path / "random", 0))


def tokens(completions: list[Completion]) -> list[tuple[int, ...] | None]:
    return [answer.token_ids for answer in completions]


def attested(server: Server, drafted: int) -> bool:
    """Whether the log counts what the answers say."""
    return server.attest(drafted).state == "active"
