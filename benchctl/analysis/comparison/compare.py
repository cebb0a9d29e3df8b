"""Two runs of one workload side by side: what got faster or slower beyond noise, and whether the answers stayed.

A is the run before, B the one after; every ratio is B over A. Arms are matched by name. The blocks of two runs have
nothing in common, so each run's own spread between blocks counts (`welch_interval`); prompts
are the same and count as fixed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchctl.analysis.analyse import Judge, analyse
from benchctl.analysis.answers import Answers, find_answers
from benchctl.analysis.comparison.results import ArmComparison, OwnVerdict, Ratio, RunComparison, RunFacts, SpeedChange
from benchctl.analysis.comparison.workload import Outputs, compare_answers, find_changes, require_same_workload
from benchctl.analysis.frame import Frame, make_frame
from benchctl.analysis.results import ALL_TASKS, Analysis, Interval, Losslessness
from benchctl.analysis.statistics import MIN_BLOCKS, level_for, welch_interval
from benchctl.data.store import RunData
from benchctl.errors import UsageError

if TYPE_CHECKING:
    from benchctl.analysis.frame import Booleans, Floats, Frame, PromptKey


@dataclass(frozen=True)
class _Side:
    data: RunData
    analysis: Analysis
    frame: Frame
    answers: Answers


def compare_runs(
    a: RunData,
    b: RunData,
    *,
    judge: Judge,
    baseline: str | None = None,
    arms: Collection[str] | None = None,
    names: Sequence[str] = ("A", "B"),
) -> RunComparison:
    """Compare two runs of one workload; `arms` limits which arms. Raises UsageError where there is nothing to compare.

    `names` are what runs without a manifest are called.
    """
    if a.folder.resolve() == b.folder.resolve() and a.records == b.records:
        raise UsageError("Both are the same run.", where=str(a.folder), fix="Name two runs, the earlier one first.")
    on_trust = require_same_workload(a, b)
    before, after = _side(a, judge, baseline), _side(b, judge, baseline)
    known = dict.fromkeys([*before.frame.arms, *after.frame.arms])
    for name in arms or ():
        if name not in known:
            fix = f"The arms are: {', '.join(known)}."
            raise UsageError(f"Neither run has an arm {name!r}.", where="--arm", fix=fix)
    chosen = [name for name in known if not arms or name in arms]
    both = [name for name in chosen if name in before.frame.arms and name in after.frame.arms]
    return RunComparison(
        a=_facts(before, names[0]),
        b=_facts(after, names[1]),
        on_trust=on_trust,
        changed=find_changes(a, b),
        arms=[_compare_arm(before, after, name) for name in both],
        only_in_a=[name for name in chosen if name not in after.frame.arms],
        only_in_b=[name for name in chosen if name not in before.frame.arms],
        lossless_b=[
            OwnVerdict(arm=row.arm, verdict=row.verdict, reason=row.reason)
            for row in after.analysis.losslessness
            if row.arm in chosen
        ],
    )


def _side(data: RunData, judge: Judge, baseline: str | None) -> _Side:
    analysis = analyse(data, judge, baseline=baseline)  # every condition for itself
    frame = make_frame(data.records, data.manifest, min(analysis.baselines))  # all arms, each with a name of its own
    return _Side(data, analysis, frame, find_answers(frame))


def _facts(side: _Side, name: str) -> RunFacts:
    manifest, found = side.data.manifest, side.analysis
    return RunFacts(
        run=found.run if manifest else name,
        folder=str(side.data.folder),
        recipe=found.recipe,
        created_at=manifest.created_at if manifest else None,
        status=manifest.status if manifest else None,
        baseline=found.baseline,
        blocks=found.blocks,
        failed_cells=found.failed_cells,
        damage=list(side.data.integrity.findings),
        warnings=list(dict.fromkeys(warning.id for warning in found.warnings)),
    )


def _compare_arm(before: _Side, after: _Side, name: str) -> ArmComparison:
    prompts = [key for key in before.frame.prompts if key in set(after.frame.prompts)]
    a, b = BlockRates(before.frame, name, prompts), BlockRates(after.frame, name, prompts)
    timed = a.complete & b.complete
    equal = timed & (a.work == b.work)
    rates_a, rates_b = a.rates(timed), b.rates(timed)
    level = level_for(before.data.manifest, after.data.manifest)
    rate = _ratio(a.pooled(timed), b.pooled(timed), rates_a, rates_b, level)
    matched = _over(b.pooled(equal), a.pooled(equal))
    distrust = next((reason for run in (before, after) if (reason := run.data.integrity.reason)), None)
    doubt = distrust or _doubt(rate, matched, bool((timed & ~equal).any()), len(rates_a), len(rates_b))
    own_a, own_b = _lossless(before, name), _lossless(after, name)
    return ArmComparison(
        arm=name,
        is_baseline=name in after.analysis.baselines,
        rate=rate.model_copy(update={"interval": None}) if distrust else rate,
        rate_length_matched=matched,
        blocks_a=len(rates_a),
        blocks_b=len(rates_b),
        prompts=int(timed.sum()),
        prompts_left_out=len(prompts) - int(timed.sum()),
        speed="unknown" if doubt else speed_change(rate.interval),
        doubt=doubt,
        speedup=_speedups(before, after, name, level),
        acceptance_a=_acceptance(before, name),
        acceptance_b=_acceptance(after, name),
        lossy=list(dict.fromkeys([*(own_a.lossy if own_a else []), *(own_b.lossy if own_b else [])])),
        lossless_a=own_a.verdict if own_a else None,
        lossless_b=own_b.verdict if own_b else None,
        outputs=_outputs(before, after, name),
    )


def _outputs(before: _Side, after: _Side, name: str) -> Outputs:
    found = compare_answers(before.frame, before.answers, after.frame, after.answers, name)
    sweep = after.analysis.sweep
    if sweep is None or not any(row.overlapping for row in sweep.levels if row.arm == name):
        return found
    chance = [*found.differing, *found.undetermined]  # answers of overlapping requests do not repeat
    return found.model_copy(update={"differing": [], "undetermined": chance})


def _ratio(a: float | None, b: float | None, blocks_a: list[float], blocks_b: list[float], level: float) -> Ratio:
    ratio = _over(b, a)
    interval = None if ratio is None else welch_interval(ratio, blocks_b, blocks_a, level)
    return Ratio(a=a, b=b, ratio=ratio, interval=interval)


def _over(b: float | None, a: float | None) -> float | None:
    return b / a if a and b else None


def speed_change(interval: Interval | None) -> SpeedChange:
    """Return the class of the interval of a ratio of speeds."""
    if interval is None:
        return "unknown"
    if interval.low > 1:
        return "faster"
    return "slower" if interval.high < 1 else "no clear difference"


def _doubt(rate: Ratio, matched: float | None, unequal: bool, blocks_a: int, blocks_b: int) -> str | None:
    """Why there is no verdict on the speed, or `None`."""
    if rate.ratio is None:
        return "No prompt was timed in every block of both runs."
    if rate.interval is None:
        return f"A has {_blocks(blocks_a)} and B {_blocks(blocks_b)}; below {MIN_BLOCKS} in each there is no interval."
    if speed_change(rate.interval) in ("faster", "slower") and unequal:
        if matched is None:
            return "No answer is as long in B as it was in A, so they are not the same work."
        if (matched > 1) != (rate.ratio > 1):
            return f"The ratio is {matched:.2f} over the answers of equal length, so the difference is due to lengths."
    return None


def _blocks(count: int) -> str:
    return "one block" if count == 1 else f"{count} blocks"


def _speedups(before: _Side, after: _Side, name: str, level: float) -> Ratio:
    a, b = (
        next((speedup for speedup in side.analysis.speedups if speedup.arm == name and speedup.task == ALL_TASKS), None)
        for side in (before, after)
    )
    if a is None or b is None:
        return Ratio(a=a.pooled if a else None, b=b.pooled if b else None, ratio=None, interval=None)
    return _ratio(a.pooled, b.pooled, a.by_block, b.by_block, level)


def _acceptance(side: _Side, name: str) -> float | None:
    return next((row.rate for row in side.analysis.acceptance if row.arm == name and row.task == ALL_TASKS), None)


def _lossless(side: _Side, name: str) -> Losslessness | None:
    return next((row for row in side.analysis.losslessness if row.arm == name), None)


class BlockRates:
    """Tokens and seconds of an arm by block and prompt, `prompts` in their order.

    Blocks that timed less than half as many prompts as the fullest are left out, so that one cell that broke off early
    does not take the prompts of the others along.
    """

    def __init__(self, frame: Frame, arm: str, prompts: list[PromptKey]) -> None:
        place = {key: number for number, key in enumerate(frame.prompts)}
        rows = frame.row_at[frame.arms.index(arm)][:, [place[key] for key in prompts]]
        tokens = np.where(rows >= 0, frame.decoded[rows], np.nan)
        seconds = np.where(rows >= 0, frame.decode_s[rows], np.nan)
        counts = np.isfinite(seconds).sum(axis=1)
        kept = counts * 2 >= max(1, int(counts.max(initial=0)))
        self.tokens: Floats = tokens[kept]
        self.seconds: Floats = seconds[kept]
        work = np.where(rows >= 0, frame.work[rows], np.nan)[kept]
        same = (work == work[:1]).all(axis=0) if len(work) else np.zeros(len(prompts), dtype=bool)
        self.work: Floats = np.where(same, work[0], np.nan) if len(work) else np.full(len(prompts), np.nan)
        """Length and ending of each prompt's answers where they are the same in every block, else NaN."""
        self.complete: Booleans = np.isfinite(self.seconds).all(axis=0) & (len(self.seconds) > 0)

    def rates(self, chosen: Booleans) -> list[float]:
        """Tokens over time of the chosen prompts in each block; nothing where none is chosen."""
        if not chosen.any():
            return []
        found: list[float] = (self.tokens[:, chosen].sum(axis=1) / self.seconds[:, chosen].sum(axis=1)).tolist()
        return found

    def pooled(self, chosen: Booleans) -> float | None:
        """Tokens over time of the chosen prompts in all blocks."""
        return float(self.tokens[:, chosen].sum() / self.seconds[:, chosen].sum()) if chosen.any() else None
