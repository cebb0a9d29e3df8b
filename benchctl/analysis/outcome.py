"""What a run comes to: its fastest setting of all, what speculation does for each target, and what a person feels.

Values only, read from the other findings; `benchctl.words.outcome` says them in sentences.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from benchctl.analysis.advice import damaged_arms, inactive_arms, shown_to_draft
from benchctl.analysis.conditions.results import DIMENSIONS
from benchctl.analysis.conditions.sweep import axis_rows
from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.result import Result
from benchctl.analysis.verdict import synthetic_arms

if TYPE_CHECKING:
    from benchctl.analysis.decision_results import Verdict
    from benchctl.analysis.results import Analysis
    from benchctl.analysis.speed_results import SpeedUp

ANSWER_TOKENS = 200
"""The length of the answer whose seconds are compared."""
CLOSE = 0.1
"""Two targets whose rates differ by less than this share are both named: nothing shows which of them is faster."""
State = Literal["busy", "hot", "short of memory", "unsteady"]
_STATES: dict[str, State] = {
    "high-load": "busy",
    "throttling": "hot",
    "swapping": "short of memory",
    **dict.fromkeys(("drift", "unsteady", "clock-jump"), "unsteady"),
}
"""By warning. A pause or a disturbed cell is not among them: such a cell is measured again, or left out."""


class Setting(Result):
    """A baseline or an arm that could be run, and how fast it decodes."""

    arm: str
    rate: float
    """Tokens a second after the first: the number of the first table."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Of the target that it runs on, by varied axis of the recipe."""
    speculates: bool
    answer_s: float | None = None
    """Seconds of an answer of `ANSWER_TOKENS` tokens: the median time to the first token, and the others at `rate`."""


class TaskEffect(Result):
    """What an arm does to a task; the interval holds together with those of all arms and tasks."""

    task: str
    speedup: float
    speed: Literal["faster", "slower", "undecided"]


class TargetOutcome(Result):
    """What speculation does for a target: the arms that share a baseline."""

    baseline: str
    labels: dict[str, str]
    rate: float | None
    """Of the baseline alone."""
    faster: list[str]
    """The arms that are shown to be faster, the fastest first; sound and shown to have drafted."""
    open: list[str]
    """Those that may be faster, the fastest first."""


class Felt(Result):
    """What a person who uses an arm feels, against its target alone. `None`: not reported."""

    arm: str
    """Of its target the fastest that is shown to be faster, or else the fastest that drafted."""
    request: float | None
    """The speed-up of whole requests, prompt included."""
    first_token: float | None
    """The time to the first token over the baseline's."""
    answer_s: tuple[float, float] | None
    """Seconds of an answer of `ANSWER_TOKENS` tokens by the target alone, and by the arm: see `Setting.answer_s`."""
    memory_added: int | None
    """Bytes beside the baseline's, on the GPU where engines report it, else in memory."""
    memory_left: int | None
    """Bytes that the arm leaves."""
    on_device: bool
    energy: float | None
    """Joules a token over the baseline's."""
    energy_of: list[str]
    """The components whose energy was measured."""
    energy_untold: str | None


class Outcome(Result):
    """What a run comes to."""

    fastest: Setting | None
    """`None` where rates of several conditions cannot be compared, or none is known. Of a run without any interval the
    fastest in it, whatever that is; else an arm must be shown to be faster than its target alone."""
    close: list[Setting]
    """Other targets' fastest settings that are about as fast."""
    targets: list[TargetOutcome]
    disturbed: list[State]
    """What disturbed the machine while it measured."""
    felt: list[Felt]
    """Of the best arm of each target: that of the fastest setting first, then the arm with the most to gain."""


def find_outcome(analysis: Analysis) -> Outcome:
    """Return what an analysis comes to."""
    excluded = excluded_arms(analysis)
    labels = {row.level.arm: row.labels for row in axis_rows(analysis)}
    groups: dict[str, list[Verdict]] = {}
    for verdict in analysis.verdicts:
        groups.setdefault(analysis.compared[verdict.arm].baseline, []).append(verdict)
    over_tasks = [row for row in analysis.throughput if row.task == ALL_TASKS]
    rates = {row.arm: row.pooled_rate for row in over_tasks}
    first = {row.arm: row.ttft_median_s for row in over_tasks}
    targets, best = [], []
    nothing_shown = all(verdict.interval is None for verdict in analysis.verdicts)
    for baseline, arms in groups.items():
        sound = sorted((row for row in arms if row.arm not in excluded and row.speedup), key=_falling)
        faster = [row.arm for row in sound if row.speed == "faster" and shown_to_draft(row)]
        maybe = [row.arm for row in sound if row.speed in ("undecided", "unknown") and (row.speedup or 0) > 1]
        named = labels.get(baseline, {})
        target = TargetOutcome(baseline=baseline, labels=named, rate=rates.get(baseline), faster=faster, open=maybe)
        targets.append(target)
        candidates = [*faster, *(maybe if nothing_shown else [])]
        row = analysis.speedup_of(candidates[0]) if candidates else None
        rate = rates.get(baseline) if row is None else row.decode_rate or _over(rates.get(baseline), row.pooled)
        if rate is not None:
            arm = candidates[0] if candidates else baseline
            seconds = _answer_s(first.get(arm), rate)
            best.append(Setting(arm=arm, rate=rate, labels=named, speculates=bool(candidates), answer_s=seconds))
    fastest = max(best, key=lambda setting: setting.rate, default=None) if _one_condition(analysis) else None
    return Outcome(
        fastest=fastest,
        close=[row for row in best if fastest and row is not fastest and row.rate > (1 - CLOSE) * fastest.rate],
        targets=targets,
        disturbed=disturbances(analysis),
        felt=sorted(
            _best_felt(analysis, first, [arm for arm in analysis.verdicts if arm.arm not in excluded]),
            key=lambda row: fastest is None or row.arm != fastest.arm,
        ),
    )


