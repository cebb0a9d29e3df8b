"""DFlash and DSpark heads for the bundled transformer, trained for a minute, beat heads with random weights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchctl.engines.base import Server
from benchctl.models.files import ResolvedPair
from benchctl.models.sources import bundled_models
from tests.engines.cells import arm_of, resolved
from tests.engines.conftest import StartServer
from tests.engines.llama_cpp.test_bundled_drafts import FEWEST, answers

pytestmark = [pytest.mark.engine, pytest.mark.torch, pytest.mark.slow]

DEPTH = 4
STEPS = 200
BETTER_THAN_CHANCE = 0.05
"""Chance would accept one token in thousands."""
NEAR_TIES = 1
"""An answer that a batch of five tokens decides otherwise in bfloat16, whatever was drafted."""


def head(kind: str, folder: Path, steps: int) -> ResolvedPair:
    folder.mkdir()
    words = [sys.executable, "-m", "training.flash", kind, str(folder), "--steps", str(steps)]
    subprocess.run(words, check=True, capture_output=True)
    target = next(model.path for model in bundled_models() if model.name == "tiny-transformer")
    return ResolvedPair(resolved(target), resolved(folder / f"{kind}.gguf"))


@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_a_trained_head_is_accepted_more_often_and_changes_no_answer(
    start_server: StartServer, tmp_path: Path, kind: str
) -> None:
    def share_of(models: ResolvedPair) -> float:
        server = start_server(arm_of(f"draft-{kind}", max=DEPTH), models)
        found = answers(server)
        differing = [answer for answer, own in zip(found, alone, strict=True) if answer.token_ids != own]
        assert len(differing) <= NEAR_TIES
        drafted = sum(answer.ledger.drafted or 0 for answer in found)
        assert drafted > FEWEST and attested(server, drafted)
        return sum(answer.ledger.accepted or 0 for answer in found) / drafted

    trained = head(kind, tmp_path / "trained", STEPS)
    alone = [answer.token_ids for answer in answers(start_server(arm_of(), trained))]
    share = share_of(trained)
    assert share > BETTER_THAN_CHANCE
    assert share > share_of(head(kind, tmp_path / "random", 0))


def attested(server: Server, drafted: int) -> bool:
    """Whether the log counts what the answers say."""
    return server.attest(drafted).state == "active"
