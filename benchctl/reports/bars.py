"""The speed-up of every arm as a bar in a terminal, with its 95 % interval and a line at the target alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from benchctl.reports.first_screen import ScreenRow, screen_rows
from benchctl.reports.terminal import STYLES, Printout
from benchctl.text import one_line
from benchctl.words import numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchctl.analysis.results import Analysis

UNICODE, ASCII = ("█", "▓", "░", "│"), ("#", "=", "-", "|")
"""The bar, its part within the interval, the interval beyond it, and the line at 1."""
_LEAST, _MOST = 10, 60
"""Columns of the bars."""
_LONGEST_NAME = 30
_BEYOND = 2.0
"""An interval is drawn up to so many times the largest speed-up, so that a wide one does not squeeze all bars."""


def print_bars(out: Printout, analysis: Analysis) -> None:
    """Print a bar an arm, and what its parts mean; nothing where no arm has a speed-up."""
    rows = [row for row in screen_rows(analysis) if row.verdict and row.speedup and not row.inactive]
    if not rows:
        return
    names = [one_line(row.arm, _LONGEST_NAME) for row in rows]
    wide = max(map(cell_len, names))
    signs = ASCII if out.console.options.ascii_only else UNICODE
    columns = min(_MOST, max(_LEAST, out.console.width - wide - 10))
    largest = max(1.0, *(row.speedup or 0.0 for row in rows))
    scale = max(1.1, largest, min(_BEYOND * largest, max(row.ends.high if row.ends else 0.0 for row in rows)))
    out.say()
    for name, row in zip(names, rows, strict=True):
        line = Text(f"{name}{' ' * (wide - cell_len(name))} {numbers.ratio(row.speedup):>7}  ")
        line.append(bar(row, scale, columns, signs), STYLES[row.tone])
        out.console.print(line, soft_wrap=True)
    _, within, beyond, one = signs
    interval = f"{within} and {beyond}: the 95 % interval. " if any(row.ends for row in rows) else ""
    out.say(f"{interval}{one}: 1.00×, the target alone.", "dim")


def bar(row: ScreenRow, scale: float, columns: int, signs: Sequence[str]) -> str:
    """Return the bar of an arm; a column stands for `scale / columns`."""
    full, within, beyond, one = signs
    low, high = (row.ends.low, row.ends.high) if row.ends else (row.speedup or 0.0, 0.0)
    drawn = []
    for column in range(columns):
        value = (column + 0.5) * scale / columns
        inside = value <= (row.speedup or 0.0)
        sign = (full if value < low else within) if inside else (beyond if value <= high else " ")
        drawn.append(one if column == int(columns / scale) else sign)
    return "".join(drawn).rstrip()
