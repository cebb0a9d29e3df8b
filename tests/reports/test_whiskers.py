"""The whiskers of figures are the intervals of the tables."""

from __future__ import annotations

from typing import Any

import pytest

from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.results import Analysis
from benchctl.data.store import open_run
from benchctl.lossless.judge.run import analyse_run
from benchctl.reports.figures import arms, style
from benchctl.reports.tables.speed import speedups
from tests.oracle.render import kept


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return analyse_run(open_run(kept("qwen2.5-coder-bf16/")))


def intervals(analysis: Analysis) -> dict[tuple[str, str], list[float]]:
    """The ends of the table's intervals, by arm and task."""
    rows = speedups(analysis).rows
    return {(row.arm, row.task): [row.interval.low, row.interval.high] for row in rows if row.interval}


def ends(collection: Any, axis: int) -> list[float]:
    """The two ends of a whisker along an axis of the figure."""
    (segment,) = collection.get_segments()
    return sorted(point[axis] for point in segment)


def test_of_the_speed_up_by_task(analysis: Analysis) -> None:
    with style.styled():
        figure = arms.draw_speedup(analysis)
    assert figure is not None
    compared = [arm for arm in analysis.arms if arm not in analysis.baselines]
    whiskers = {}
    for axes, task in zip(figure.axes, (ALL_TASKS, *analysis.tasks), strict=True):
        assert axes.get_title(loc="left") == (task if task != ALL_TASKS else "all tasks")
        for container in axes.containers:
            data_line, _, (bar,) = container.lines  # type: ignore[attr-defined]
            whiskers[compared[round(data_line.get_ydata()[0])], task] = ends(bar, axis=0)
    assert whiskers == {key: pytest.approx(value) for key, value in intervals(analysis).items()}


def test_of_the_speed_up_over_acceptance(analysis: Analysis) -> None:
    figure = arms.draw_payoff(analysis)
    assert figure is not None
    drawn = sorted(ends(collection, axis=1) for collection in figure.axes[0].collections)
    stored = sorted(value for (_, task), value in intervals(analysis).items() if task == ALL_TASKS)
    assert drawn == [pytest.approx(value) for value in stored]
