"""The parts of a round: the cost of each, each arm's time split into them, and forecasts against measurements."""

from __future__ import annotations

from collections.abc import Sequence

from benchctl.analysis.results import Analysis
from benchctl.analysis.round_model import predictors
from benchctl.analysis.round_results import PARTS, Forecast, Part, RoundFit, RoundSplit, UnitCost
from benchctl.data.rounds import LeftOut
from benchctl.reports.columns import Column, Table, Tone, arm_column, interval, numeric, task_column
from benchctl.words import numbers

SOURCES = {
    "run": "timed in the run",
    "traced": "timed separately, every pass",
    "alone": "inferred: the draft alone",
    "difference": "inferred: the remainder",
}
_ESTIMATED = "Its time is estimated, not measured in this run."
_EXPLAINED: dict[Part, str] = {
    "draft reads": "the draft model reads the verified tokens.",
    "search": "choosing the next drafter, with its share of all decoding.",
    "state": "saving checkpoints, restoring them, and reading accepted tokens again.",
    "plain steps": "tokens decoded without a draft.",
    "not split": "drafting, verifying and the rest; none was timed.",
    "verify and left over": "the rest of a round; verifying was not timed.",
    "left over": "not explained by the other parts; negative where separately timed parts took longer than in the run.",
}


def unit_costs(units: Sequence[UnitCost]) -> Table[UnitCost]:
    """A row for everything that was timed."""
    return Table(
        "unit-costs",
        "Cost of each part",
        (
            Column("Arm", "arm", heads=True),
            Column("Part", "what", heads=True),
            numeric("Tokens at once", "width", _width),
            numeric("Time", "seconds", _time),
            numeric("Target steps", "steps", numbers.decimal).means("time over the baseline's time for a token."),
            numeric("Timed", "count", numbers.count),
            Column("Source", lambda row: SOURCES[row.source], key="source"),
        ),
        units,
    )


def _with_share(row: RoundSplit) -> str:
    seconds = row.parts.get("search")
    return numbers.ABSENT if seconds is None else f"{_time(seconds)} ({numbers.percent(seconds / row.seconds)})"


def round_splits(analysis: Analysis) -> Table[RoundSplit]:
    """A row for each arm and task: the parts of a round's time."""
    present = [part for part in PARTS if any(part in row.parts for row in analysis.rounds.splits)]
    inferred = {part for row in analysis.rounds.splits for part in row.inferred}

    def column(part: Part) -> Column[RoundSplit]:
        return numeric(
            f"{part[0].upper()}{part[1:]}",
            lambda row: row.parts.get(part),
            _time,
            cell=_with_share if part == "search" else None,
            key=f"{part.replace(' ', '_')}_s",
        ).means(" ".join(filter(None, (_EXPLAINED.get(part), _ESTIMATED if part in inferred else ""))))

    return Table(
        "rounds",
        "Where a round's time goes",
        (
            arm_column(analysis),
            task_column(),
            numeric("Rounds", "rounds", numbers.count),
            numeric("Round", lambda row: row.seconds, _time, key="round_s").means("decode time over the rounds."),
            *(column(part) for part in present),
            numeric("Tokens per round", "drafted_round_tokens", numbers.decimal).means(
                "accepted tokens and the target's own, in rounds with a draft."
            ),
            numeric("with plain steps", "tokens", numbers.decimal).means(
                "all decoded tokens over the drafted rounds, including those of steps without a draft."
            ),
            numeric("Baseline", lambda row: row.tokens * row.step_s, _time, key="baseline_s").means(
                "its time for the tokens with plain steps."
            ),
            numeric("TPT", "tokens_per_time", numbers.ratio, optional=True, least_width=100).means(
                "tokens per time of drafting and verifying alone, E / (k·c + v), over the baseline's."
            ),
        ),
        analysis.rounds.splits,
        note="Means per drafted round, each with its share of the steps without a draft.",
    )


