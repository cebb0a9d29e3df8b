"""Two answers on a terminal, and in an SVG: what a model says acts on none of them."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from io import StringIO

import pytest
from rich.console import Console

from benchctl.experiments.race.playback import Piece, Playback, frame, svg

NASTY = '</text><script>alert(1)</script>&\x1b[2J"[red]'


def lane(arm: str, *pieces: tuple[float, str, bool]) -> Playback:
    return Playback(
        arm,
        "draft-simple, depth 4",
        tuple(Piece(at, text, 1, grouped) for at, text, grouped in pieces),
    )


@pytest.fixture
def lanes() -> list[Playback]:
    slow = lane("baseline", *((0.2 * number, f"word{number} ", False) for number in range(1, 11)))
    return [slow, lane("spec", (0.2, "first ", False), (0.5, "guessed\nline ", True), (1.0, NASTY, False))]


def text_of(lanes: list[Playback], now_s: float) -> str:
    console = Console(file=StringIO(), width=100, height=20, force_terminal=True, color_system="standard")
    console.print(frame(lanes, now_s, 100, 20))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_a_frame_shows_what_had_come_by_then(lanes: list[Playback]) -> None:
    early, late = text_of(lanes, 0.5), text_of(lanes, 2.0)
    assert "first" in early and "guessed" in early and "script" not in early
    assert "word2" in early and "word3" not in early and "word10" in late
    assert "\x1b[32mguessed" in early, "what arrived in a group is coloured"
    assert "no verdict" in early


def test_nothing_that_a_model_says_acts_on_a_terminal(lanes: list[Playback]) -> None:
    shown = text_of(lanes, 2.0)
    assert "\x1b[2J" not in shown and "␛" in shown


def test_lines_are_broken_at_the_cell_and_nothing_is_lost() -> None:
    wide = lane("spec", (0.1, "あいうえお" * 3, True), (0.2, "x" * 7, False), (0.3, "\n\ty", False))
    lines = wide.lines(1.0, 9)
    assert "".join(line.plain for line in lines).replace(" ", "") == "あいうえお" * 3 + "x" * 7 + "y"
    assert all(line.cell_len <= 9 for line in lines)


def test_an_svg_is_sound_escaped_and_shows_the_end_without_animation(lanes: list[Playback]) -> None:
    root = ET.fromstring(svg(lanes, "a <title>", 1.0))
    space = "{http://www.w3.org/2000/svg}"
    assert not root.findall(f".//{space}script") and not root.findall(f".//{space}image")
    assert root.findtext(f"{space}title") == "a <title>"
    spans = root.findall(f".//{space}tspan")
    assert "".join(span.text or "" for span in spans if span.get("class") == "g").startswith("guessed")
    assert any("<script>alert(1)</script>" in (span.text or "") for span in spans), "as text"
    texts = [element.text or "" for element in root.findall(f".//{space}text")]
    assert [text for text in texts if "tok/s" in text] == [
        "10 tokens in 2.00 s, 5.0 tok/s",
        "3 tokens in 1.00 s, 2.5 tok/s",
    ]
    first = spans[0].find(f"{space}animate")
    assert first is not None and first.get("dur") == "2.00s" and first.get("keyTimes") == "0;0.1000"
    slow = ET.fromstring(svg(lanes, "t", 0.5)).find(f".//{space}tspan/{space}animate")
    assert slow is not None and slow.get("dur") == "4.00s"
