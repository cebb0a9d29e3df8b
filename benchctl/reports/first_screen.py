"""The table that a run is decided by, for a screen of 80 columns: a row an arm, the baseline and its second cell first.

Of more arms than fit, those are kept that must be seen: what is recommended, violations and failed attestations.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from benchctl.analysis.advice import damaged_arms, inactive_arms
from benchctl.analysis.conditions.split import closed_levels, open_levels
from benchctl.analysis.decision_results import Verdict
from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.outcome import find_outcome
from benchctl.analysis.result import Interval
from benchctl.analysis.results import Analysis
from benchctl.analysis.speed_results import SpeedUp
from benchctl.analysis.verdict import synthetic_arms
from benchctl.reports.columns import (
    DOUBTS,
    WHAT_AN_ARM_IS,
    Column,
    Table,
    Tone,
    acceptance_rate,
    arm_column,
    interval,
    numeric,
)
from benchctl.reports.tables.output import WHAT_POWER_IS, correct_column, output_column
from benchctl.reports.tables.speed import SPEED_TONE
from benchctl.reports.tables.sweep import summary
from benchctl.text import listed, plural
from benchctl.words import accuracy as accuracy_words
from benchctl.words import numbers
from benchctl.words.verdict import contrary

MOST_ARMS = 6
"""Arms with a row of their own, unless another number is asked for."""
NOT_IDENTICAL = {
    "exact": "Exact: differs, and every token is what the target computes in the arm's own batches.",
    "consistent with the target": "Consistent: differs no more often and no further than rounding explains.",
}
"""What two verdicts mean."""


@dataclass(frozen=True)
class ScreenRow:
    """A baseline, its second cell, or an arm that is compared with it."""

    arm: str
    rate: float | None
    """Tokens after the first over their time, per second: of a baseline over all its answers, of an arm over those
    that its speed-up is of; `None` where requests overlap, since whole answers decide there."""
    speed: SpeedUp | None
    verdict: Verdict | None
    """`None` for a baseline."""
    power: float | None
    """With which a violation would have been found; `None` where nothing had to be scored."""
    replayed: int | None
    """Rounds that the target alone read again, where that decides the verdict; the power then says nothing more."""
    inactive: bool

    @property
    def speedup(self) -> float | None:
        """Over the baseline's first cell: of decoding, or of whole answers where requests overlap."""
        return self.verdict.speedup if self.verdict else self.speed.pooled if self.speed else None

    @property
    def alone(self) -> float | None:
        """The baseline's rate in the answers that the speed-up is of."""
        return self.speed.baseline_rate if self.verdict and self.speed and not self.inactive else None

    @property
    def ends(self) -> Interval | None:
        """The interval that decides: that of all claims together, where it is known."""
        return self.verdict.interval if self.verdict else self.speed.interval if self.speed else None

    @property
    def tone(self) -> Tone:
        """Of its speed-up."""
        if self.verdict is None or self.inactive:
            return "quiet"
        return SPEED_TONE.get(self.verdict.speed, "open")


def screen_rows(analysis: Analysis) -> list[ScreenRow]:
    """A row a baseline, its second cell, and each arm, in the order of the recipe."""
    rates = {row.arm: row.pooled_rate for row in analysis.throughput if row.task == ALL_TASKS}
    # Where requests overlap whole answers decide, and the speed-up of decoding is not shown.
    overlapping = {row.arm for row in analysis.sweep.levels if row.overlapping} if analysis.sweep else set()
    decoding = [row for row in [*analysis.speedups, *analysis.second_cells] if row.task == ALL_TASKS]
    speeds = {row.arm: row for row in decoding if row.arm not in overlapping}
    power = {row.arm: row.stated.chance for row in analysis.losslessness if row.stated is not None}
    replayed = {row.arm: row.replayed.rounds for row in analysis.losslessness if row.replayed is not None}
    inactive, verdicts = set(inactive_arms(analysis)), {verdict.arm: verdict for verdict in analysis.verdicts}
    by_arm = {**dict.fromkeys([*sorted(analysis.baselines), *(row.arm for row in analysis.second_cells)]), **verdicts}
    by_arm |= dict.fromkeys(by_arm.keys() & analysis.baselines)
    return [
        ScreenRow(
            arm,
            rates.get(arm) if verdict is None else speeds[arm].decode_rate if arm in speeds else None,
            speeds.get(arm),
            verdict,
            power.get(arm),
            replayed.get(arm),
            arm in inactive,
        )
        for arm, verdict in by_arm.items()
    ]