def disturbances(analysis: Analysis) -> list[State]:
    """Return what disturbed the machine while it measured, by the run's warnings."""
    return list(dict.fromkeys(_STATES[warning.id] for warning in analysis.warnings if warning.id in _STATES))


def excluded_arms(analysis: Analysis) -> set[str]:
    """Return the arms that nobody should run for their speed: damaged, lossy by design, synthetic, or not drafting."""
    unsound = {row.arm for row in analysis.verdicts if row.lossy or row.attestation in ("failed", "off")}
    inactive = {*inactive_arms(analysis)}
    return unsound | inactive | damaged_arms(analysis).keys() | synthetic_arms(analysis.verdicts)


def task_effects(analysis: Analysis, arm: str) -> list[TaskEffect]:
    """Return what an arm does to each task; empty where no two tasks are shown to differ."""
    rows = [row for task in analysis.tasks if (row := analysis.speedup_of(arm, task)) and row.pooled and row.interval]
    effects = [TaskEffect(task=row.task, speedup=row.pooled or 0.0, speed=_word(row)) for row in rows]
    ends = [row.interval for row in rows if row.interval]
    apart = ends and max(end.low for end in ends) > min(end.high for end in ends)
    return effects if apart or len({effect.speed for effect in effects}) > 1 else []


def _word(row: SpeedUp) -> Literal["faster", "slower", "undecided"]:
    if row.interval is None or not row.interval.excludes_one:
        return "undecided"
    faster = row.interval.low > 1
    turned = row.length_matched is not None and (row.length_matched > 1) != faster
    return "undecided" if turned else "faster" if faster else "slower"


def _falling(verdict: Verdict) -> float:
    return -(verdict.speedup or 0.0)


def _over(rate: float | None, ratio: float | None) -> float | None:
    return None if rate is None or ratio is None else rate * ratio


def _one_condition(analysis: Analysis) -> bool:
    """Whether all arms ran under the same condition, one request at a time, so that their rates can be compared."""
    levels = analysis.sweep.levels if analysis.sweep else []
    conditions = {tuple(getattr(row, name) for name in DIMENSIONS) for row in levels}
    return len(conditions) < 2 and not any(row.overlapping for row in levels)


def _best_felt(analysis: Analysis, first: Mapping[str, float | None], arms: Sequence[Verdict]) -> list[Felt]:
    """Return what a person feels of the best arm of each target; `first`: seconds to the first token by arm."""
    shown = {arm.arm for arm in arms if arm.speed == "faster" and shown_to_draft(arm)}
    best: dict[str, SpeedUp] = {}
    for arm in arms:
        row = analysis.speedup_of(arm.arm)
        if row is None or not row.pooled or arm.whole_answers:
            continue
        baseline = analysis.compared[arm.arm].baseline
        best[baseline] = max(best.get(baseline, row), row, key=lambda other: _gain(other, shown))
    ordered = sorted(best.items(), key=lambda item: _gain(item[1], shown), reverse=True)
    return [_felt(analysis, first, baseline, row) for baseline, row in ordered]


def _gain(row: SpeedUp, shown: Collection[str]) -> tuple[bool, float]:
    return row.arm in shown, row.pooled or 0.0


def _felt(analysis: Analysis, first: Mapping[str, float | None], baseline: str, row: SpeedUp) -> Felt:
    alone_s = _answer_s(first.get(baseline), row.baseline_rate)
    with_arm_s = _answer_s(first.get(row.arm), row.decode_rate)
    resources = {used.arm: used for used in analysis.resources}
    of_arm, of_baseline = resources.get(row.arm), resources.get(baseline)
    on_device = any(used.device_bytes for used in analysis.resources)
    needed = None if of_arm is None or of_arm.device_reserved else of_arm
    size, alone = (
        None if used is None else used.device_bytes if on_device else used.resident_bytes
        for used in (needed, of_baseline)
    )
    return Felt(
        arm=row.arm,
        request=row.end_to_end,
        first_token=row.ttft_ratio,
        answer_s=None if alone_s is None or with_arm_s is None else (alone_s, with_arm_s),
        memory_added=None if size is None or alone is None else size - alone,
        memory_left=None if needed is None else needed.device_left if on_device else needed.memory_left,
        on_device=on_device,
        energy=None if of_arm is None else of_arm.against_baseline,
        energy_of=[] if of_arm is None else of_arm.told_by,
        energy_untold=None if of_arm is None else of_arm.untold,
    )


def _answer_s(first_s: float | None, rate: float | None) -> float | None:
    return None if first_s is None or not rate else first_s + (ANSWER_TOKENS - 1) / rate