def forecasts(analysis: Analysis) -> Table[Forecast]:
    """A row an arm: predicted from the other depths, beside measured."""
    return Table(
        "forecasts",
        "Predicted and measured",
        (
            arm_column(analysis),
            numeric("Depth k", "depth"),
            Column("From depths", "from_depths"),
            numeric("Tokens per round", "tokens", numbers.decimal, least_width=100),
            numeric("measured", "tokens_measured", numbers.decimal, least_width=100),
            numeric("Cost of a round", "round_cost", numbers.decimal, unit="steps", least_width=100),
            numeric("measured", "round_cost_measured", numbers.decimal, least_width=100),
            numeric("Speed-up predicted", "predicted", numbers.ratio).means(
                "without the arm's own rounds (inferred: a straight line through neighbouring depths)."
            ),
            interval("Its range", "predicted_interval"),
            numeric("Measured", "measured", numbers.ratio),
            interval("95 % interval", "interval"),
            numeric("Error", "error", numbers.difference, tone=_tone),
            numeric("From timed parts", "from_parts", numbers.ratio, optional=True).means(
                "the arm's own tokens over the timed parts; nothing is fitted, untimed work is missing."
            ),
        ),
        analysis.rounds.forecasts,
    )


def left_out(analysis: Analysis) -> Table[LeftOut]:
    """A row for each arm and range of contexts: how much of the model did not draft."""
    return Table(
        "left-out",
        "What drafts left out",
        (
            arm_column(analysis),
            numeric("Context up to", "context", numbers.count),
            numeric("Rounds", "rounds", numbers.count),
            *map(_left_out, ("attention", "recurrent", "mlp", "layer")),
        ),
        analysis.left_out or [],
        note="Of the model's layers, the mean share that drafted without the part, or without all of the layer.",
    )


def _left_out(part: str) -> Column[LeftOut]:
    def share(row: LeftOut) -> float | None:
        times = [count for name, count in row.times.items() if name.endswith(f".{part}")]
        return sum(times) / row.rounds / row.layers if times else None

    return numeric({"mlp": "MLP", "layer": "Whole"}.get(part, part.capitalize()), share, numbers.percent,
                   key=part, optional=True)  # fmt: skip


def round_statements(analysis: Analysis) -> list[str]:
    """Fits, forecasts that do not hold, and what could not be determined, a sentence each."""
    rounds = analysis.rounds
    rs = predictors(rounds.splits, analysis.acceptance)
    listed = ", ".join(f"{name} {r:.2f}" for name, r in rs.items())
    correlations = [f"Pearson's r with the speed-up, over arms: {listed}."] if rs else []
    misses = [f"{row.arm}, predicted {numbers.ratio(row.predicted)}, measured {numbers.ratio(row.measured)}: {row.why}"
              for row in rounds.forecasts if not row.holds]  # fmt: skip
    return [*map(_fit, rounds.fits), *correlations, *misses, *rounds.notes]


def _fit(fit: RoundFit) -> str:
    depths = ", ".join(map(str, fit.depths))
    if fit.refused or fit.intercept is None or fit.slope is None:
        return f"{fit.setting}, depths {depths}: no line fits the cost of a round: {fit.refused}."
    checked = "not tested: two depths always lie on a line"
    if len(set(fit.depths)) > 2:
        checked = f"r² {fit.r2:.3f}, largest residual {100 * (fit.worst or 0):.0f} %"
    return (
        f"{fit.setting}, depths {depths}: a round costs {fit.intercept:.2f} + {fit.slope:.2f} k target steps "
        f"(inferred: a fitted line; {checked})."
    )


def _time(seconds: float) -> str:
    return f"{1000 * seconds:.2f} ms" if abs(seconds) < 0.1 else f"{1000 * seconds:.0f} ms"


def _width(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _tone(row: Forecast) -> Tone:
    return "good" if row.holds else "bad"
