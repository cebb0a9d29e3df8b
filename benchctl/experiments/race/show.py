"""Two answers side by side at true speed: as panes of a terminal, as an asciinema cast, as an animated SVG.

Model output goes through `benchctl.text.visible` and is escaped; nothing in it acts on a terminal or a page.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path

from rich.cells import cell_len, chop_cells
from rich.console import Console, Group, RenderableType
from rich.layout import Layout
from rich.panel import Panel
from rich.text import Text

from benchctl.errors import StorageError
from benchctl.experiments.race.playback import Playback
from benchctl.text import one_line, visible

NO_VERDICT = "One prompt gives no verdict: use benchctl run."
LEGEND = "Green: arrived at once with the next token."
FRAMES_A_SECOND = 20
WIDTH, HEIGHT = 100, 24
"""Columns and rows of a recording."""
_HOLD_S = 3.0
"""How long a recording stops at its end."""
_Line = list[tuple[str, bool, float]]
"""Runs of text of one line: text, whether it arrived at once with the next token, when it arrived (seconds)."""


def frame(lanes: Sequence[Playback], now_s: float, width: int, height: int) -> RenderableType:
    """Return the picture `now_s` seconds after both requests were sent."""
    columns, rows = width // 2 - 4, max(1, height - 5)
    panes, whole = Layout(), Layout()
    panes.split_row(*(Layout(_pane(lane, now_s, columns, rows)) for lane in lanes))
    foot = Text(f" {now_s:5.1f} s  {LEGEND} {NO_VERDICT}", "dim", no_wrap=True, overflow="ellipsis")
    whole.split_column(panes, Layout(foot, size=1))
    return whole


def _pane(lane: Playback, now_s: float, columns: int, rows: int) -> Panel:
    text = Text()
    lines = [[run for run in line if run[2] <= now_s] for line in wrapped(lane, columns)]
    written = [line for line in lines if line] or [[]]
    for line in written[-rows:]:
        for run, grouped, _ in line:
            text.append(run, "green" if grouped else "")
        text.append("\n")
    status = Text(one_line(lane.status(now_s)), "bold")
    title = Text(f"{one_line(lane.arm)}: {one_line(lane.setting)}")
    return Panel(Group(status, Text(), text), title=title, title_align="left")


def wrapped(lane: Playback, columns: int) -> list[_Line]:
    """Return the answer's lines, broken at `columns` cells, each run with its time of arrival."""
    lines: list[_Line] = [[]]
    used = 0
    for piece in lane.pieces:
        for number, part in enumerate(visible(piece.text).expandtabs(4).split("\n")):
            if number:
                lines.append([])
                used = 0
            rest = part
            while rest:
                head = _fitting(rest, columns - used)
                if not head:
                    lines.append([])
                    used = 0
                    continue
                lines[-1].append((head, piece.grouped, piece.at_s))
                used += cell_len(head)
                rest = rest[len(head) :]
    return lines


def _fitting(text: str, cells: int) -> str:
    """Return the longest beginning of `text` of at most `cells` cells; empty where not one character fits."""
    if cell_len(text) <= cells:
        return text
    if cells < 2:
        return ""
    return str(chop_cells(text, cells)[0])


def moments(lanes: Sequence[Playback]) -> list[float]:
    """Return the times of changes in seconds, at most `FRAMES_A_SECOND` per second, from 0 to the end."""
    step = 1 / FRAMES_A_SECOND
    end = max(lane.end_s for lane in lanes)
    ticks = {round(round(piece.at_s / step + 0.499) * step, 3) for lane in lanes for piece in lane.pieces}
    return sorted({0.0, *ticks, round(end + step, 3)})


def record(lanes: Sequence[Playback], file: Path, *, title: str, speed: float = 1.0) -> None:
    """Write what is played back into a file of one of `FORMATS`. Raises StorageError."""
    text = FORMATS[file.suffix](lanes, title, speed)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"The recording cannot be written: {error.strerror}.", where=str(file)) from None


def cast(lanes: Sequence[Playback], title: str, speed: float) -> str:
    """Return an asciinema cast, version 2: https://docs.asciinema.org/manual/asciicast/v2/."""
    head = {"version": 2, "width": WIDTH, "height": HEIGHT, "timestamp": int(time.time()), "title": one_line(title)}
    lines = [json.dumps(head)]
    for now_s in moments(lanes):
        lines.append(json.dumps([round(now_s / speed, 3), "o", "\x1b[H" + _as_terminal(lanes, now_s)]))
    lines.append(json.dumps([round(max(lane.end_s for lane in lanes) / speed + _HOLD_S, 3), "o", ""]))
    return "\n".join(lines) + "\n"


