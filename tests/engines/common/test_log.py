from __future__ import annotations

from pathlib import Path

from benchctl.engines.common.log import clean, log_tail


def test_what_a_terminal_would_obey_is_gone() -> None:
    assert clean("a\x1b[31mred\x1b[0m\x1b]0;title\x07b\x00\x08\r\x9b1m\u202ec\td\x1b") == "ared" + "b1mc\td"


def test_the_last_lines_are_kept_and_cut(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"\n".join(b"line %d" % i for i in range(50000)) + b"\n\n\xff\xfe bad\n" + b"x" * 5000)
    tail = log_tail(log, 3)
    assert tail[0] == "line 49999"
    assert tail[1] == "\ufffd\ufffd bad"
    assert len(tail[2]) == 600


def test_no_log_has_no_lines(tmp_path: Path) -> None:
    assert log_tail(tmp_path / "none") == ()
