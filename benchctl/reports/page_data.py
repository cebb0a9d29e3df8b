"""The page's scripts, and the values of its plots as JSON."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from benchctl.analysis.conditions.results import Level
from benchctl.analysis.conditions.split import closed_levels, open_levels
from benchctl.analysis.results import ALL_TASKS, Analysis, Interval
from benchctl.reports.figures import style
from benchctl.reports.figures.acceptance import drawn_positions
from benchctl.reports.figures.throughput import MOST_POINTS
from benchctl.text import visible


def scripts() -> list[str]:
    """Return the texts of the page's scripts: the plotting library with its licences, then its own."""
    package = files("benchctl.reports")
    licences, library = ((package / "vendor" / f"plot.{end}").read_text("utf-8") for end in ("LICENSE", "min.js"))
    return [f"/*\n{licences}*/\n{library}", (package / "templates" / "page.js").read_text("utf-8")]


def hashes(texts: Sequence[str]) -> str:
    """Return the Content-Security-Policy sources of these scripts: nothing else may run."""
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


def plot_data(analysis: Analysis) -> str:
    """Return the values of the plots as JSON that can stand inside a script element."""
    names = [*analysis.arms, *(name for name in analysis.settings if name not in analysis.arms)]
    marks = style.marks_of(analysis) | style.marks(analysis.settings, analysis.baseline)
    document = {
        "arms": [arm for arm in analysis.arms if arm not in analysis.baselines] + sorted(analysis.baselines),
        "settings": analysis.settings,
        "setting_of": {row.arm: row.of for row in analysis.sweep.levels} if analysis.sweep else {},
        "tasks": analysis.tasks,
        "colours": {name: marks[name].colour.replace(style.INK, "currentColor") for name in names},
        "speedups": [
            {"arm": row.arm, "task": row.task, "value": row.pooled, "blocks": row.by_block, **_ends(row.interval)}
            for row in analysis.speedups
            if row.pooled is not None
        ],
        "positions": [
            {"arm": row.arm, "position": place, "share": share, "rounds": row.rounds}
            for row in drawn_positions(analysis)
            for place, share in enumerate(row.position_unconditional or (), start=1)
        ],
        "throughput": [
            {"arm": row.arm, "task": row.task, "rates": style.thinned(row.tok_per_sec, MOST_POINTS)}
            for row in analysis.throughput
        ],
        "payoff": _payoff(analysis),
        "levels": [
            *(_level(row, "closed") for row in closed_levels(analysis)),
            *(_level(row, "open") for row in open_levels(analysis)),
        ],
    }
    text = json.dumps(_safe(document), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("&", "\\u0026")


def _payoff(analysis: Analysis) -> list[dict[str, Any]]:
    rates = {row.arm: row.rate for row in analysis.acceptance if row.task == ALL_TASKS and row.rate is not None}
    costs = {cost.arm: cost for cost in analysis.costs}
    return [
        {
            "arm": row.arm,
            "rate": rates[row.arm],
            "value": row.pooled,
            "alpha": costs[row.arm].alpha if row.arm in costs else None,
            "needed": costs[row.arm].break_even_alpha if row.arm in costs else None,
            **_ends(row.interval),
        }
        for row in analysis.speedups
        if row.task == ALL_TASKS and row.pooled is not None and row.arm in rates
    ]


def _level(row: Level, loop: str) -> dict[str, Any]:
    return {
        "arm": row.arm,
        "of": row.of,
        "loop": loop,
        "concurrency": row.concurrency,
        "rate": row.rate,
        "temperature": row.temperature,
        "throughput": row.throughput,
        "speedup": row.throughput_speedup,
        "latency": row.e2e.median,
        **_ends(row.throughput_interval),
    }


def _ends(found: Interval | None) -> dict[str, float | None]:
    return {"low": found.low if found else None, "high": found.high if found else None}


def _safe(value: Any) -> Any:  # noqa: ANN401 - JSON of any shape
    """Numbers to six digits, texts with every character visible."""
    if isinstance(value, dict):
        return {_safe(key): _safe(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_safe(element) for element in value]
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return visible(value) if isinstance(value, str) else value
