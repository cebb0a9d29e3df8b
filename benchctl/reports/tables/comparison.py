"""Two runs side by side, an arm a row."""

from __future__ import annotations

from benchctl.analysis.comparison.results import ArmComparison, RunComparison
from benchctl.analysis.lossy import lossy_label
from benchctl.reports import numbers
from benchctl.reports.columns import Column, Name, Table, interval, numeric
from benchctl.reports.tables.output import OUTPUT_TONE
from benchctl.reports.tables.speed import SPEED_TONE


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
