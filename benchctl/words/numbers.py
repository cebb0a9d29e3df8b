"""How numbers are written, so that a value reads the same in sentences and tables, on every page and terminal.

Every function takes a value or `None` and returns a short string without markup. `None` is written as a dash, because
what was not reported is not 0. Lists, plurals and spoken durations are in `benchctl.text`, which errors use, too.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from benchctl import text
from benchctl.analysis.result import MIN_BLOCKS

if TYPE_CHECKING:
    from benchctl.analysis.conditions.results import Quantiles
    from benchctl.analysis.result import Interval
    from benchctl.analysis.results import Analysis

ABSENT = "–"
"""Written for a value that is not known."""


def ratio(value: float | None) -> str:
    """A speed-up with two decimals (`0.57×`, `12.30×`)."""
    return ABSENT if value is None else f"{value:.2f}×"


def difference(value: float | None) -> str:
    """A ratio minus 1 as a percentage with its sign (`−3.2 %`)."""
    return ABSENT if value is None else f"{100 * value:+.1f} %".replace("-", "−")


def percent(value: float | None, doubt: str | None = None) -> str:
    """A share between 0 and 1 as a percentage with a digit after the point (`77.0 %`); `doubt`: a word on it."""
    return ABSENT if value is None else text.percent(value, doubt)


def at_most(value: float | None) -> str:
    """A limit, as a share: two digits, rounded up (`4.2 %`)."""
    return ABSENT if value is None else text.at_most_percent(value)


def rate(value: float | None) -> str:
    """Tokens per second with a digit after the point, two below 10 (`16.6`, `2.35`)."""
    if value is None:
        return ABSENT
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}"


def decimal(value: float | None) -> str:
    """A plain number with two decimals: tokens per round, cost of a draft step."""
    return ABSENT if value is None else f"{value:.2f}"


def count(value: int | None) -> str:
    """A count with a thin space between thousands."""
    return ABSENT if value is None else f"{value:,}".replace(",", "\u202f")


def seconds(value: float | None) -> str:
    """A duration: milliseconds below one second, minutes above two (`35 ms`, `1.24 s`, `3 min 20 s`)."""
    if value is None:
        return ABSENT
    if value < 0.9995:
        return f"{1000 * value:.0f} ms"
    if value < 119.95:
        return f"{value:.2f} s" if value < 9.995 else f"{value:.1f} s"
    minutes, remainder = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {remainder} s"


def milliseconds(value: float | None) -> str:
    """A short time in milliseconds with a digit after the point, without its unit (`12.3`)."""
    return ABSENT if value is None else f"{1000 * value:.1f}"


def spread(value: Quantiles, write: Callable[[float | None], str] = seconds) -> str:
    """Median / p95 / p99 of a latency; a dash where too few requests support a quantile."""
    return " / ".join(map(write, (value.median, value.p95, value.p99)))


def short(value: float | None) -> str:
    """A rate or a temperature in its shortest form (`0.8`, `2`)."""
    return ABSENT if value is None else f"{value:g}"


def yes_or_no(value: bool | None) -> str:
    """Whether something holds."""
    return ABSENT if value is None else "yes" if value else "no"


def nats(value: float | None) -> str:
    """A margin or a noise floor with three decimals; very small ones with a digit (`2e-06`)."""
    if value is None:
        return ABSENT
    return f"{value:.3f}" if value == 0 or abs(value) >= 0.001 else f"{value:.0e}"


def size(value: int | None) -> str:
    """Bytes in binary units with a digit after the point (`1.0 GiB`)."""
    if value is None:
        return ABSENT
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def interval(value: Interval | None) -> str:
    """A 95 % interval of a ratio (`0.55 to 0.59×`)."""
    return ABSENT if value is None else f"{between(value)}×"


def between(value: Interval) -> str:
    """The ends of an interval of a ratio, for a sentence that names the unit before (`0.98 to 1.25`)."""
    return f"{value.low:.2f} to {value.high:.2f}"


def with_interval(value: float, limits: Interval | None, reference: str = "") -> str:
    """A ratio with its interval, where there is one (`1.16× the baseline (95 % interval 1.10 to 1.22)`).

    `reference`: what the ratio refers to, written after it.
    """
    ends = f" (95 % interval {between(limits)})" if limits else ""
    return f"{ratio(value)}{reference}{ends}"


def no_interval(analysis: Analysis) -> str:
    """Why a run has no interval."""
    if not any(row.pairs for row in analysis.speedups):
        return "no decode rate is known in both arms: no interval"
    if analysis.blocks < MIN_BLOCKS:
        blocks = "one block" if analysis.blocks == 1 else f"{analysis.blocks} blocks"
        return f"{blocks}: no interval"
    return "too few complete blocks: no interval"


def moment(value: str | None) -> str:
    """An ISO 8601 time to the minute, with its offset (`2026-11-21 11:05 UTC`); as it is when it is no such time."""
    if value is None:
        return ABSENT
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        return value
    zone = time.strftime("%z")
    return f"{time:%Y-%m-%d %H:%M}" + {"": "", "+0000": " UTC"}.get(zone, f" {zone}")
