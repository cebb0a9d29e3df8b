"""Two answers on a terminal, in a cast and in an SVG: what a model says acts on none of them."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from benchctl.errors import StorageError
from benchctl.experiments.race.playback import Piece, Playback
from benchctl.experiments.race.show import cast, frame, moments, record, svg, wrapped

NASTY = '</text><script>alert(1)</script>&\x1b[2J"[red]'


def lane(arm: str, *pieces: tuple[float, str, bool]) -> Playback:
    return Playback(
        arm,
        "draft-simple, depth 4",
        tuple(Piece(at, text, 1, grouped) for at, text, grouped in pieces),
        speculates=True,
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
    lines = wrapped(wide, 9)
    joined = "".join("".join(run for run, _, _ in line) for line in lines)
    assert joined == "あいうえお" * 3 + "x" * 7 + "    y"
    assert all(sum(2 if ord(char) > 0x3000 else 1 for run, _, _ in line for char in run) <= 9 for line in lines)


def test_an_svg_is_sound_escaped_and_shows_the_end_without_animation(lanes: list[Playback]) -> None:
    root = ET.fromstring(svg(lanes, "a <title>", 1.0))
    space = "{http://www.w3.org/2000/svg}"
    assert not root.findall(f".//{space}script") and not root.findall(f".//{space}image")
    assert root.findtext(f"{space}title") == "a <title>"
    spans = root.findall(f".//{space}tspan")
    assert "".join(span.text or "" for span in spans if span.get("class") == "g").startswith("guessed")
    assert any("<script>alert(1)</script>" in (span.text or "") for span in spans), "as text"
    seen = [one for one in root.findall(f".//{space}text") if one.get("visibility") != "hidden"]
    assert [one.text for one in seen if "tok/s" in (one.text or "")] == [
        "10 tokens in 2.00 s, 5.0 tok/s",
        "3 tokens in 1.00 s, 2.5 tok/s",
    ]
    first = spans[0].find(f"{space}animate")
    assert first is not None and first.get("dur") == "2.00s" and first.get("keyTimes") == "0;0.1000"
    slow = ET.fromstring(svg(lanes, "t", 0.5)).find(f".//{space}tspan/{space}animate")
    assert slow is not None and slow.get("dur") == "4.00s"


def test_a_cast_is_of_version_2_in_true_time(lanes: list[Playback]) -> None:
    head, *events = map(json.loads, cast(lanes, "race", 1.0).splitlines())
    assert (head["version"], head["width"]) == (2, 100)
    times = [event[0] for event in events]
    assert times == sorted(times) and times[-1] == 5.0 and all(event[1] == "o" for event in events)
    assert "\x1b[2J" not in "".join(event[2] for event in events)
    double = [json.loads(line)[0] for line in cast(lanes, "race", 2.0).splitlines()[1:]]
    assert double[-2] == pytest.approx(times[-2] / 2, abs=0.01)


def test_moments_are_those_at_which_something_comes(lanes: list[Playback]) -> None:
    found = moments(lanes)
    assert found[0] == 0.0 and found[-1] > 2.0
    assert all(any(abs(now - piece.at_s) < 0.051 for now in found) for one in lanes for piece in one.pieces)


def test_what_cannot_be_written_is_one_message(lanes: list[Playback], tmp_path: Path) -> None:
    record(lanes, tmp_path / "new" / "race.cast", title="t")
    assert (tmp_path / "new" / "race.cast").read_text().startswith('{"version": 2')
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be written"):
        record(lanes, tmp_path / "file" / "race.svg", title="t")
