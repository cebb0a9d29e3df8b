"""Noise on further text, with a target that exists only in the test: its next token is the last one plus 1."""

from __future__ import annotations

from collections.abc import Sequence

from benchctl.engines.base import Rendered
from benchctl.engines.scoring import Scores
from benchctl.lossless.judge.audit import PREFIXES
from benchctl.lossless.judge.noise import noise_of
from benchctl.lossless.score.continuing import SUITE, TOKENS, lacking_widths, prompts_beside, read_continuation
from benchctl.prompts.load import prompt_sha256
from benchctl.prompts.suite import Prompt
from tests.analysis.conftest import build_manifest
from tests.lossless.replayed import scores

END = 40


class Counting:
    """Prefers the next number by 1 nat, less 0.1 for every further token in the last batch."""

    in_batches = True
    command = ("toy",)

    def __init__(self) -> None:
        self.read = 0

    def render(self, prompt: Prompt) -> Rendered:
        return Rendered(str(prompt), (1, len(str(prompt)) % 7))

    def read_prompt(self, prompt: Sequence[int], top: int) -> Scores:
        self.read = 0
        return self._scores(prompt)

    def read_on(self, prefix: Sequence[int], top: int) -> Scores:
        return self._scores(prefix)

    read_whole = read_prompt

    def log_tail(self, lines: int = 20) -> tuple[str, ...]:
        return ()

    def stop(self) -> int | None:
        return 0

    def _scores(self, prefix: Sequence[int]) -> Scores:
        new, self.read = len(prefix) - self.read, len(prefix)
        margin = 1.0 if self.read == 2 else 1.0 - 0.1 * (new - 1)
        return Scores({prefix[-1] + 1: -0.5, 0: -0.5 - margin}, new)


def test_what_answers_are_too_few_for_is_measured_on_the_targets_own_continuations() -> None:
    stored, scorer, prompts = scores([]), Counting(), 0
    for item in prompts_beside(build_manifest({"baseline": None}, 1, 1)):
        if not (missing := lacking_widths(stored, [3, 5])):
            break
        read_continuation(scorer, item, stored, missing, ())
        prompts += 1
    assert prompts > 2, "one text alone is not enough"
    for width in (3, 5):
        noise = noise_of(stored, [width])
        assert PREFIXES <= len(noise.losses) < PREFIXES + TOKENS
        assert {round(loss, 6) for loss in noise.losses.tolist()} <= {round(0.1 * (new - 1), 6) for new in range(1, 6)}
    assert {read.suite for read in stored.passes} == {SUITE}


def test_a_continuation_ends_at_an_end_token_and_is_stored_once() -> None:
    stored, scorer = scores([]), Counting()
    item = next(prompts_beside(build_manifest({"baseline": None}, 1, 1)))
    for _ in range(2):
        read_continuation(scorer, item, stored, [3], {END})
    (answer,) = stored.answers
    assert 1 < len(answer.margins) < TOKENS
    assert len({read.key for read in stored.passes}) == len(stored.passes)


def test_a_prompt_of_the_run_is_not_continued() -> None:
    first, second = list(prompts_beside(build_manifest({"baseline": None}, 1, 1)))[:2]
    manifest = build_manifest({"baseline": None}, 1, 1)
    manifest.prompts[0].sha256 = prompt_sha256(first.prompt)
    manifest.suite = {"kind": "raw"}
    item = next(prompts_beside(manifest))
    assert (item.task, item.prompt_idx) == (second.task, second.prompt_idx)
    assert item.prompt.prompt == (second.prompt.messages or ())[-1].text
