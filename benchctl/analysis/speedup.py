"""Speed-up: how much faster an arm decodes than the baseline, prompt by prompt within a block.

Variances are shared among the arms of a condition, and claims hold together over all arms of a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from benchctl.analysis.cells import identity_of, is_synthetic
from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.result import Interval
from benchctl.analysis.speed_results import NoDraft, SpeedUp, Throughput
from benchctl.analysis.speed_table import SpeedTable, speed_table
from benchctl.analysis.statistics import (
    Variance,
    level_for,
    own_variance,
    pooled_interval,
    pooled_spread,
    shared_variances,
)
from benchctl.recipes.speculation import copies

if TYPE_CHECKING:
    from benchctl.analysis.conditions.split import ConditionRun
    from benchctl.analysis.frame import Booleans, Floats, Frame, Integers


AS_GOOD_AS_NONE = 0.02
"""Where the prompts without a draft are shown to have run within this share of the baseline, they count as 1.00×."""

P95_FROM = 40
"""Gaps between bursts, so that two lie beyond their p95."""

Variances = Mapping[str, Variance | None]
"""Between the blocks of an arm, by task."""


def block_variances(frame: Frame, arm: int) -> Variances:
    """Return the variance between an arm's blocks over all tasks and in each task, from these records alone."""
    table, _ = counted_table(frame, arm)
    sums, rows = table.sums(table.timed), frame.row_at[arm][table.timed]
    return {name: own_variance(sums[mask], frame.block[rows[mask]]) for name, mask in frame.by_task(rows)}


def whole_variances(frame: Frame, arm: int) -> Variances:
    """Return the same of the times of whole answers, over all tasks alone."""
    sums, rows = _latency_pairs(frame, arm)
    return {ALL_TASKS: own_variance(sums, frame.block[rows])}


def counted_table(frame: Frame, arm: int) -> tuple[SpeedTable, dict[str, NoDraft]]:
    """Return the table of an arm as it counts, and by task how fast the prompts ran for which nothing was drafted.

    An arm that copies text and found none to copy did the baseline's work: where such prompts are shown to have run as
    fast as it (on some engines they do not), the rest is noise, and they are given the baseline's own pace.
    """
    table = speed_table(frame, arm)
    idle = table.timed & _never_drafted(frame, arm)
    if not idle.any() or (idle == table.timed).all():
        return table, {}
    (block, prompt), sums, level = np.nonzero(idle), table.sums(idle), level_for(frame.manifest)
    ends = pooled_interval(sums, block, level)
    counted = ends is not None and abs(ends.low - 1) <= AS_GOOD_AS_NONE and abs(ends.high - 1) <= AS_GOOD_AS_NONE
    no_draft: dict[str, NoDraft] = {}
    for name, of_task in frame.by_task(frame.row_at[arm][idle]):
        if (ratio := pooled(sums[of_task])) is not None:
            no_draft[name] = NoDraft(
                prompts=len(np.unique(prompt[of_task])),
                pooled=ratio,
                interval=pooled_interval(sums[of_task], block[of_task], level),
                counted=counted,
            )
    if counted:
        paced = table.tokens * table.base_seconds / table.base_tokens
        table = replace(table, seconds=np.where(idle, paced, table.seconds))
    return table, no_draft


def _never_drafted(frame: Frame, arm: int) -> Booleans:
    """Return for which prompts an arm without a draft model drafted nothing in any block, (prompts,)."""
    no_prompt: Booleans = np.zeros(len(frame.prompts), dtype=np.bool_)
    identity = identity_of(frame.manifest, frame.arms[arm])
    copying = identity is not None and identity.types and all(map(copies, identity.types))
    if identity is None or not copying or identity.overlapping:  # these share the engine with requests that did draft
        return no_prompt
    rows = frame.rows(arm)
    drafted = frame.column("draft_n")[rows]
    no_prompt[frame.prompt[rows]] = True
    no_prompt[frame.prompt[rows[~(drafted == 0)]]] = False  # not reported counts as drafted
    return no_prompt


