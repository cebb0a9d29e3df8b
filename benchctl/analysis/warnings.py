"""Warnings: everything that makes a number less trustworthy, as a closed set, each with its reason and its advice.

A check yields `(id, where, seen)`; the table adds why it matters and what to do. One kind warns once an arm at most,
naming the worst cases, so that a warning is worth reading.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from benchctl.analysis.record_checks import (
    check_cells,
    check_records,
    check_replication,
    check_speculation,
    check_work,
)
from benchctl.analysis.results import Caution, SelfConsistency, SpeedUp
from benchctl.analysis.steadiness import check_clocks, check_drift, check_load, check_outliers

if TYPE_CHECKING:
    from benchctl.analysis.answers import Answers
    from benchctl.analysis.counters import Counters
    from benchctl.analysis.frame import Frame


class Advice(NamedTuple):
    """Why a kind of warning matters, and what to do."""

    why: str
    todo: str


ADVICE: dict[str, Advice] = {
    "failed-cell": Advice(
        "Its prompts are missing from every comparison.",
        "Read the engine's log of that cell, then finish the run with `benchctl run --resume`.",
    ),
    "missing-records": Advice(
        "An arm is compared over fewer prompts than the recipe has; whether the others are lossless is undetermined.",
        "Finish the run with `benchctl run --resume`.",
    ),
    "damaged-records": Advice(
        "A record that cannot be trusted is left out of every comparison.",
        "Find out what changed the file, then measure again what is missing with `benchctl run --resume`.",
    ),
    "few-blocks": Advice(
        "Fresh processes differ from each other by more than the requests within one; so few cannot show by how much.",
        "Measure at least three blocks: `blocks: 3` in the recipe, or `--blocks 3`.",
    ),
    "baseline-speculates": Advice(
        "It does not show what the target alone says, nor how fast it is: no arm can be called lossless against it.",
        "Compare with an arm without speculation (`--baseline NAME`), or measure one.",
    ),
    "baseline-not-reproducible": Advice(
        "If the target alone does not repeat itself, a difference of an arm proves nothing.",
        "Fix what makes it vary: one slot, no prompt cache, fixed batch sizes and threads, temperature 0.",
    ),
    "unequal-work": Advice(
        "Answers of other lengths are other work; the speed-up then compares two different things.",
        "Read the length-matched value, or set `ignore_eos: true` to make all answers equally long.",
    ),
    "empty-answer": Advice(
        "An answer of less than two tokens has no decode rate and is left out of the speed-up.",
        "Check the prompt's template and whether the model is sound; empty answers are often a broken quantization.",
    ),
    "never-fired": Advice(
        "Speculation was on but found nothing to draft, so the arm measures the cost of looking, not of speculating.",
        "Try prompts with repetition, or a shorter n-gram key.",
    ),
    "depth-ignored": Advice(
        "The engine drafted deeper than the recipe allows, so the arm is not what its name says.",
        "Check how this engine build reads its depth option, and use another build if it ignores it.",
    ),
    "contradictory-counters": Advice(
        "Counters that contradict each other cannot be averaged; these records are left out of the acceptance.",
        "Report it to the engine's project, with the records named here.",
    ),
    "token-ids-withheld": Advice(
        "Without token ids two answers can be compared by their text only.",
        "Nothing to do where the text is complete; otherwise ask the engine for token ids.",
    ),
    "clock-mismatch": Advice(
        "The two clocks should agree within 1 %; otherwise one of them times something besides decoding.",
        "Look for a busy client, a slow network or proxy, or an engine that counts its time differently.",
    ),
    "high-load": Advice(
        "Other work on the machine slows some cells and not others.",
        "Stop other work and measure again; `benchctl doctor` names what disturbs.",
    ),
    "drift": Advice(
        "The baseline drafts nothing, so its rate should be nearly steady: either the machine changed its speed while "
        "measuring, or the last prompts are much longer than the first.",
        "Where the prompts are alike: fix the clock frequency, let the machine cool, plug it in; then measure again.",
    ),
    "outlier": Advice(
        "One answer took much longer or shorter than the same answer in other blocks, and moves the pooled speed-up.",
        "Compare with the median of prompts; if it repeats, look at that prompt.",
    ),
}


def find_warnings(
    frame: Frame,
    counters: Counters,
    answers: Answers,
    speedups: Sequence[SpeedUp],
    consistency: Sequence[SelfConsistency],
    damaged: Sequence[str],
) -> list[Caution]:
    """Return every warning of a run, the gravest kinds first."""
    seen = [
        *check_cells(frame),
        *check_records(frame, answers, damaged),
        *check_replication(frame, consistency),
        *check_work(frame, speedups),
        *check_speculation(frame, counters),
        *check_clocks(frame),
        *check_load(frame),
        *check_drift(frame),
        *check_outliers(frame),
    ]
    rank = list(ADVICE)
    seen.sort(key=lambda one: rank.index(one[0]))
    return [
        Caution(id=kind, where=where, seen=what, why=ADVICE[kind].why, todo=ADVICE[kind].todo)
        for kind, where, what in seen
    ]
