"""Every kind of draft on a real vLLM on the CPU: it drafts, it is attested, and the answers stay the target's own.

The heads are untrained: what they draft is rejected, and how well trained ones do is in docs/engines.md.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from transformers import Qwen3ForCausalLM  # noqa: E402

from benchctl.engines.base import Completion  # noqa: E402
from benchctl.engines.vllm.adapter import VllmSpec  # noqa: E402
from benchctl.engines.vllm.engine import VllmEngine  # noqa: E402
from benchctl.models.files import ResolvedModel, ResolvedPair  # noqa: E402
from benchctl.models.huggingface.folder import huggingface_folder  # noqa: E402
from benchctl.prompts.suite import Message, Prompt  # noqa: E402
from benchctl.recipes.schema import Arm, Sampling  # noqa: E402
from benchctl.recipes.speculation import Speculation  # noqa: E402
from tests.engines.cells import complete  # noqa: E402
from training.flash import Head  # noqa: E402
from training.flash import write as write_gguf  # noqa: E402
from training.heads import TARGET  # noqa: E402
from training.vllm_heads import made, write_all  # noqa: E402

pytestmark = [pytest.mark.vllm, pytest.mark.torch]

TOKENS = 24
PROMPTS = (
    Prompt(messages=(Message(role="user", content="Write a Python function that adds two numbers."),)),
    Prompt(prompt="one two three four " * 6),  # what looks the text up has something to copy
)


@pytest.fixture(scope="module")
def target() -> Any:
    """The target in transformers, which says what its own tokens are."""
    return Qwen3ForCausalLM.from_pretrained(huggingface_folder(TARGET), dtype=torch.float32)


@pytest.fixture(scope="module")
def heads(target: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(1)
    folder, source = tmp_path_factory.mktemp("heads"), huggingface_folder(TARGET)
    write_gguf(Head(target, anchored=False), source, folder / "dflash.gguf")
    write_all(made(target), target, source, folder)
    return folder


@pytest.fixture(scope="module")
def engine(vllm_program: Path) -> VllmEngine:
    spec = VllmSpec(kind="vllm", context=256, dtype="float32", env={"VLLM_CPU_KVCACHE_SPACE": "1"})
    return VllmEngine(spec, binary=str(vllm_program))


def answered(engine: VllmEngine, arm: Arm, models: ResolvedPair, target: Any, log: Path) -> list[Completion]:
    """Answers of a server that drafts: the draft is attested, and their tokens are those of the target alone."""
    server = engine.start(engine.launch(arm, models), log)
    try:
        prompts = [server.render(prompt) for prompt in PROMPTS]
        answers = [complete(server, prompt, Sampling(max_tokens=TOKENS, ignore_eos=True)) for prompt in prompts]
        attested = server.attest(sum(answer.ledger.drafted or 0 for answer in answers))
    finally:
        server.stop()
    assert attested.state == "active", attested.evidence
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = torch.tensor([prompt.token_ids])
        generated = target.generate(ids, max_new_tokens=TOKENS, do_sample=False, eos_token_id=-1, pad_token_id=0)
        assert list(answer.token_ids or ()) == generated[0, ids.shape[1] :].tolist()
    return answers


@pytest.mark.parametrize("kind", ["draft-simple", "eagle", "draft-eagle3", "medusa", "draft-mtp", "draft-dflash"])
def test_a_draft_is_used_and_the_answers_are_the_targets(
    kind: str, engine: VllmEngine, heads: Path, tiny_transformer: ResolvedModel, target: Any, tmp_path: Path
) -> None:
    folder = heads / kind.removeprefix("draft-")
    head = tiny_transformer if kind == "draft-simple" else ResolvedModel(str(folder), (), folder=folder)
    models = ResolvedPair(head, None) if kind == "draft-mtp" else ResolvedPair(tiny_transformer, head)
    arm = Arm(name="head", speculation=Speculation(type=kind, max=3))
    answers = answered(engine, arm, models, target, tmp_path / "server.log")
    assert all(answer.ledger.drafted == 3 * (answer.ledger.rounds or 0) > 0 for answer in answers)


def test_suffix_decoding_copies_and_keeps_the_targets_answers(
    engine: VllmEngine, tiny_transformer: ResolvedModel, target: Any, tmp_path: Path
) -> None:
    if os.environ.get("BENCHCTL_VLLM") and not engine.probe().details["arctic_inference"]:
        pytest.skip("BENCHCTL_VLLM has no arctic-inference; benchctl's own vLLM gets it by .ci/suffix")
    arm = Arm(name="suffix", speculation=Speculation(type="suffix", max=8))
    answered(engine, arm, ResolvedPair(tiny_transformer, None), target, tmp_path / "server.log")
