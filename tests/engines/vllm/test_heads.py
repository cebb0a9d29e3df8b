"""Every kind of head on a real vLLM on the CPU: it drafts, it is attested, and the answer stays the target's own.

The heads are untrained: what they draft is rejected, and how well trained ones do is in docs/engines.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from transformers import Qwen3ForCausalLM  # noqa: E402

from benchctl.engines.base import Attestation, Completion  # noqa: E402
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

pytestmark = [pytest.mark.vllm, pytest.mark.torch, pytest.mark.timeout(600)]

PROMPT = Prompt(messages=(Message(role="user", content="Write a Python function that adds two numbers."),))


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(1)
    folder, source = tmp_path_factory.mktemp("heads"), huggingface_folder(TARGET)
    target = Qwen3ForCausalLM.from_pretrained(source, dtype=torch.float32)
    write_gguf(Head(target, anchored=False), source, folder / "dflash.gguf")
    write_all(made(target), target, source, folder)
    return folder


@pytest.fixture(scope="module")
def engine(vllm_program: Path) -> VllmEngine:
    spec = VllmSpec(kind="vllm", context=256, dtype="float32", env={"VLLM_CPU_KVCACHE_SPACE": "1"})
    return VllmEngine(spec, binary=str(vllm_program))


def answered(engine: VllmEngine, arm: Arm, models: ResolvedPair, log: Path) -> tuple[Completion, Attestation]:
    server = engine.start(engine.launch(arm, models), log)
    try:
        done = complete(server, server.render(PROMPT), Sampling(max_tokens=24, ignore_eos=True))
        return done, server.attest(done.ledger.drafted)
    finally:
        server.stop()


@pytest.fixture(scope="module")
def own_answer(
    engine: VllmEngine, tiny_transformer: ResolvedModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Completion]:
    """The target's, without speculation."""
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    yield answered(engine, Arm(name="baseline"), ResolvedPair(tiny_transformer, None), log)[0]


@pytest.mark.parametrize("kind", ["eagle", "draft-eagle3", "medusa", "draft-mtp", "draft-dflash"])
def test_a_head_drafts_and_the_answer_is_the_targets(
    kind: str,
    engine: VllmEngine,
    heads: Path,
    tiny_transformer: ResolvedModel,
    own_answer: Completion,
    tmp_path: Path,
) -> None:
    folder = heads / kind.removeprefix("draft-")
    head = ResolvedModel(str(folder), (), folder=folder)
    models = ResolvedPair(head, None) if kind == "draft-mtp" else ResolvedPair(tiny_transformer, head)
    arm = Arm(name="head", speculation=Speculation(type=kind, max=3))
    done, attested = answered(engine, arm, models, tmp_path / "server.log")
    assert attested.state == "active", attested.evidence
    assert done.ledger.drafted == 3 * (done.ledger.rounds or 0) > 0
    assert done.token_ids == own_answer.token_ids


def test_suffix_decoding_keeps_the_targets_answer(
    engine: VllmEngine, tiny_transformer: ResolvedModel, own_answer: Completion, tmp_path: Path
) -> None:
    if not engine.probe().details["arctic_inference"]:
        pytest.skip("vLLM's environment has no arctic-inference, of which there is no build")
    arm = Arm(name="suffix", speculation=Speculation(type="suffix", max=8))
    done, attested = answered(engine, arm, ResolvedPair(tiny_transformer, None), tmp_path / "server.log")
    assert attested.state in ("active", "idle"), attested.evidence
    assert done.token_ids == own_answer.token_ids
