"""Answers are replayed in their own steps: exactly where the engine is sound, and a planted fault shows at its place.

In bfloat16, in which passes over several tokens decide otherwise than single steps so often that answers diverge. Every
drafter is replayed in float32 by `test_self_speculation`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchctl.data.counts import from_prompt  # noqa: E402
from benchctl.engines.transformers.serving.answering import Speculation, make_drafter  # noqa: E402
from benchctl.engines.transformers.serving.decode import Chooser, Sampler  # noqa: E402
from benchctl.engines.transformers.serving.decoder import Decoder, State  # noqa: E402
from benchctl.engines.transformers.serving.loading import Loaded, load  # noqa: E402
from benchctl.engines.transformers.serving.replaying import Deviation, replay  # noqa: E402
from tests.engines.transformers.conftest import PROMPTS  # noqa: E402
from tests.engines.transformers.test_self_speculation import LISTED, OPTIONS  # noqa: E402
from tests.engines.transformers.tiny_models import decoded, untrained_adapter  # noqa: E402

pytestmark = pytest.mark.torch
TOKENS = 40


class Replaying:
    """A bundled model in bfloat16, whose answers are replayed."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        self.loaded: Loaded = load(folder, device="cpu", dtype="bfloat16")
        self.decoder = Decoder(self.loaded.model)
        self.with_prompt = 0
        """Answers whose prompt was read in one pass with a draft."""

    def answer(self, text: str, name: str | None = None) -> tuple[list[int], list[Deviation]]:
        """Return the tokens of an answer, and how its replay deviates."""
        prompt, way = self.loaded.tokenizer(text)["input_ids"], None
        if name is not None:
            options = {**OPTIONS, **LISTED}.get(name, {})
            requested = Speculation(name, 4, options)
            way = make_drafter(self.decoder, requested, self.loaded, None, untrained_adapter(self.decoder))
        answer, tokens = decoded(self.decoder, prompt, TOKENS, way)
        steps = from_prompt(answer.ledger()["target_steps"] if way else [(0, 0)] * (TOKENS - 1))
        self.with_prompt += bool(steps[0][1])
        return tokens, replay(self.decoder, prompt, tokens, [step[-2:] for step in steps], Sampler().chooser())


def test_answers_that_diverge_by_noise_replay_exactly(folder_of: Callable[[str], Path]) -> None:
    target, diverging = Replaying(folder_of("tiny-transformer")), 0
    for text in PROMPTS[:2]:
        target_tokens, deviations = target.answer(text)
        assert deviations == []
        for name in ("self-skip", "early-exit", "prompt-lookup"):
            tokens, deviations = target.answer(text, name)
            assert deviations == []
            diverging += tokens != target_tokens
    assert diverging > 0
    assert target.with_prompt >= 2, "early-exit drafts before it reads the prompt"


def test_accepted_runners_up_are_found_at_their_places(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    gaps: list[float] = []

    def verify(chooser: Chooser, tokens: Sequence[int], distributions: object, logits: Any) -> tuple[int, int]:
        likeliest, accepted = logits.argmax(-1).tolist(), 0
        while accepted < len(tokens):
            gap = float(logits[accepted].float().max() - logits[accepted, tokens[accepted]].float())
            if gap > 0.3:
                break
            gaps.extend([gap] if gap > 0 else [])
            accepted += 1
        return accepted, likeliest[accepted]

    monkeypatch.setattr(Chooser, "verify", verify)
    target = Replaying(folder_of("tiny-transformer"))
    deviations = [deviation for text in PROMPTS for deviation in target.answer(text, "self-layerskip")[1]]
    assert gaps
    assert [gap for _, _, gap in deviations] == gaps


def test_a_recurrent_state_that_keeps_rejected_tokens_is_found(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(State, "keep", lambda state, snapshot, tokens: state._crop(snapshot.read + tokens))
    target = Replaying(folder_of("tiny-hybrid-draft"))
    assert all(target.answer(text, "self-ssm")[1] for text in PROMPTS[:2])


def test_rows_that_depend_on_what_stands_behind_them_decide_nothing(folder_of: Callable[[str], Path]) -> None:
    target = Replaying(folder_of("tiny-transformer"))
    prompt, forward = [5, 6, 7], target.decoder.forward
    _, tokens = decoded(target.decoder, prompt, 4)
    other = [*tokens[:2], (tokens[2] + 1) % 4096, tokens[3]]
    steps, chooser = [(4, 0)] * 3, Sampler().chooser()
    assert replay(target.decoder, prompt, other, [(0, 0), *steps], chooser)[0][0] == 2

    def mixing(tokens: Sequence[int], position: int, cache: Any, *, keep: int) -> Any:
        return forward(tokens, position, cache, keep=keep) + 1e-3 * (tokens[-1] % 7)

    target.decoder.forward = mixing  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="where other tokens stand behind it"):
        replay(target.decoder, prompt, other, [(0, 0), *steps], chooser)


def test_steps_that_do_not_make_the_answer_are_refused(folder_of: Callable[[str], Path]) -> None:
    target = Replaying(folder_of("tiny-transformer"))
    for steps in ([(4, 1)], [(4, 2), (0, 0)], [(1, 2)], []):
        with pytest.raises(ValueError, match="do not make the answer"):
            replay(target.decoder, [5, 6], [7, 8, 9, 10], [(0, 0), *steps], Sampler().chooser())
