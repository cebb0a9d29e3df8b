"""What the terminal and the site say of the runs of a workload: a table of rows, and sentences on every series."""

from __future__ import annotations

from collections.abc import Sequence

from benchctl.experiments.history.series import Row, Series, Step
from benchctl.reports import numbers
from benchctl.reports.columns import Column, Name, numeric
from benchctl.reports.tables.output import OUTPUT_TONE
from benchctl.text import listed, percent

MOST_LISTED = 4
"""Of builds and of what else changed, in a sentence; of changes of the output."""


def _own_interval(row: Row) -> str:
    return numbers.ABSENT if row.low is None or row.high is None else f"{row.low:.2f} to {row.high:.2f}×"


COLUMNS: tuple[Column[Row], ...] = (
    Column("date", "created_at", lambda moment: numbers.moment(moment)[:10]),
    Column("run", "run", heads=True),
    Column("build", "engine", wrap=True),
    Column("arm", "arm", Name),
    numeric("speed-up", "speedup", numbers.ratio),
    numeric("95 %", "low", cell=_own_interval),
    numeric("accept. length", "acceptance_length", numbers.decimal, optional=True),
    Column("output", "lossless", tone=lambda row: OUTPUT_TONE.get(row.lossless or "", "open")),
)


def sentences(every: Sequence[Series]) -> list[tuple[str, str]]:
    """Return what is said of a workload's series, with the style of each sentence; what holds for several arms once."""
    arms: dict[tuple[str, str], list[str]] = {}
    for series in every:
        for styled in _of_series(series):
            arms.setdefault(styled, []).append(series.arm)
    return [(f"{listed(of)}: {sentence}", style) for (sentence, style), of in arms.items()]


def _of_series(series: Series) -> list[tuple[str, str]]:
    said = [(_of_step(step), "green" if step.ratio > 1 else "red") for step in series.steps]
    said += [
        (f"output {turn.after} from run {turn.run} on ({turn.engine}), {turn.before} before.", "yellow")
        for turn in series.turns[-MOST_LISTED:]
    ]
    if len(series.turns) > MOST_LISTED:
        said.append((f"the output changed {len(series.turns) - MOST_LISTED} times before that.", "dim"))
    if series.untested is not None:
        return [*said, (f"no step can be found. {series.untested}", "dim")]
    noise = f"one run varies by {percent(series.noise or 0)} (standard deviation, {series.repeated} repeated)"
    seen = f"; a step of {percent(series.seen)} with the last build is found 8 times in 10" if series.seen else ""
    where = "" if series.tested == series.runs else f" of the {series.tested} runs that can be tested"
    return [*said, (f"{'no other step' if series.steps else 'no step'}{where}: {noise}{seen}.", "dim")]


def _of_step(step: Step) -> str:
    """Return a step in sentences: how large, since when, and what else is known of it."""
    change = "faster" if step.ratio > 1 else "slower"
    size, low, high = (100 * (ratio - 1) for ratio in (step.ratio, step.low, step.high))
    said = f"{abs(size):.1f} % {change} ({low:+.1f} to {high:+.1f} %) from run {step.run} on"
    said += f", with build {step.engine}." if step.new_build else f", within build {step.engine}: it is not the build."
    others = [engine for engine in step.may_have_begun if engine != step.engine]
    if others:
        said += f" It may have begun with {' or '.join(others[:MOST_LISTED])} as well."
    if step.runs_after == 1:
        said += " One run alone shows it: measure this build again."
    if step.baseline_ratio is not None and abs(step.baseline_ratio - 1) > 0.01:
        said += f" The baseline's own decode rate is {step.baseline_ratio:.2f} times what it was."
    if step.acceptance_before is not None and step.acceptance_after is not None:
        said += f" Acceptance length {step.acceptance_before:.2f} before, {step.acceptance_after:.2f} after."
    if step.changed:
        more = f" and {len(step.changed) - MOST_LISTED} more" if len(step.changed) > MOST_LISTED else ""
        said += f" Also changed: {'; '.join(step.changed[:MOST_LISTED])}{more}."
    return said