def find_speedups(frame: Frame, arm: int, arms: int = 1, variances: Variances = MappingProxyType({})) -> list[SpeedUp]:
    """Return the speed-up of an arm over all tasks, then of each task.

    `arms`: how many arms the run compares with a baseline. Claims over all tasks hold together over the arms, those of
    single tasks over arms and tasks. `variances`: shared with the other arms; where none is named, the arm's own.
    """
    ours, theirs = frame.pairs(arm, frame.baseline)
    counted = frame.answered[ours] & frame.answered[theirs]
    finished = frame.prompt[ours[counted]]
    table, no_draft = counted_table(frame, arm)
    sums, rows, base_rows = table.sums(table.timed), frame.row_at[arm], frame.row_at[frame.baseline]
    ours, theirs = rows[table.timed], base_rows[table.timed]
    equal = frame.work[ours] == frame.work[theirs]
    end_to_end, waits = _whole_answers(frame, arm, table)
    first, reported = _first_tokens(frame, ours, theirs)
    level = level_for(frame.manifest)
    searching = frame.manifest is not None and frame.manifest.tuning is not None  # not every block has every prompt
    planned, done = ([name for name, _ in frame.prompts], [frame.prompts[prompt][0] for prompt in finished])

    rows_found = []
    for name, mask in frame.by_task(ours):
        requested, answered = (len(tasks) if name == ALL_TASKS else tasks.count(name) for tasks in (planned, done))
        claims = arms if name == ALL_TASKS else arms * len(frame.tasks)
        ratios = sums[mask, 0] / sums[mask, 1] / (sums[mask, 2] / sums[mask, 3])
        rows_found.append(
            SpeedUp(
                arm=frame.arms[arm],
                task=name,
                **_spread_fields(frame, sums[mask], ours[mask], claims, variances.get(name)),
                median=float(np.median(ratios)) if len(ratios) else None,
                end_to_end=pooled(end_to_end[mask & waits]),
                ttft_ratio=pooled(first[mask & reported]),
                ttft_interval=pooled_interval(first[mask & reported], frame.block[ours[mask & reported]], level),
                length_matched=pooled(to_common_length(sums[mask])),
                no_draft=no_draft.get(name),
                pairs_unequal=int((mask & ~equal).sum()),
                pairs_missing=0 if searching else requested * len(frame.blocks) - answered,
            )
        )
    return rows_found


def find_whole_speedup(frame: Frame, arm: int, arms: int = 1, variances: Variances = MappingProxyType({})) -> SpeedUp:
    """Return the speed-up of whole answers over all tasks: all tokens over the time from request to last byte.

    It counts tokens, so that unequal lengths do not decide. `arms`, `variances`: as in `find_speedups`.
    """
    sums, rows = _latency_pairs(frame, arm)
    return SpeedUp(
        arm=frame.arms[arm],
        task=ALL_TASKS,
        **_spread_fields(frame, sums, rows, arms, variances.get(ALL_TASKS)),
        median=None,
        end_to_end=pooled(sums),
        length_matched=None,
        pairs_unequal=0,
        pairs_missing=0,
    )


def _spread_fields(
    frame: Frame, sums: Floats, rows: Integers, claims: int, variance: Variance | None
) -> dict[str, Any]:
    """Return the fields of a `SpeedUp` that follow from the pairs' `sums`, (pairs, 4); `rows`: of the arm, (pairs,)."""
    block = frame.block[rows]
    in_blocks = {number: value for number in np.unique(block).tolist() if (value := pooled(sums[block == number]))}
    level = level_for(frame.manifest)
    spread = pooled_spread(sums, block, frame.prompt[rows], frame.task[rows], level, claims, variance)
    tokens, seconds, base_tokens, base_seconds = map(fsum, sums.T.tolist())
    return {
        "pooled": pooled(sums),
        "decode_rate": tokens / seconds if seconds else None,
        "baseline_rate": base_tokens / base_seconds if base_seconds else None,
        **spread,
        "by_block": list(in_blocks.values()),
        "blocks": [frame.blocks[number] + 1 for number in in_blocks],
        "lowest_block": min(in_blocks.values()) if len(in_blocks) > 1 else None,
        "highest_block": max(in_blocks.values()) if len(in_blocks) > 1 else None,
        "pairs": len(sums),
        "prompts": len(np.unique(frame.prompt[rows])),
    }


