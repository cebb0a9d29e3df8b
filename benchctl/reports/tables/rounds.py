"""What a round is made of: what each part costs, each arm's time split into them, and forecasts beside measurements."""

from __future__ import annotations

from benchctl.analysis.results import ALL_TASKS, Analysis
from benchctl.analysis.rounds.results import PARTS, Forecast, Part, RoundFit, RoundSplit, UnitCost
from benchctl.reports import numbers
from benchctl.reports.columns import Column, Table, Tone, arm_column, interval, numeric, task_column

SOURCES = {
    "run": "timed in the run",
    "traced": "timed apart, every pass",
    "alone": "inferred: the draft alone",
    "difference": "inferred: what remains",
}
INFERRED = " (inferred)"
_EXPLAINED: dict[Part, str] = {
    "draft reads": "the draft model reads what was verified.",
    "search": "choosing what drafts next, with its share of all decoding.",
    "state": "checkpoints, going back to them, and reading accepted tokens again.",
    "not split": "drafting, verifying and what is left over: neither was timed.",
    "verify and left over": "what remains of a round, since verifying was not timed.",
    "left over": "what no other part explains; below 0 where parts that were timed apart took longer there.",
}


def unit_costs(analysis: Analysis) -> Table[UnitCost]:
    """A row for everything that was timed."""
    return Table(
        "unit-costs",
        "What each part costs",
        (
            Column("Arm", lambda row: row.arm, key="arm", heads=True),
            Column("What", lambda row: row.what, key="what", heads=True),
            numeric("Tokens at once", lambda row: row.width, _width, key="width"),
            numeric("Time", lambda row: row.seconds, _time, key="seconds"),
            numeric(
                "Target steps",
                lambda row: row.steps,
                numbers.decimal,
                key="steps",
                explain="over the time in which the baseline decodes one token.",
            ),
            numeric("Timed", lambda row: row.count, numbers.count, key="count"),
            Column("How", lambda row: SOURCES[row.source], key="source"),
        ),
        analysis.rounds.units,
    )


def _with_share(row: RoundSplit) -> str:
    seconds = row.parts.get("search")
    return _time(seconds) if seconds is None else f"{_time(seconds)} ({numbers.percent(seconds / row.seconds)})"


def round_splits(analysis: Analysis) -> Table[RoundSplit]:
    """A row an arm and task: where a round's time goes."""
    seen = [part for part in PARTS if any(part in row.parts for row in analysis.rounds.splits)]
    inferred = {part for row in analysis.rounds.splits for part in row.inferred}

    def column(part: Part) -> Column[RoundSplit]:
        return numeric(
            f"{part[0].upper()}{part[1:]}",
            lambda row: row.parts.get(part),
            _time,
            cell=_with_share if part == "search" else None,
            key=f"{part.replace(' ', '_')}_s",
            explain=" ".join(
                filter(None, (_EXPLAINED.get(part), "Inferred, not timed in this run." if part in inferred else ""))
            ),
        )

    return Table(
        "rounds",
        "Where a round's time goes",
        (
            arm_column(analysis, lambda row: row.arm),
            task_column(lambda row: row.task, key="task"),
            numeric("Rounds", lambda row: row.rounds, numbers.count, key="rounds"),
            numeric("Round", lambda row: row.seconds, _time, key="round_s", explain="all decoding over the rounds."),
            *(column(part) for part in seen),
            numeric("Tokens", lambda row: row.tokens, numbers.decimal, key="tokens", explain="decoded, a round."),
            numeric("Baseline's time for them", lambda row: row.tokens * row.step_s, _time, key="baseline_s"),
        ),
        analysis.rounds.splits,
        note="Means of a round.",
    )


def forecasts(analysis: Analysis) -> Table[Forecast]:
    """A row an arm: predicted from the other depths, beside measured."""
    return Table(
        "forecasts",
        "Predicted beside measured",
        (
            arm_column(analysis, lambda row: row.arm),
            numeric("Depth k", lambda row: row.depth, key="depth"),
            Column("From depths", lambda row: row.from_depths, key="from_depths"),
            numeric("Tokens a round", lambda row: row.tokens, numbers.decimal, key="tokens"),
            numeric("measured", lambda row: row.tokens_measured, numbers.decimal, key="tokens_measured"),
            numeric("Cost of a round", lambda row: row.round_cost, numbers.decimal, unit="steps", key="round_cost"),
            numeric("measured", lambda row: row.round_cost_measured, numbers.decimal, key="round_cost_measured"),
            numeric(
                "Speed-up predicted",
                lambda row: row.predicted,
                numbers.ratio,
                key="predicted",
                explain="without the arm's own rounds (inferred: a straight line through the depths beside it).",
            ),
            numeric("Measured", lambda row: row.measured, numbers.ratio, key="measured"),
            interval("95 % interval", lambda row: row.interval, key="interval"),
            numeric("Error", lambda row: row.error, _error, tone=_tone, key="error"),
            numeric(
                "From timed parts",
                lambda row: row.from_parts,
                numbers.ratio,
                key="from_parts",
                optional=True,
                explain="the arm's own tokens over the parts that were timed; nothing is fitted, what is left over "
                "is missing.",
            ),
        ),
        analysis.rounds.forecasts,
    )


def said_of_rounds(analysis: Analysis) -> list[str]:
    """Fits, forecasts that do not hold, and what could not be found, a sentence each."""
    found = analysis.rounds
    off = [f"{row.arm}, predicted {numbers.ratio(row.predicted)}, measured {numbers.ratio(row.measured)}: {row.why}"
           for row in found.forecasts if not row.holds]  # fmt: skip
    return [*map(_fit, found.fits), *off, *found.notes]


def overall_splits(analysis: Analysis) -> list[RoundSplit]:
    """The rows over all tasks."""
    return [row for row in analysis.rounds.splits if row.task == ALL_TASKS]


def _fit(fit: RoundFit) -> str:
    depths = ", ".join(map(str, fit.depths))
    if fit.refused or fit.intercept is None or fit.slope is None:
        return f"{fit.setting}, depths {depths}: no line is shown through the cost of a round, since {fit.refused}."
    checked = "unchecked: two depths always lie on a line"
    if len(set(fit.depths)) > 2:
        checked = f"r² {fit.r2:.3f}, largest residual {100 * (fit.worst or 0):.0f} %"
    return (
        f"{fit.setting}, depths {depths}: a round costs {fit.intercept:.2f} + {fit.slope:.2f} k target steps "
        f"(inferred: a fitted line; {checked})."
    )


def _time(seconds: float | None) -> str:
    if seconds is None:
        return numbers.ABSENT
    return f"{1000 * seconds:.2f} ms" if abs(seconds) < 0.1 else f"{1000 * seconds:.0f} ms"


def _width(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _error(value: float) -> str:
    return f"{100 * value:+.1f} %".replace("-", "−")


def _tone(row: Forecast) -> Tone:
    return "good" if row.holds else "bad"
