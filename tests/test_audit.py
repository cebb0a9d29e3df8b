"""The audit of dependencies: licences without a network, and a plain word about what could not be looked up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

AUDIT = Path(__file__).parents[1] / ".ci" / "audit"
FLAW = {"id": "PYSEC-1", "fix_versions": ["2.0"], "aliases": [], "description": ""}
CLEAN = {"dependencies": [{"name": "rich", "version": "1.0", "vulns": []}]}
FOUND = {"dependencies": [{"name": "rich", "version": "1.0", "vulns": [FLAW]}]}
SKIPPED = {"dependencies": [{"name": "private", "skip_reason": "not found on PyPI"}]}


@pytest.mark.parametrize(
    ("answer", "strict", "code", "expected"),
    [
        (json.dumps(CLEAN), True, 0, "Not looked up: none"),
        (json.dumps(FOUND), False, 1, "rich 1.0: PYSEC-1, mended in 2.0"),
        (json.dumps(SKIPPED), False, 0, "private: not found on PyPI"),
        (json.dumps(SKIPPED), True, 1, "private: not found on PyPI"),
        ("", False, 0, "nothing of it: ERROR: no route to host"),
        ("", True, 1, "nothing of it: ERROR: no route to host"),
        (None, False, 0, "pip-audit could not be run"),
    ],
)
def test_only_a_finding_fails_unless_it_is_strict(
    answer: str | None, strict: bool, code: int, expected: str, tmp_path: Path
) -> None:
    program = tmp_path / "pip-audit"
    if answer is not None:
        program.write_text(f"#!/bin/sh\necho 'ERROR: no route to host' >&2\ncat <<'END'\n{answer}\nEND\nexit 1\n")
        program.chmod(0o755)
    words = [sys.executable, str(AUDIT), "--pip-audit", str(program), *(["--strict"] if strict else [])]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert expected in done.stdout
    assert "Traceback" not in done.stderr
    assert any(line.startswith("numpy ") and "BSD" in line for line in done.stdout.splitlines()), "licences are listed"
