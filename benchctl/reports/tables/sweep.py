"""The tables of a run that varies concurrency, rate or temperature, each column declared once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchctl.analysis.conditions.results import Arrival, Dimension, EqualThroughput, Level, Quantiles
from benchctl.analysis.conditions.sweep import AxisRow, axis_rows, varied_axes
from benchctl.analysis.results import Analysis
from benchctl.reports.columns import (
    WHAT_AN_ARM_IS,
    Column,
    Name,
    Table,
    acceptance_rate,
    arm_column,
    for_programs,
    interval,
    numeric,
)
from benchctl.reports.tables.output import correct_column, output_column
from benchctl.words import numbers

_QUANTILES = ("median", "p95", "p99")


def conditions(analysis: Analysis) -> Table[Level]:
    """Every level with all its values, for programs."""
    columns = _columns(analysis)
    return Table(
        "conditions",
        "Every condition",
        (
            columns["arm"],
            *for_programs("of", "is_baseline", "overlapping", "judged"),
            *(columns[name] for name in ("concurrency", "rate", "temperature", "requests")),
            *for_programs("planned", "tokens", "makespan_s", "window_s", "drain_share", "throughput_by_block"),
            *(columns[name] for name in ("ttft", "e2e", "tpot", "itl", "request_rate")),
            *(columns[name] for name in ("throughput", "goodput", "in_flight")),
            *(columns[name] for name in ("throughput_x", "throughput_95", "latency_x", "latency_95")),
            *(columns[name] for name in ("makespan_x", "makespan_95")),
            *for_programs(**{name: f"arrival.{name}" for name in Arrival.model_fields}),
        ),
        analysis.sweep.levels if analysis.sweep else [],
    )


def all_requests(analysis: Analysis, levels: Sequence[Level]) -> Table[Level]:
    """Total throughput, a row for each arm and condition."""
    of_rates = ("sent", "finished", "kept_up", "late")
    names = ("throughput", "goodput", "throughput_x", "throughput_95", "in_flight", "makespan_x", "makespan_95")
    return _by_load(analysis, levels, "all requests together", names, of_rates)


def one_request(analysis: Analysis, levels: Sequence[Level]) -> Table[Level]:
    """Latencies of a request, a row for each arm and condition."""
    names = ("requests", "ttft", "e2e", "tpot", "itl", "latency_x", "latency_95")
    table = _by_load(analysis, levels, "latency of a request (median / p95 / p99)", names)
    return replace(table, note="p95, p99: only where at least two requests lie above.")


def summary(analysis: Analysis, levels: Sequence[Level]) -> Table[Level]:
    """For a terminal: latency and total throughput, a row for each arm and condition."""
    columns = _columns(analysis)
    output = {verdict.arm: verdict.lossless for verdict in analysis.verdicts}
    return Table(
        "levels",
        "Every condition",
        (
            columns["arm"],
            numeric("Latency", "e2e.median", numbers.seconds),
            numeric("TTFT", "ttft.median", numbers.seconds, least_width=100),
            numeric("tok/s", "throughput", numbers.rate),
            columns["throughput_x"],
            columns["throughput_95"],
            columns["latency_x"],
            output_column("Output", lambda row: output.get(row.arm, "")),
            correct_column(analysis),
        ),
        levels,
        note=f"{WHAT_AN_ARM_IS} Latency: median of a request, tok/s: all requests together, ×: over the baseline."
        f"{_of_rates(analysis)}",
    )


def equal_throughput(analysis: Analysis) -> Table[EqualThroughput]:
    """The speed of a request where an arm serves as much as its baseline does at a concurrency."""
    columns: list[Column[EqualThroughput]] = [
        Column("Arm", lambda row: Name(", ".join([row.arm, *row.labels])), key="arm", heads=True),
        numeric("Temperature", "temperature", numbers.short),
        numeric("Baseline's concurrency", "concurrency"),
        numeric("Throughput", "throughput", numbers.rate, unit="tok/s"),
        numeric("Per request alone", "baseline_speed", numbers.rate, unit="tok/s"),
        numeric("With the arm", "speed", numbers.rate, unit="tok/s"),
        numeric("×", "ratio", numbers.ratio, key="ratio"),
        interval("95 % interval", "interval", key="ratio", absent=numbers.no_interval(analysis)),
    ]
    note = (
        "A dash: the arm serves less than that at every measured concurrency. Left out: a concurrency at which the "
        "baseline has less of both than at another. Each interval holds by itself."
    )
    rows = analysis.sweep.equal_throughput if analysis.sweep else []
    return Table("equal-throughput", "Speed of a request at equal total throughput", columns, rows, note=note)


def _columns(analysis: Analysis) -> dict[str, Column[Level]]:
    """Every column over levels, by a short name."""
    without = numbers.no_interval(analysis)

    def beside_baseline(column: Column[Level]) -> Column[Level]:
        """Empty for the baseline itself, where it would be 1."""
        return replace(column, cell=lambda row: "" if row.is_baseline else column.text(row))

    return {
        "arm": arm_column(analysis),
        "concurrency": numeric("Concurrency", "concurrency"),
        "rate": numeric("Requested per second", "rate", numbers.short),
        "temperature": numeric("Temperature", "temperature", numbers.short),
        "requests": numeric("Requests", "requests", cell=_requests),
        "ttft": numeric("TTFT", "ttft", numbers.spread, key="ttft_{}_s", parts=_QUANTILES),
        "e2e": numeric("Latency", "e2e", numbers.spread, key="e2e_{}_s", parts=_QUANTILES),
        "tpot": numeric("Time per token", "tpot", _token_time, key="tpot_{}_s", parts=_QUANTILES),
        "itl": numeric("Between tokens", "itl", _token_time, key="itl_{}_s", parts=_QUANTILES, optional=True).means(
            "from a token to the next, over the tokens of all requests; tokens of a burst follow at once."
        ),
        "request_rate": numeric("Per request", "request_rate", numbers.rate, unit="tok/s"),
        "makespan_x": beside_baseline(numeric("Batch ×", "makespan_speedup", numbers.ratio, optional=True)).means(
            "the baseline's time from the first request sent to the last answer's end, over the arm's: of a batch "
            "that waits for its longest answer."
        ),
        "makespan_95": beside_baseline(interval("95 % interval", "makespan_interval", absent=without, optional=True)),
        "throughput": numeric("Throughput", "throughput", numbers.rate, unit="tok/s").means(
            "tokens per second of all requests together; in a closed loop while all slots were full."
        ),
        "goodput": numeric("Goodput", "goodput", numbers.decimal, unit="requests/s", optional=True).means(
            "requests a second that kept the recipe's limits."
        ),
        "throughput_x": beside_baseline(numeric("Throughput ×", "throughput_speedup", numbers.ratio)).means(
            f"over the baseline under the same condition.{_of_rates(analysis)}"
        ),
        "throughput_95": beside_baseline(interval("95 % interval", "throughput_interval", absent=without)),
        "in_flight": numeric("In flight", "in_flight", numbers.decimal).means(
            "mean number of concurrent requests, as measured."
        ),
        "latency_x": beside_baseline(numeric("Latency ×", "latency_speedup", numbers.ratio)).means(
            "tokens over the whole time of each request, over the same for the baseline; above 1: faster."
        ),
        "latency_95": beside_baseline(interval("95 % interval", "latency_interval", absent=without)),
        "sent": numeric("Sent per second", "arrival.sent_rate", numbers.decimal).means(
            "as measured; send times are drawn at random around the requested rate, the same for every arm."
        ),
        "finished": numeric("Finished per second", "arrival.finished_rate", numbers.decimal).means(
            "requests finished per second, between the first and the last."
        ),
        "kept_up": Column("Kept up", "arrival.kept_up", numbers.yes_or_no).means(
            "no: latency grows beyond noise while requests are sent, so latencies depend on the number of "
            "requests; a dash: unknown."
        ),
        "late": numeric("Client late", "arrival.late_p95_s", numbers.seconds).means(
            "delay of benchctl's own sending (95th percentile; the maximum below 40 requests)."
        ),
    }


def _of_rates(analysis: Analysis) -> str:
    """Return what throughput is where requests are sent by the clock; empty for closed loops."""
    rated = any(row.rate is not None for row in analysis.sweep.levels) if analysis.sweep else False
    return " At a rate that both keep up with, throughput is about the same: compare latencies." if rated else ""


def _by_load(
    analysis: Analysis, levels: Sequence[Level], title: str, names: Sequence[str], of_rates: Sequence[str] = ()
) -> Table[Level]:
    """These columns after the condition of a row and its arm; `of_rates`: where requests were sent at a rate."""
    varied: list[Dimension] = analysis.sweep.dimensions if analysis.sweep else []
    arrival = bool(levels) and levels[0].rate is not None
    places = ["rate"] * arrival + ["concurrency"] * (not arrival or "concurrency" in varied)
    places += ["temperature"] * ("temperature" in varied) + ["arm"] + list(of_rates) * arrival
    columns = _columns(analysis)
    load = "By rate" if arrival else "By concurrency"
    return Table("levels", f"{load}: {title}", [columns[name] for name in (*places, *names)], levels)


def _requests(row: Level) -> str:
    done = numbers.count(row.requests)
    return done if row.requests == row.planned else f"{done} of {numbers.count(row.planned)}"


def _token_time(value: Quantiles) -> str:
    return f"{numbers.spread(value, numbers.milliseconds)} ms"


def by_axis(analysis: Analysis) -> Table[AxisRow]:
    """A row an arm, the baselines of the groups among them."""
    rows = axis_rows(analysis)
    axes = varied_axes(row.level for row in rows)
    columns: list[Column[Any]] = [
        arm_column(analysis, "level.arm"),
        *(_axis(axis) for axis in axes),
        numeric("tok/s", "level.throughput", numbers.rate, key="tok_per_s").means("prefill included."),
        numeric(
            "Speed-up", lambda row: None if row.level.is_baseline else row.ratio, cell=_speedup, key="speedup"
        ).means("decode rate over the baseline of the same group."),
        interval(
            "95 % interval",
            lambda row: row.speedup.interval if row.speedup and not row.inactive else None,
            key="speedup",
        ),
        acceptance_rate("Accepted", "acceptance.rate", "acceptance.doubt", key="rate"),
        *for_programs(doubt="acceptance.doubt"),
        numeric("Acceptance length", "acceptance.acceptance_length", numbers.decimal, key="acceptance_length").means(
            "tokens per drafted round: accepted ones and the target's own."
        ),
        *for_programs(tokens_per_round="acceptance.tokens_per_round"),
        output_column("Output", "verdict.lossless", key="output"),
        numeric("Memory", "level.memory_bytes", _gib, unit="GiB", key="memory_bytes", optional=True).means(
            "model files, caches of the whole context and buffers; estimated before the run, not measured."
        ),
        numeric(
            "Energy", "joules_per_token", "{:.3g}".format, unit="J/token", key="joules_per_token", optional=True
        ).means("of the whole machine while the arm was measured, per generated token, prefill included."),
        *for_programs(group="level.group", is_baseline="level.is_baseline"),
    ]
    return Table("axes", "Every arm by axis", columns, rows)


def _speedup(row: AxisRow) -> str:
    return "baseline" if row.level.is_baseline else "inactive" if row.inactive else numbers.ratio(row.ratio)


def _gib(value: int) -> str:
    return f"{value / (1 << 30):.2f}"


def _axis(axis: str) -> Column[Any]:
    return Column(axis, lambda row: row.labels.get(axis), key=axis.replace(".", "_"))
