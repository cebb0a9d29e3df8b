"""What predicts an arm's speed, and what its drafts left out of the model by layer and context."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from benchctl.analysis.results import ALL_TASKS, Analysis
from benchctl.reports.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from benchctl.data.rounds import LeftOut

MOST_ARMS = 12
"""Arms of the recipe whose drafts are drawn."""
_PARTS = {"attention": "attention", "recurrent": "recurrent", "mlp": "MLP", "layer": "layer"}


def draw_tokens_per_time(analysis: Analysis) -> Figure | None:
    """A point an arm; `None` below two whose drafting and verifying were timed."""
    rows = [row for row in analysis.rounds.splits if row.task == ALL_TASKS]
    points = [(row.arm, tpt, row.speedup) for row in rows if (tpt := row.tokens_per_time) is not None]
    if len(points) < 2:
        return None
    figure = style.new_figure(3.6)
    axes = figure.subplots()
    marks, of = style.marks_of(analysis), {name: arm.of for name, arm in analysis.compared.items()}
    for name in dict.fromkeys(of[arm] for arm, _, _ in points):
        own = [point for point in points if of[point[0]] == name]
        axes.plot([tpt for _, tpt, _ in own], [speedup for _, _, speedup in own],
                  **style.point(marks[own[0][0]]), label=style.shorten(name, 18))  # fmt: skip
    highest = 1.08 * max(1.0, *(max(tpt, speedup) for _, tpt, speedup in points))
    axes.plot([0, highest], [0, highest], color=style.SOFT, linewidth=0.9, linestyle=":", label="nothing else costs")
    axes.axhline(1, color=style.INK, linewidth=1, label="no speculation")
    axes.set_xlim(0, highest)
    axes.set_ylim(0, highest)
    axes.grid()
    axes.set_xlabel("tokens per time of drafting and verifying, over the baseline's (×)")
    axes.set_ylabel("throughput, over the baseline's (×)")
    style.legend_below(figure, axes)
    return figure


def draw_left_out(analysis: Analysis) -> Figure | None:
    """A panel for each of the recipe's arms, a line a part and range of contexts, a column a layer; else `None`."""
    panels = _panels(analysis)
    if not panels:
        return None
    from matplotlib.colors import LinearSegmentedColormap

    lines = [len(rows) for rows in panels.values()]
    figure = style.new_figure(0.9 + 0.55 * len(panels) + 0.15 * sum(lines))
    every = figure.subplots(len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": lines})[:, 0]
    colours = LinearSegmentedColormap.from_list("left out", ["#eef3f8", "#0072b2"])
    for axes, (name, rows) in zip(every, panels.items(), strict=True):
        mesh = axes.pcolormesh(list(rows.values()), cmap=colours, vmin=0, vmax=1, edgecolors=style.GRID, linewidth=0.3)
        axes.set_yticks(np.arange(len(rows)) + 0.5, list(rows), fontsize=6.5)
        axes.invert_yaxis()
        axes.set_title(style.shorten(name, 40))
        layers = len(next(iter(rows.values())))
        step = 1 + layers // 32
        axes.set_xticks(np.arange(0, layers, step) + 0.5, range(0, layers, step), fontsize=6.5)
    every[-1].set_xlabel("layer")
    figure.colorbar(mesh, ax=list(every), label="share of rounds", fraction=0.03, aspect=25)
    return figure


def _panels(analysis: Analysis) -> dict[str, dict[str, list[float]]]:
    """Return by the recipe's arm, and its setup, the shares of every layer, by part and longest context."""
    own: dict[str, list[LeftOut]] = defaultdict(list)
    for row in analysis.left_out or ():
        arm = analysis.compared[row.arm]
        own[f"{arm.of} ({arm.setup})" if arm.setup else arm.of].append(row)
    return {name: shares for name, rows in list(own.items())[:MOST_ARMS] if (shares := _shares(rows))}


def _shares(rows: Sequence[LeftOut]) -> dict[str, list[float]]:
    """Return the share of rounds that drafted without a part of each layer, by the part's name and longest context."""
    layers = max(row.layers for row in rows)
    by_context: dict[int, tuple[int, Mapping[str, int]]] = {}
    for row in rows:
        rounds, times = by_context.get(row.context, (0, {}))
        by_context[row.context] = rounds + row.rounds, Counter(times) + Counter(row.times)
    every = {name.partition(".")[2] for row in rows for name in row.times}
    return {
        f"{label}, to {context}": [times.get(f"{layer}.{part}", 0) / rounds for layer in range(layers)]
        for part, label in _PARTS.items()
        if part in every
        for context, (rounds, times) in sorted(by_context.items())
    }
