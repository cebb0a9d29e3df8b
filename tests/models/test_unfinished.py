"""A file in the making is nobody's until it is whole."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from benchctl.models.files import finish, made_once, remove_leftovers, unfinished
from tests.data.test_writer import copy_of_descriptor
from tests.waiting import LIMIT_S


def test_it_appears_whole_and_nothing_else_stays(tmp_path: Path) -> None:
    target = tmp_path / "new" / "model.gguf"
    with unfinished(target) as part:
        part.write_text("half")
        assert not target.exists()
        part.write_text("whole")
        finish(part, target)
    assert [path.name for path in target.parent.iterdir()] == ["model.gguf"]
    assert target.read_text() == "whole"


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    (tmp_path / ".model.gguf.part").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic links"), unfinished(tmp_path / "model.gguf"):
        pass
    assert (tmp_path / "precious").read_text() == "kept"


def test_a_failure_leaves_nothing_and_keeps_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "model.gguf"
    target.write_text("old")
    with pytest.raises(RuntimeError), unfinished(target) as part:
        part.write_text("half")
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]
    assert target.read_text() == "old"


def test_a_second_maker_waits_and_then_finds_it_made(tmp_path: Path) -> None:
    """And waits no longer, though a process that the first is just starting holds a copy of its lock's descriptor."""
    target, message, observed = tmp_path / "model.gguf", threading.Event(), []

    def second() -> None:
        with unfinished(target, lambda text: message.set()):
            observed.append(target.read_text())

    with unfinished(target) as part:
        copy = copy_of_descriptor(part)
        maker = threading.Thread(target=second)
        maker.start()
        assert message.wait(LIMIT_S)
        assert not observed
        part.write_text("whole")
        finish(part, target)
    maker.join(60)
    held_up = maker.is_alive()
    os.close(copy)
    assert not held_up
    assert observed == ["whole"]
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_leftovers_go_and_parts_in_the_making_stay(tmp_path: Path) -> None:
    leftover = tmp_path / ".killed.gguf.part"
    leftover.write_text("half")
    with unfinished(tmp_path / "mine.gguf") as part:
        remove_leftovers(tmp_path)
        assert part.exists()
    assert not leftover.exists()


def test_what_is_there_is_not_made_again(tmp_path: Path) -> None:
    calls: list[Path] = []

    def make(part: Path) -> None:
        calls.append(part)
        part.write_text("whole")

    target = tmp_path / "new" / "model.gguf"
    assert made_once(target, make) == made_once(target, make) == target
    assert len(calls) == 1
    assert target.read_text() == "whole"


def test_what_could_not_be_made_is_tried_again(tmp_path: Path) -> None:
    target = tmp_path / "model.gguf"

    def fail(part: Path) -> None:
        part.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        made_once(target, fail)
    assert list(tmp_path.iterdir()) == []
    made_once(target, Path.touch)
    assert target.is_file()
