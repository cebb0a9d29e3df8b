from __future__ import annotations

import ast
import re
from pathlib import Path

import benchctl
from benchctl.engines.base import Attestation
from benchctl.engines.common.log import READ_THE_LOG, clean, log_tail, name_log
from benchctl.errors import EngineError
from benchctl.measurement.recording import attestation_record, cell_error


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


def test_advice_to_read_the_log_always_names_its_path() -> None:
    """Whatever sends a reader to the engine's log does so in words that `name_log` finds."""
    package, mentions = Path(benchctl.__file__).parent, 0
    for file in sorted(package.glob("engines/**/*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            if re.search(r"(?i)(?:read|see|with) the engine's log\b", text) and "\n" not in text:
                mentions += 1
                named = name_log(text, Path("/runs/logs/a.log"))
                assert "/runs/logs/a.log" in named, f"{file}: {text}"
                assert name_log(named, Path("/b.log")) == named
                assert "engine's" not in name_log(text, None)
    assert mentions > 5
    result = attestation_record(Attestation("failed", (), "It was not on.", READ_THE_LOG), Path("/runs/logs/a.log"))
    assert result.remedy == "Read the engine's log (/runs/logs/a.log)."
    error = EngineError(
        "It broke.",
        kind="protocol",
        fix="Read the engine's log, and check that this is the kind of server that the recipe names.",
    )
    assert str(cell_error(error, Path("/runs/logs/a.log")).remedy).startswith(
        "Read the engine's log (/runs/logs/a.log), "
    )
