"""In f32, bf16 and q8_0 the pair's answers under speculation are the target's own, byte for byte."""

from __future__ import annotations

from typing import Any

import pytest

from benchctl.models.gguf_facts import read_facts
from benchctl.models.shipped import BundledModel, bundled_models
from tests.conversion.conftest import StartServer, Stored
from tests.conversion.prompts import chat_prompts, raw_prompts
from training.server import Server

pytestmark = pytest.mark.engine

LENGTH = 48
DEPTH = 4


@pytest.fixture(scope="module")
def pair() -> tuple[BundledModel, BundledModel]:
    """The hybrid target and its draft."""
    known = {model.name: model for model in bundled_models()}
    return known["tiny-hybrid"], known["tiny-hybrid-draft"]


def answers(server: Server) -> list[dict[str, Any]]:
    chats = [server.post("/apply-template", {"messages": messages})["prompt"] for messages in chat_prompts()]
    return [server.complete(prompt, LENGTH) for prompt in [*raw_prompts(), *chats]]


@pytest.mark.parametrize("kind", ["f32", "bf16", "q8_0"])
def test_speculation_reproduces_the_baseline(
    kind: str, pair: tuple[BundledModel, BundledModel], start: StartServer, stored_as: Stored
) -> None:
    target, draft = (stored_as(model, kind) for model in pair)
    assert max(read_facts(target).tensor_types.items(), key=lambda item: item[1].bytes)[0] == kind
    baseline = answers(start(target))
    drafted = answers(start(target, "-md", str(draft), "--spec-type", "draft-simple", "--spec-draft-n-max", str(DEPTH)))
    assert [answer["content"] for answer in drafted] == [answer["content"] for answer in baseline]
    assert [answer["tokens"] for answer in drafted] == [answer["tokens"] for answer in baseline]
    assert all("draft_n" not in answer["timings"] for answer in baseline)
    counts = [answer["timings"] for answer in drafted if "draft_n" in answer["timings"]]  # absent where none was needed
    assert sum(count["draft_n"] for count in counts) > 0
    assert sum(count["draft_n_accepted"] for count in counts) > 0
