"""The drafter that the documentation shows is one: its very text drafts, and the answer stays the target's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from benchctl.engines.transformers.serving.answering import Answer, ToDepth
from benchctl.engines.transformers.serving.choose import Sampler
from benchctl.engines.transformers.serving.decode import Step, Task
from benchctl.engines.transformers.serving.decoder import Decoder

pytestmark = pytest.mark.torch
PAGE = Path(__file__).parents[3] / "docs" / "self-speculation.md"


def test_the_toy_of_the_documentation_drafts(load: Any) -> None:
    example = re.search(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert example is not None
    written: dict[str, Any] = {"__name__": "toy"}
    exec(example[1], written)
    decoder = Decoder(load("tiny-transformer").model)
    answers = []
    for way in (None, ToDepth(written["SelfToy"](decoder, {}), 4)):
        steps: list[Step] = []
        made = Answer(decoder, Task([5, 6, 7, 300], 24, Sampler().chooser()), way)
        made.run(steps.append)
        answers.append([token for step in steps for token in step.tokens])
    assert answers[0] == answers[1]
    assert made.tally.to_json()["drafted"] > 0
