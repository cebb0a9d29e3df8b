"""How many answers are right, where prompts carry the right answer: beside the speed of settings that may change it.

An arm is compared with its baseline, and the baseline of what changes the target (a quantization, a type of KV cache)
with the run's first: the two together are what a setting costs. Blocks repeat prompts: of each the first block counts
in which both gave an answer. p is McNemar's (1947), exact, adjusted by Holm over all comparisons of a run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from benchctl.analysis.result import Result
from benchctl.analysis.statistics import holm
from benchctl.data.record import Record
from benchctl.data.store import RunData
from benchctl.prompts.answers import Answer
from benchctl.recipes.groups import ComparedArm

LEVEL, POWER = 0.05, 0.8


class Judgement(NamedTuple):
    """Of an answer."""

    right: bool
    cut: bool
    """Whether it was cut off at `max_tokens`."""


Judged = dict[tuple[str, int, int], Judgement]
"""By (task, prompt_idx, block), the answers of an arm."""


class ArmAccuracy(Result):
    """The right answers of an arm, over the prompts that it and what it is compared with both answered."""

    arm: str
    baseline: str | None
    """What it is compared with; `None` for the run's first baseline."""
    prompts: int
    correct: int
    cut: int
    """Answers that were cut off at `max_tokens`."""
    baseline_correct: int
    lost: list[str]
    """Prompts that the baseline alone answers right, by `task/prompt_idx`, …"""
    gained: list[str]
    """… and that the arm alone does."""
    p: float | None = None
    """Of McNemar's exact test, two-sided."""
    p_adjusted: float | None = None
    """By Holm, over the run's comparisons."""
    detectable: float | None = None
    """The smallest loss, as a share of the prompts, that so many find in 8 of 10 runs; `None` where they find none."""

    @property
    def worse(self) -> bool:
        """Whether it is shown to answer fewer prompts right."""
        return self.p_adjusted is not None and self.p_adjusted <= LEVEL and len(self.lost) > len(self.gained)


class Accuracy(Result):
    """The right answers of a run."""

    arms: list[ArmAccuracy]
    """The first baseline, then the arms that are compared."""


def find_accuracy(run: RunData, compared: Mapping[str, ComparedArm]) -> Accuracy | None:
    """Judge every answer; `None` where no prompt carries an answer, and where the evidence is damaged."""
    prompts = run.manifest.prompts if run.manifest and not run.integrity.damage else []
    expected = {(prompt.task, prompt.prompt_idx): prompt.answer for prompt in prompts if prompt.answer is not None}
    judged = _judge(run.records, expected)
    against = {name: row.baseline for name, row in compared.items() if name in judged and not row.is_again}
    first = next((name for name, baseline in against.items() if name == baseline), None)
    if first is None:
        return None
    against = {name: first if name == baseline else baseline for name, baseline in against.items() if name != first}
    rows = [_compare(name, judged[name], base, judged[base]) for name, base in against.items() if base in judged]
    rows = _tested([row for row in rows if row.prompts])
    return Accuracy(arms=[_compare(first, judged[first], None, judged[first]), *rows])


def _judge(records: Iterable[Record], expected: Mapping[tuple[str, int], Answer]) -> dict[str, Judged]:
    """Judge the answers of every arm; what failed, or is no model's own text, is not judged."""
    judged: dict[str, Judged] = defaultdict(dict)
    for record in records:
        answer = expected.get((record.task, record.prompt_idx))
        if answer is None or record.phase != "measure" or record.error or record.content is None or record.synthetic:
            continue
        cut = record.finish_reason == "length"
        block, label, task, number = record.key
        judged[label][task, number, block] = Judgement(answer.is_given_by(record.content, cut=cut), cut)
    return dict(judged)


def _compare(arm: str, judged: Judged, baseline: str | None, baseline_judged: Judged) -> ArmAccuracy:
    """Count over the prompts, each in the first block that has both answers."""
    first: dict[tuple[str, int], tuple[Judgement, Judgement]] = {}
    for key in sorted(judged.keys() & baseline_judged.keys()):
        first.setdefault(key[:2], (judged[key], baseline_judged[key]))
    pairs = {f"{task}/{number}": pair for (task, number), pair in first.items()}
    return ArmAccuracy(
        arm=arm,
        baseline=baseline,
        prompts=len(pairs),
        correct=sum(ours.right for ours, _ in pairs.values()),
        cut=sum(ours.cut for ours, _ in pairs.values()),
        baseline_correct=sum(theirs.right for _, theirs in pairs.values()),
        lost=[name for name, (ours, theirs) in pairs.items() if theirs.right and not ours.right],
        gained=[name for name, (ours, theirs) in pairs.items() if ours.right and not theirs.right],
    )


def _tested(rows: list[ArmAccuracy]) -> list[ArmAccuracy]:
    from scipy.stats import binomtest

    changed = [(len(row.lost), len(row.gained)) for row in rows]
    p = [float(binomtest(lost, lost + gained).pvalue) if lost + gained else 1.0 for lost, gained in changed]
    limits = [detectable_loss(row.prompts, row.baseline_correct, len(row.gained), LEVEL / len(rows)) for row in rows]
    return [
        row.model_copy(update={"p": value, "p_adjusted": adjusted, "detectable": limit})
        for row, value, adjusted, limit in zip(rows, p, holm(p), limits, strict=True)
    ]


def detectable_loss(prompts: int, right: int, gained: int, level: float) -> float | None:
    """Return the smallest net loss, as a share of `prompts`, that McNemar's exact test finds with probability `POWER`.

    As many prompts are taken to be gained by chance as were; all that is `right` can be lost. `None`: no loss is found.
    """
    from scipy.stats import binom

    differing = np.arange(prompts + 1)
    needed = binom.isf(level / 2, differing, 0.5)  # the test rejects where more of them than this are lost

    def power_at(loss: int) -> float:
        lost = (gained + loss) / prompts
        share = lost + gained / prompts
        return float(binom.pmf(differing, prompts, share) @ binom.sf(needed, differing, lost / share))

    largest = min(prompts - 2 * gained, right - gained)
    smallest = bisect_left(range(1, largest + 1), POWER, key=power_at) + 1
    return smallest / prompts if smallest <= largest else None
