"""A name says what it holds: vague names are rare."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORDS = """
    again alone asked at beside both each every found given held here how kept known lanes least left made more most
    nothing of once one other others own place rest said seen so_far taken there together told what whole whose why
    written wrong
"""
VAGUE = frozenset(WORDS.split())


def assigned(file: Path) -> Iterator[str]:
    """Yield every variable and parameter of a file."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


@pytest.mark.parametrize(("folder", "most_per_1000_lines"), [("benchctl", 3), ("tests", 5)])
def test_vague_names_are_rare(folder: str, most_per_1000_lines: int) -> None:
    """Where this fails, give what you added a name of the field: `verdict`, `rows`, `reason`, `index`, `reported`."""
    files = list((ROOT / folder).rglob("*.py"))
    lines = sum(len(file.read_text("utf-8").splitlines()) for file in files)
    vague = sum(name in VAGUE for file in files for name in assigned(file))
    assert 1000 * vague / lines <= most_per_1000_lines
