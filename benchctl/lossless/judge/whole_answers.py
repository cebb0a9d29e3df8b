"""Every prompt with the baseline's whole answer and those that diverge from it, for reading side by side."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchctl.analysis.answers import common_length
from benchctl.analysis.conditions.split import parts_of
from benchctl.analysis.losslessness import FirstDivergence
from benchctl.analysis.output_results import Comparison
from benchctl.analysis.results import Analysis
from benchctl.data.pool import with_further
from benchctl.errors import BenchctlError
from benchctl.lossless.judge.divergence import find_evidence
from benchctl.lossless.judge.selection import unchanged_prompts

if TYPE_CHECKING:
    from benchctl.data.manifest import Manifest
    from benchctl.data.record import Record
    from benchctl.data.scores import TargetScores
    from benchctl.data.store import RunData
    from benchctl.prompts.suite import Prompt


@dataclass(frozen=True)
class Probability:
    """The target's probabilities of both tokens where the answers diverge, reading the prefix in a shape."""

    shape: str
    width: int
    baseline: float | None
    arm: float | None
    """Probabilities; `None` where the token was not among the likeliest that were requested."""
    likeliest: int
    """The token that greedy decoding would choose."""


@dataclass(frozen=True)
class DivergingAnswer:
    """An answer that is not the baseline's, beside it."""

    comparison: Comparison
    agreed: str
    """The common text: from the beginning, or its end where the whole answers are not kept."""
    baseline: str
    arm: str
    """The two continuations."""
    complete: bool
    probabilities: tuple[Probability, ...] = ()


@dataclass(frozen=True)
class PromptAnswers:
    """A prompt, a baseline's answer, and the answers of the arms that are compared with it."""

    task: str
    prompt_idx: int
    prompt: str | None
    """`None` where it is not kept with the run nor in a suite of the same hash."""
    baseline_arm: str
    """The baseline that its answers are compared with: of a run over axes or conditions that of their group."""
    baseline: str | None
    """That arm's answer."""
    diverging: list[DivergingAnswer] = field(default_factory=list)
    identical: list[str] = field(default_factory=list)
    not_compared: list[Comparison] = field(default_factory=list)
    """Not identical, but without a divergence: degenerate, or not comparable."""


def find_whole_answers(run: RunData, analysis: Analysis) -> list[PromptAnswers]:
    """Return every prompt that was compared, once for each baseline, those with a divergence first."""
    prompts = {key: _text(prompt) for key, prompt in kept_prompts(run.manifest).items()}
    run = with_further(run)
    records: dict[tuple[str, str, int], dict[int, Record]] = defaultdict(dict)
    for record in run.records:
        if record.phase == "measure" and record.error is None and record.content is not None:
            records[record.label, record.task, record.prompt_idx][record.key[0]] = record
    part_of = {arm.name: part for part in parts_of(run) if part.manifest for arm in part.manifest.arms}
    by_prompt: dict[tuple[str, str, int], PromptAnswers] = {}
    for arm in analysis.losslessness:
        baseline = analysis.compared[arm.arm].baseline
        scores = find_evidence(part_of.get(baseline, run), baseline).scores
        for comparison in arm.comparisons:
            key = (comparison.task, comparison.prompt_idx)
            theirs, ours = records[baseline, *key], records[arm.arm, *key]
            first = theirs[min(theirs)].content if theirs else None
            empty = PromptAnswers(*key, prompts.get(key), baseline, first)
            answers = by_prompt.setdefault((baseline, *key), empty)
            if comparison.outcome == "identical":
                answers.identical.append(arm.arm)
            elif comparison.divergence is None:
                answers.not_compared.append(comparison)
            else:
                pairs = [(theirs[block], ours[block]) for block in sorted(theirs.keys() & ours.keys())]
                answers.diverging.append(_divergence(comparison, comparison.divergence, pairs, scores))
    return sorted(by_prompt.values(), key=lambda answers: not answers.diverging)


def _divergence(
    comparison: Comparison,
    divergence: FirstDivergence,
    pairs: Sequence[tuple[Record, Record]],
    scores: TargetScores | None,
) -> DivergingAnswer:
    """The whole answers of the block with the divergence."""
    texts, complete = (divergence.agreed_text, divergence.baseline_text, divergence.arm_text), False
    for baseline, arm in pairs:
        theirs, ours = baseline.content or "", arm.content or ""
        split = common_length(theirs, ours)
        if (
            theirs[split:].startswith(divergence.baseline_text)
            and ours[split:].startswith(divergence.arm_text)
            and theirs != ours
        ):
            texts, complete = (theirs[:split], theirs[split:], ours[split:]), True
            break
    return DivergingAnswer(comparison, *texts, complete, _probabilities(comparison, divergence, scores))


def _probabilities(
    comparison: Comparison, divergence: FirstDivergence, scores: TargetScores | None
) -> tuple[Probability, ...]:
    if scores is None or divergence.unit != "token":
        return ()
    key = (comparison.task, comparison.prompt_idx, divergence.index, divergence.baseline_token, divergence.arm_token)
    position = next(
        (
            candidate
            for candidate in scores.positions
            if (candidate.task, candidate.prompt_idx, candidate.index, candidate.token, candidate.rival) == key
        ),
        None,
    )
    scored = {(shape.shape, shape.width) for shape in divergence.shapes}
    read = (
        Probability(reading.shape, reading.width, _exp(reading.token), _exp(reading.rival), reading.likeliest)
        for reading in (position.readings if position else ())
        if (reading.shape, reading.width) in scored
    )
    return tuple(dict.fromkeys(read))  # the prefix is read several times at the same width, from different rounds


def _exp(value: float | None) -> float | None:
    return None if value is None else math.exp(value)


def kept_prompts(manifest: Manifest | None) -> dict[tuple[str, int], Prompt]:
    """Return every prompt of the recipe's suite that still has the run's SHA-256, by task and index."""
    named = manifest.recipe.get("prompts") if manifest else None
    suite = named.get("suite") if isinstance(named, dict) else None
    if manifest is not None and isinstance(suite, str):
        with suppress(BenchctlError, OSError):
            return unchanged_prompts(manifest, suite, Path(manifest.recipe_folder or "."))
    return {}


def _text(prompt: Prompt) -> str:
    messages = prompt.messages or ()
    if prompt.prompt is not None or len(messages) == 1:
        return messages[0].text if prompt.prompt is None else prompt.prompt
    return "\n\n".join(f"{message.role}: {message.text}" for message in messages)
