"""The style of every figure: colours that colour-blind people can distinguish, a marker each, a single font.

An arm keeps its colour and marker in all figures, so that it is identified in grey, too. Figures use matplotlib's
objects and never its global state; the same figure gives the same bytes.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from benchctl.analysis.results import Analysis

INK = "#1f2328"
SOFT = "#6e7781"
GRID = "#d0d7de"
PAPER = "#fffffe"
"""Not quite white, so that the page can find these four colours in an SVG and follow its own light or dark theme."""

_OKABE_ITO = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800")
"""Okabe and Ito's palette without black (it marks the baseline); yellow is darkened to be seen on white."""
_DASHES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")
WIDTH_IN = 7.2

_RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.labelsize": 9,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.hashsalt": "benchctl",
    "path.simplify": False,
    "text.parse_math": False,
}


@dataclass(frozen=True)
class Mark:
    """How an arm is drawn."""

    colour: str
    marker: str


def marks(arms: Sequence[str], baseline: str) -> dict[str, Mark]:
    """Give each arm its colour and marker by its place in the recipe; the baseline is ink."""
    compared = [arm for arm in arms if arm != baseline]
    drawn = zip(compared, cycle(_OKABE_ITO), cycle(_MARKERS), strict=False)
    return {baseline: Mark(INK, "o"), **{arm: Mark(colour, marker) for arm, colour, marker in drawn}}


def marks_of(analysis: Analysis) -> dict[str, Mark]:
    """The colour and marker of every arm: of a sweep the same under every condition."""
    by_arm = marks(analysis.settings, analysis.baseline)
    return by_arm | {row.arm: by_arm[row.of] for row in analysis.sweep.levels} if analysis.sweep else by_arm


def distinct_marks(analysis: Analysis) -> dict[str, Mark]:
    """A colour and marker for every arm that is compared: of a sweep another under each condition."""
    return marks([arm for arm in analysis.arms if arm not in analysis.baselines], analysis.baseline)


def point(mark: Mark, size: float = 7) -> dict[str, Any]:
    """How a single point is drawn."""
    return {
        "color": mark.colour,
        "marker": mark.marker,
        "linestyle": "",
        "markersize": size,
        "markeredgecolor": INK,
        "markeredgewidth": 0.6,
    }


def line(mark: Mark, number: int) -> dict[str, Any]:
    """How a line with its markers is drawn; `number`: its place among the lines, which gives its dashes."""
    return {**point(mark, 6), "linestyle": _DASHES[number % len(_DASHES)], "linewidth": 1.3}


def box(pad: float) -> dict[str, Any]:
    """What a number stands on, so that lines behind it do not cross it."""
    return {"facecolor": PAPER, "edgecolor": "none", "pad": pad}


def legend_below(figure: Figure, *panels: Axes) -> None:
    """A legend for the lines of all panels, each name once."""
    handles = {name: handle for axes in panels for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(4, len(handles)))


@contextmanager
def styled() -> Iterator[None]:
    """Draw with benchctl's settings alone: matplotlib's defaults below, the user's matplotlibrc ignored."""
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        settings: Any = mpl.rcParams  # its keys are a Literal of a single version of matplotlib
        settings.update(_RC)
        yield


def new_figure(height_in: float) -> Figure:
    """An empty figure of the page's width that belongs to no global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as MatplotlibFigure

    figure = MatplotlibFigure(figsize=(WIDTH_IN, height_in), facecolor=PAPER, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def panels(names: Sequence[str], rows_each: int, most_columns: int) -> tuple[Figure, list[Axes]]:
    """A figure of small panels that share both scales, each with a name and high enough for so many named rows."""
    lines = -(-len(names) // most_columns)
    columns = -(-len(names) // lines)
    figure = new_figure(lines * (0.62 + 0.25 * rows_each) + 0.3)
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    all_axes = list(grid.flat)
    for axes in all_axes[len(names) :]:
        axes.remove()
    for axes in all_axes[len(names) - columns : len(names)]:  # above a removed panel, too
        axes.tick_params(labelbottom=True)
    for axes, name in zip(all_axes, names, strict=False):
        axes.set_title(shorten(name, 24))
    return figure, all_axes[: len(names)]


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Write `names` beside rows 0, 1, … of horizontal `axes`, the first on top."""
    axes.set_yticks(range(len(names)), [shorten(name, 22) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)


def shorten(text: str, length: int) -> str:
    """Cut the middle out of `text` beyond `length` characters; characters that the font may lack are replaced."""
    plain = "".join(
        character if character.isprintable() and (character < "\u2000" or character == "…") else "·"
        for character in text
    )
    head = length // 2
    return plain if len(plain) <= length else f"{plain[:head]}…{plain[head + 1 - length :]}"


def to_svg(figure: Figure) -> str:
    """The figure as an SVG document."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    lines = (line.rstrip() for line in stream.getvalue().splitlines())
    return "\n".join(lines) + "\n"


def to_png(figure: Figure) -> bytes:
    """The figure as a PNG at 160 dots per inch."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=160, metadata={"Software": None})
    return stream.getvalue()
