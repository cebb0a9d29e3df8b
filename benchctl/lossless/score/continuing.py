"""Text that the target's noise is measured on where a run's answers are too few: what it says to prompts of a suite.

The target continues each prompt greedily, so that the text is as likely to it as its answers are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from benchctl.data.manifest import Manifest
from benchctl.data.record import sha256_tokens
from benchctl.data.scores import ScoredAnswer, TargetScores
from benchctl.engines.scoring import Scorer, Scores
from benchctl.lossless.judge.audit import PREFIXES
from benchctl.lossless.score.plan import alignments
from benchctl.lossless.score.reading import DIGITS, TOP, ReadAnswer, read_in_batches, require_kept
from benchctl.measurement.plan import by_turns
from benchctl.paths import shipped_folder
from benchctl.prompts.load import load_suite, prompt_sha256
from benchctl.prompts.suite import Prompt, PromptItem

SUITE = "many.json"
"""The shipped suite whose prompts are continued."""
TOKENS = 64
"""Of a continuation, at most."""


def prompts_beside(manifest: Manifest) -> Iterator[PromptItem]:
    """Yield the prompts of `SUITE` that the run did not ask, of all tasks in turn, in the form of the run's own."""
    suite = load_suite(SUITE, recipe_folder=shipped_folder("prompts"))
    asked = {prompt.sha256 for prompt in manifest.prompts}
    for item in by_turns(suite.select(None, None)):
        if prompt_sha256(item.prompt) not in asked:
            raw = manifest.suite.get("kind") == "raw" and item.prompt.messages
            prompt = Prompt(prompt=raw[-1].text) if raw else item.prompt
            yield item.model_copy(update={"task": f"{suite.name}:{item.task}", "prompt": prompt})


def lacking_widths(scores: TargetScores | None, widths: Sequence[int]) -> list[int]:
    """Return the verify widths whose noise was read at too few places."""
    return [width for width in widths if scores is None or scores.places_read(width) < PREFIXES]


def read_continuation(
    scorer: Scorer, item: PromptItem, scores: TargetScores, widths: Sequence[int], ends: Collection[int]
) -> None:
    """Have the target continue a prompt, and add to `scores` what reading that in batches of `widths` changes.

    `ends`: the model's end tokens. Raises EngineError.
    """
    rendered = scorer.render(item.prompt)
    tokens, margins = continued(scorer, rendered.token_ids, ends)
    scored = ScoredAnswer(
        task=item.task,
        prompt_idx=item.prompt_idx,
        prompt_sha=rendered.sha256,
        token_sha=sha256_tokens(tokens),
        margins=margins,
    )
    if all(earlier.answer != scored.answer for earlier in scores.answers):
        scores.answers.append(scored)
    reading = ReadAnswer(scored, tuple(rendered.token_ids), tuple(tokens))
    read = {earlier.key for earlier in scores.passes}
    for width in widths:
        for alignment in islice(alignments(width), 2 * width):  # whole rounds, then a token between each two
            planned = reading.null_pass(alignment)
            if planned.key in read or not alignment.places(len(tokens)):
                continue
            if scores.places_read(width) >= PREFIXES:
                break
            batches = read_in_batches(scorer, reading, alignment)
            scores.passes.append(batches.model_copy(update={"suite": SUITE}))


def continued(scorer: Scorer, prompt: Sequence[int], ends: Collection[int]) -> tuple[list[int], list[float]]:
    """Return the target's greedy answer to a prompt, and the margin of each token in nats. Raises EngineError."""
    tokens, margins = list[int](), list[float]()
    scores: Scores = scorer.read_prompt(prompt, TOP)
    while True:
        best, second = list(scores.logprobs.values())[:2]
        tokens.append(scores.likeliest)
        margins.append(round(best - second, DIGITS))
        if len(tokens) == TOKENS or tokens[-1] in ends:
            return tokens, margins
        scores = scorer.read_on([*prompt, *tokens], TOP)
        require_kept(scores, 1)