def decisive(analysis: Analysis, limit: int | None = MOST_ARMS, *, brief: bool = False) -> tuple[Table[Any], int]:
    """Return the first table of a run, and how many arms it leaves out: where requests overlap that of the levels."""
    levels = closed_levels(analysis) + open_levels(analysis)
    return (summary(analysis, levels), 0) if levels else first_screen(analysis, limit, brief=brief)


def first_screen(
    analysis: Analysis, limit: int | None = MOST_ARMS, *, brief: bool = False
) -> tuple[Table[ScreenRow], int]:
    """Return the table with `limit` arms (`None`: all) and those that must be seen, and how many it leaves out.

    `brief`: for a terminal of 80 columns. Where an arm is not compared with all answers of the baseline, the baseline's
    rate in those that it is compared with stands beside its own, and takes the place of the power.
    """
    rows = screen_rows(analysis)
    shown = rows if limit is None else _kept(rows, _must_be_seen(analysis), limit)
    left_out = len(rows) - len(shown)
    alone = brief and bool(_other_rates(analysis, shown))
    if alone:
        shown = _without_repeated_baselines(analysis, shown)
    certainty: list[Column[ScreenRow]] = [
        numeric("Replayed", "replayed", numbers.count, optional=True),
        numeric("Power", "power", lambda power: f"{100 * power:.0f} %", optional=True),
    ]
    return (
        Table(
            "first-screen",
            "Arms",
            (
                arm_column(analysis),
                numeric("tok/s" if brief else "Decode tok/s", "rate", numbers.rate),
                *([numeric("alone", "alone", numbers.rate)] if alone else []),
                numeric("Speed-up", "speedup", cell=_speed, tone=attrgetter("tone")),
                interval("95 % interval", lambda row: None if row.inactive else row.ends, optional=True),
                acceptance_rate("Accepted", "verdict.acceptance", "verdict.acceptance_doubt"),
                output_column("Output", "verdict.lossless", write=_output),
                *([] if brief else certainty),
                correct_column(analysis),
            ),
            shown,
            note=_brief_note(analysis, shown, alone=alone) if brief else _note(analysis, shown),
        ),
        left_out,
    )


def _without_repeated_baselines(analysis: Analysis, rows: list[ScreenRow]) -> list[ScreenRow]:
    """The rows without the baselines of slower targets, whose rates stand beside those of their arms."""
    outcome = find_outcome(analysis)
    if outcome.fastest is None or len(outcome.targets) < 2 or analysis.second_cells:
        return rows
    rivals = {setting.arm for setting in (outcome.fastest, *outcome.close)}
    repeated = {analysis.compared[row.arm].baseline for row in rows if row.alone is not None} - rivals
    return [row for row in rows if row.arm not in repeated]


def _brief_note(analysis: Analysis, rows: list[ScreenRow], *, alone: bool) -> str:
    """What a reader needs to read these rows; the page and `-v` have the rest."""
    same = "Arm: a setting. tok/s: decoding; alone: without speculation, same repetitions."
    usual = "Arm: a setting. tok/s: decoding."
    if any(row.verdict and row.verdict.acceptance is not None for row in rows):
        usual = f"{usual} Accepted: share of drafted tokens kept."
    sentences = [same if alone else usual, *_second_cells(analysis)]
    if not any(row.ends for row in rows) and any(row.verdict for row in rows):
        sentences.append(_no_interval(analysis))
    doubts = {row.verdict.acceptance_doubt for row in rows if row.verdict}
    sentences += [sentence for doubt, sentence in DOUBTS.items() if doubt in doubts]
    if analysis.accuracy:
        sentences.append(accuracy_words.sentence(analysis.accuracy))
    return " ".join(sentences)


def _second_cells(analysis: Analysis) -> list[str]:
    names = [row.arm for row in analysis.second_cells if row.task == ALL_TASKS]
    return [f"{listed(names)}: the baseline once more, so its distance from 1.00× is noise."] if names else []


def _no_interval(analysis: Analysis) -> str:
    needed = " (three are needed)" if any(row.pairs for row in analysis.speedups) else ""
    return f"{numbers.no_interval(analysis)}{needed}.".capitalize()


