"""Two runs side by side, an arm a row."""

from __future__ import annotations

from benchctl.analysis.comparison.results import ArmComparison, Ratio, RunComparison
from benchctl.analysis.comparison.several import ArmRow, SeveralRuns
from benchctl.analysis.lossy import lossy_label
from benchctl.analysis.result import Interval
from benchctl.reports import numbers
from benchctl.reports.columns import Column, Name, Table, interval, numeric
from benchctl.reports.tables.output import OUTPUT_TONE
from benchctl.reports.tables.speed import SPEED_TONE

_PARTS = {"rate": "decode rates", "speedup": "speed-ups", "answers": "answers"}
MOST_NAMED = 6
"""Arms and runs that a sentence lists; the others are counted."""


def compared_arms(found: RunComparison) -> Table[ArmComparison]:
    """A row an arm: its speed and its output in both runs."""
    labels = {arm.arm: f"{arm.arm}{lossy_label(arm.lossy)}" for arm in found.arms}
    return Table(
        "compared",
        "Both runs",
        (
            Column("arm", lambda arm: arm.arm, cell=lambda arm: Name(labels[arm.arm]), heads=True),
            numeric("A tok/s", lambda arm: arm.rate.a, numbers.rate),
            numeric("B tok/s", lambda arm: arm.rate.b, numbers.rate),
            numeric("B/A", lambda arm: arm.rate.ratio, numbers.ratio),
            interval("95 % interval", lambda arm: arm.rate.interval, optional=True),
            Column("speed", lambda arm: arm.speed, tone=lambda arm: SPEED_TONE.get(arm.speed, "")),
            Column("speed-up A → B", lambda arm: arm.speedup.ratio, cell=_speedups),
            Column("accepted A → B", lambda arm: arm.acceptance_b, cell=_accepted),
            Column(
                "output A → B",
                lambda arm: arm.lossless_b,
                cell=lambda arm: _arrow(arm.lossless_a or numbers.ABSENT, arm.lossless_b or numbers.ABSENT),
                tone=lambda arm: OUTPUT_TONE.get(arm.lossless_b or "", ""),
            ),
            Column(
                "answers",
                lambda arm: arm.outputs.same,
                cell=_answers,
                tone=lambda arm: "open" if arm.outputs.differing or arm.outputs.undetermined else "good",
            ),
        ),
        found.arms,
    )


def several_arms(found: SeveralRuns) -> Table[ArmRow]:
    """A row for every arm of every run, compared with the first run's."""
    rows = sorted(
        found.rows, key=lambda row: (list(dict.fromkeys(other.arm for other in found.rows)).index(row.arm), row.run)
    )
    return Table(
        "several",
        "All runs",
        (
            Column("arm", lambda row: row.arm, cell=lambda row: Name(row.arm), heads=True, key="arm"),
            numeric("run", lambda row: row.run + 1, key="run"),
            numeric("tok/s", lambda row: row.rate, numbers.rate, key="tok_per_s"),
            numeric(
                "/ run 1",
                lambda row: row.rate_ratio and row.rate_ratio.ratio,
                numbers.ratio,
                key="rate_ratio",
                optional=True,
            ),
            interval(
                "95 % interval",
                lambda row: row.rate_ratio.interval if row.rate_ratio else None,
                key="rate_ratio",
                optional=True,
            ),
            Column(
                "speed",
                lambda row: row.speed,
                tone=lambda row: SPEED_TONE.get(row.speed or "", ""),
                optional=True,
                key="speed",
            ),
            numeric(
                "speed-up",
                lambda row: row.speedup,
                cell=lambda row: "baseline" if row.is_baseline else numbers.ratio(row.speedup),
                key="speedup",
            ),
            interval("of its own baseline", lambda row: row.interval, key="speedup"),
            numeric(
                "speed-up / run 1",
                lambda row: row.speedup_ratio and row.speedup_ratio.ratio,
                numbers.ratio,
                key="speedup_ratio",
                optional=True,
            ),
            interval(
                "95 %",
                lambda row: row.speedup_ratio.interval if row.speedup_ratio else None,
                key="speedup_ratio",
                optional=True,
            ),
            numeric("accepted", lambda row: row.acceptance, numbers.percent, key="acceptance"),
            Column(
                "output",
                lambda row: row.lossless,
                tone=lambda row: OUTPUT_TONE.get(row.lossless or "", ""),
                key="output",
            ),
            Column(
                "answers as run 1",
                lambda row: row.answers_same,
                cell=_same_answers,
                key="answers_same",
                optional=True,
            ),
            Column("", lambda row: row.answers_differing, key="answers_differing"),
            Column("", lambda row: "; ".join(f"{k}: {v}" for k, v in row.not_compared.items()), key="not_compared"),
        ),
        rows,
    )


def _interval(found: Ratio | None) -> Interval | None:
    return None if found is None else found.interval


def _same_answers(row: ArmRow) -> str:
    if row.answers_same is None:
        return numbers.ABSENT
    parts = [f"{row.answers_same} same"]
    parts += [f"{row.answers_differing} differ"] if row.answers_differing else []
    parts += [f"{row.answers_unsteady} not reproducible"] if row.answers_unsteady else []
    return ", ".join(parts)


def unlike_work(found: SeveralRuns) -> list[str]:
    """Return what was not compared and why, a sentence for each reason."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for row in found.rows:
        for why in dict.fromkeys(row.not_compared.values()):
            parts = ", ".join(_PARTS[part] for part, reason in row.not_compared.items() if reason == why)
            by_reason.setdefault((parts, why), []).append(f"{row.arm} of run {row.run + 1}")
    sentences = []
    for (parts, why), arms in by_reason.items():
        listed = ", ".join(arms[:MOST_NAMED])
        listed += f" and {len(arms) - MOST_NAMED} more" if len(arms) > MOST_NAMED else ""
        sentences.append(f"{parts.capitalize()} not compared with run 1: {why} ({listed}).")
    for arm, runs in found.alone.items():
        where = ", ".join(str(number + 1) for number in runs[:MOST_NAMED]) + (", …" if len(runs) > MOST_NAMED else "")
        sentences.append(f"{arm} is not in run 1, so not compared: run {where}.")
    return sentences


def _arrow(a: str, b: str) -> str:
    return a if a == b else f"{a} → {b}"


def _speedups(arm: ArmComparison) -> str:
    return "baseline" if arm.is_baseline else _arrow(numbers.ratio(arm.speedup.a), numbers.ratio(arm.speedup.b))


def _accepted(arm: ArmComparison) -> str:
    return _arrow(numbers.percent(arm.acceptance_a), numbers.percent(arm.acceptance_b))


def _answers(arm: ArmComparison) -> str:
    found = arm.outputs
    if not found.differing and not found.undetermined:
        return "the same"
    parts = [f"{found.same} same"]
    if found.differing:
        parts.append(f"{len(found.differing)} differ")
    if found.undetermined:
        parts.append(f"{len(found.undetermined)} undetermined")
    return ", ".join(parts)