def find_latency_speedup(frame: Frame, arm: int) -> tuple[float | None, Interval | None]:
    """Return `SpeedUp.end_to_end` of an arm over all tasks, with its interval."""
    sums, rows = _latency_pairs(frame, arm)
    return pooled(sums), pooled_interval(sums, frame.block[rows], level_for(frame.manifest))


def _latency_pairs(frame: Frame, arm: int) -> tuple[Floats, Integers]:
    """Return `_whole_answers` of the pairs whose times are known, (pairs, 4), and the arm's rows, (pairs,)."""
    table = speed_table(frame, arm)
    sums, waits = _whole_answers(frame, arm, table)
    return sums[waits], frame.row_at[arm][table.timed][waits]


def _whole_answers(frame: Frame, arm: int, table: SpeedTable) -> tuple[Floats, Booleans]:
    """Return all tokens and the whole time of the pairs that `table` timed, (pairs, 4), and where both are known."""
    sums = speed_table(frame, arm, whole_answers=True).sums(table.timed)
    waits: Booleans = np.all(np.isfinite(sums) & (sums > 0), axis=1)
    return sums, waits


def _first_tokens(frame: Frame, ours: Integers, theirs: Integers) -> tuple[Floats, Booleans]:
    """Return the times to the first token of the pairs, (pairs, 4), and where both are known."""
    ttft_s = frame.column("ttft_s")
    requests = np.ones(len(ours))
    sums = np.stack([ttft_s[ours], requests, ttft_s[theirs], requests], axis=1)
    reported: Booleans = np.all(np.isfinite(sums) & (sums > 0), axis=1)
    return sums, reported


def to_common_length(sums: Floats) -> Floats:
    """Cut both answers of every pair to the length that both reached, each at its own mean rate; (pairs, 4)."""
    common = np.minimum(sums[:, 0], sums[:, 2])
    return np.stack([common, sums[:, 1] * common / sums[:, 0], common, sums[:, 3] * common / sums[:, 2]], axis=1)


def pooled(sums: Floats) -> float | None:
    """Return (Σ tokens / Σ seconds) of the arm over that of the baseline, of the columns that `sums` (n, 4) has."""
    tokens, seconds, base_tokens, base_seconds = sums.sum(axis=0)
    return float(tokens / seconds / (base_tokens / base_seconds)) if len(sums) else None


def find_throughput(frame: Frame, arm: int) -> list[Throughput]:
    """Return the decode rates of an arm, over all tasks and for each."""
    rows = frame.rows(arm)
    rows = rows[frame.answered[rows]]
    ttft_s, prefill_rate = frame.column("ttft_s"), frame.column("prompt_per_sec")
    return [
        Throughput(
            arm=frame.arms[arm],
            task=name,
            tok_per_sec=[] if name == ALL_TASKS else frame.rate[mask][np.isfinite(frame.rate[mask])].tolist(),
            records=int(np.isfinite(frame.rate[mask]).sum()),
            median=median(frame.rate[mask]),
            **_rates(frame, mask),
            ttft_median_s=median(ttft_s[mask]),
            **_bursts(frame, mask),
            prompt_tok_per_sec_median=median(prefill_rate[mask]),
        )
        for name, mask in ((name, rows[of_task]) for name, of_task in frame.by_task(rows))
    ]


def _rates(frame: Frame, rows: Integers) -> dict[str, float]:
    """Return the rate of all tokens over all time, and the mean of the prompts' own; empty where none was timed."""
    rows = rows[np.isfinite(frame.decode_s[rows]) & (frame.decode_s[rows] > 0)]
    if not len(rows):
        return {}
    sums = [np.bincount(frame.prompt[rows], column[rows]) for column in (frame.decoded, frame.decode_s)]
    prompt_rates = sums[0][sums[1] > 0] / sums[1][sums[1] > 0]
    return {"pooled_rate": float(sums[0].sum() / sums[1].sum()), "mean_rate": float(prompt_rates.mean())}