def _note(analysis: Analysis, rows: list[ScreenRow]) -> str:
    """What words and numbers of these rows mean, as far as they stand there."""
    sentences = [WHAT_AN_ARM_IS, *_second_cells(analysis)]
    sentences += _other_rates(analysis, rows)
    sentences += [f"{row.arm}: {direction}" for row in rows if row.verdict and row.speed and not row.inactive
              and (direction := contrary(row.speed.pooled, row.speed.median))]  # fmt: skip
    if any(row.ends for row in rows):
        sentences.append("Intervals hold for all arms together.")
    elif any(row.verdict for row in rows):
        sentences.append(_no_interval(analysis))
    if any(row.replayed is not None for row in rows):
        sentences.append("Replayed: rounds that the target alone read again in the same batches.")
    if any(row.power is not None for row in rows):
        sentences.append(WHAT_POWER_IS)
    doubts = {row.verdict.acceptance_doubt: 0 for row in rows if row.verdict}
    sentences += [sentence for doubt, sentence in DOUBTS.items() if doubt in doubts]
    if analysis.accuracy:
        sentences.append(accuracy_words.sentence(analysis.accuracy))
    verdicts = {row.verdict.lossless for row in rows if row.verdict}
    if len({analysis.compared[row.arm].baseline for row in rows if row.verdict}) > 1:
        sentences.append("Output: against the arm's own baseline; baselines are not compared with each other.")
    sentences += [sentence for verdict, sentence in NOT_IDENTICAL.items() if verdict in verdicts]
    return " ".join(sentences)


def _other_rates(analysis: Analysis, rows: list[ScreenRow]) -> list[str]:
    """The baseline's rate that arms are compared with, where it is not the one in the table.

    An arm that was measured in some blocks alone, or whose pairs are not all answers, has the baseline of these pairs.
    Where the baseline has a second cell, arms are compared with both cells.
    """
    shown = {row.arm: numbers.rate(row.rate) for row in rows if row.verdict is None}
    arms: dict[tuple[int, str], list[str]] = {}
    for row in rows:
        baseline_rate = row.speed.baseline_rate if row.verdict and row.speed and not row.inactive else None
        if (
            baseline_rate is not None
            and row.speed
            and numbers.rate(baseline_rate) != shown.get(analysis.compared[row.arm].baseline)
        ):
            arms.setdefault((len(row.speed.by_block), numbers.rate(baseline_rate)), []).append(row.arm)
    sentences = []
    for (blocks, rate), names in arms.items():
        are = plural(len(names), "is", "are")
        if blocks < analysis.blocks:
            where = f"{listed(names)} {are} compared in {blocks} of {analysis.blocks} repetitions (blocks); in those"
        else:
            where = f"In the answers that {listed(names)} {are} compared with,"
        sentences.append(f"{where} the baseline made {rate} tok/s.")
    return sentences


def _kept(rows: list[ScreenRow], required: set[str], limit: int) -> list[ScreenRow]:
    """The rows of the baselines and of what must be seen, and the fastest of the others, as many as there is room."""
    arms = [row for row in rows if row.verdict is not None]
    optional = [row for row in arms if row.arm not in required]
    fastest = sorted(optional, key=lambda row: -(row.verdict.speedup or 0.0 if row.verdict else 0.0))
    room = max(0, limit - (len(arms) - len(optional)))
    shown = required | {row.arm for row in fastest[:room]}
    return [row for row in rows if row.verdict is None or row.arm in shown]


def never_folded(analysis: Analysis) -> set[str]:
    """The arms of which all must be seen: their output is damaged, or they did not run as the recipe requests."""
    violating = {verdict.arm for verdict in analysis.verdicts if verdict.lossless == "violation"}
    drafted = (violating | damaged_arms(analysis).keys()) - synthetic_arms(analysis.verdicts)
    return drafted | {verdict.arm for verdict in analysis.verdicts if verdict.attestation in ("failed", "off")}


def _must_be_seen(analysis: Analysis) -> set[str]:
    groups = analysis.decision.groups if analysis.decision else []
    advised = {row.arm for group in groups for row in (group.overall, *group.tasks) if row.arm}
    return advised | never_folded(analysis)


def _speed(row: ScreenRow) -> str:
    return "inactive" if row.inactive else numbers.ratio(row.speedup)


def _output(verdict: str) -> str:
    """A word: `consistent with the target` is explained in the note."""
    return verdict.removesuffix(" with the target")