def _as_terminal(lanes: Sequence[Playback], now_s: float) -> str:
    out = io.StringIO()
    console = Console(
        file=out, width=WIDTH, height=HEIGHT - 1, force_terminal=True, color_system="standard", legacy_windows=False
    )
    console.print(frame(lanes, now_s, WIDTH, HEIGHT - 1), end="")
    return out.getvalue().replace("\n", "\r\n")


_CELL, _ROW, _PANE = 7.25, 16, 46
_STYLE = (
    "text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#d4d4d4;white-space:pre}"
    ".g{fill:#6fd388}.h{font-weight:bold;fill:#fff}.n{fill:#9a9a9a}"
)


def svg(lanes: Sequence[Playback], title: str, speed: float) -> str:
    """Return an SVG that plays the answers once and stays at the end; without animation it shows the end."""
    bodies = [wrapped(lane, _PANE) for lane in lanes]
    rows = max(len(body) for body in bodies)
    end = max(lane.end_s for lane in lanes) / speed
    width, height = round(2 * (_PANE + 3) * _CELL), (rows + 5) * _ROW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img"><title>{escape(one_line(title))}</title><style>{_STYLE}</style>'
        f'<rect width="{width}" height="{height}" rx="8" fill="#1e1e1e"/>'
    ]
    for place, (lane, body) in enumerate(zip(lanes, bodies, strict=True)):
        left = round((place * (_PANE + 3) + 1.5) * _CELL, 1)
        parts.append(
            f'<text x="{left}" y="22" class="h">{escape(one_line(f"{lane.arm}: {lane.setting}", _PANE))}</text>'
        )
        for row, line in enumerate(body):
            if line:
                spans = "".join(_span(run, end, speed) for run in line)
                parts.append(f'<text x="{left}" y="{(row + 2) * _ROW + 26}">{spans}</text>')
        for now_s, until_s in _stages(lane):
            status = escape(one_line(lane.status(now_s), _PANE))
            hidden = "" if until_s is None else ' visibility="hidden"'  # without animation only the last is visible
            animation = _between(now_s, until_s, end, speed)
            parts.append(f'<text x="{left}" y="40" class="n"{hidden}>{status}{animation}</text>')
    foot = escape(f"{LEGEND} {NO_VERDICT}" + (f" Speed: {speed:g}×." if speed != 1 else ""))
    parts.append(f'<text x="{1.5 * _CELL:.1f}" y="{height - 10}" class="n">{foot}</text></svg>\n')
    return "".join(parts)


def _span(run: tuple[str, bool, float], end: float, speed: float) -> str:
    text, grouped, at_s = run
    colour = ' class="g"' if grouped else ""
    return f"<tspan{colour}>{escape(text)}{_from(at_s / speed, end)}</tspan>"


def _from(at_s: float, end: float) -> str:
    share = min(0.9999, at_s / end) if end else 0.0
    return (
        f'<animate attributeName="fill-opacity" values="0;1" keyTimes="0;{share:.4f}" calcMode="discrete" '
        f'dur="{end:.2f}s" fill="freeze"/>'
    )


def _stages(lane: Playback) -> Iterator[tuple[float, float | None]]:
    """Yield from when to when a line of status holds: a second each, and the last for good."""
    now_s = 0.0
    while now_s < lane.end_s:
        yield now_s, min(now_s + 1.0, lane.end_s)
        now_s += 1.0
    yield lane.end_s, None


def _between(now_s: float, until_s: float | None, end: float, speed: float) -> str:
    first = min(0.9999, now_s / speed / end) if end else 0.0
    if until_s is None:
        return _from(now_s / speed, end)
    last = min(1.0, until_s / speed / end) if end else 1.0
    times = f"0;{first:.4f};{last:.4f}" if first else f"0;{last:.4f}"
    values = "0;1;0" if first else "1;0"
    return (
        f'<animate attributeName="fill-opacity" values="{values}" keyTimes="{times}" calcMode="discrete" '
        f'dur="{end:.2f}s" fill="freeze"/><set attributeName="visibility" to="visible" begin="0s"/>'
    )


FORMATS: dict[str, Callable[[Sequence[Playback], str, float], str]] = {".cast": cast, ".svg": svg}
"""The formats of a recording, by the suffix of its file."""