def _bursts(frame: Frame, rows: Integers) -> dict[str, float]:
    """Return what is said of the bursts in which tokens arrived; empty where no gap was timed."""
    timed = np.array([bool(frame.records[row].burst_gaps_s) for row in rows.tolist()], dtype=bool)
    rows = rows[timed & np.isfinite(frame.predicted[rows])]
    answers = [frame.records[row] for row in rows.tolist()]
    if not answers:
        return {}
    gaps = np.concatenate([record.burst_gaps_s or () for record in answers])
    gaps_of_bursts = {"burst_gap_median_s": float(np.median(gaps))}
    if len(gaps) >= P95_FROM:
        gaps_of_bursts["burst_gap_p95_s"] = float(np.quantile(gaps, 0.95))
    return gaps_of_bursts | {"tokens_per_burst": float(frame.predicted[rows].sum()) / (len(gaps) + len(answers))}


def median(values: Floats) -> float | None:
    """Return the median of the values that are known, `None` where none is."""
    finite: Booleans = np.isfinite(values)
    return float(np.median(values[finite])) if finite.any() else None


def without_claims(row: SpeedUp) -> SpeedUp:
    """Return a speed-up as a value alone, of which nothing can be claimed."""
    unknown = dict.fromkeys(("interval", "pointwise", "like_these", "within", "p", "more_blocks"))
    return row.model_copy(update={**unknown, "by_block": [], "blocks": []})


@dataclass(frozen=True)
class ArmSpeed:
    """How fast an arm is."""

    rows: list[SpeedUp]
    """Over all tasks, then of each."""
    whole: SpeedUp | None
    """Of whole answers, where requests share the engine: it then decides."""

    @property
    def decides(self) -> SpeedUp:
        """What the conclusion on the arm is drawn from."""
        return self.whole or next(row for row in self.rows if row.task == ALL_TASKS)


def find_speeds(groups: Sequence[ConditionRun], frames: Sequence[Frame]) -> dict[str, ArmSpeed]:
    """Return the speed of every compared arm of a run.

    Arms of a condition share their variances. Claims hold together over the arms of all conditions; an arm of
    synthetic acceptance makes none, and its variance is shared with others of its kind alone.
    """
    synthetic = {(number, arm) for number, frame in enumerate(frames) for arm in frame.compared
                 if is_synthetic(frame, arm)}  # fmt: skip
    claims = max(1, sum(len(frame.compared) for frame in frames) - len(synthetic))
    speeds: dict[tuple[int, int], ArmSpeed] = {}
    for number, (group, frame) in enumerate(zip(groups, frames, strict=True)):
        for lots in (False, True):
            arms = [arm for arm in frame.compared if ((number, arm) in synthetic) == lots]
            for blocks in {frame.blocks_of(arm) for arm in arms}:
                then = frame.until(blocks)  # as it was when these arms were decided
                decoding = _shared([block_variances(then, arm) for arm in arms])
                whole_answers = _shared([whole_variances(then, arm) for arm in arms]) if group.overlapping else []
                for index, arm in enumerate(arms):
                    if frame.blocks_of(arm) == blocks:
                        speeds[number, arm] = ArmSpeed(
                            find_speedups(then, arm, claims, decoding[index]),
                            find_whole_speedup(then, arm, claims, whole_answers[index]) if group.overlapping else None,
                        )
    if any(group.run.integrity.damage for group in groups):  # the values are shown, and nothing is claimed of them
        speeds = {
            key: ArmSpeed([without_claims(row) for row in speed.rows], speed.whole and without_claims(speed.whole))
            for key, speed in speeds.items()
        }
    return {frames[number].arms[arm]: speed for (number, arm), speed in speeds.items()}


def _shared(arms: Sequence[Variances]) -> list[Variances]:
    """Return every arm's variances, in each task shrunken towards those of the other arms."""
    tasks = arms[0] if arms else {}
    by_task = {task: shared_variances([arm_variances[task] for arm_variances in arms]) for task in tasks}
    return [{task: by_task[task][index] for task in tasks} for index in range(len(arms))]
