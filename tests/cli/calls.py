"""Calling a command as a user does, in this process."""

from __future__ import annotations

import typer
from typer.testing import CliRunner, Result


def call(app: typer.Typer, *words: str) -> Result:
    """Call a command; its exit code and output are in the result."""
    return CliRunner().invoke(app, list(words))


def answer(app: typer.Typer, *words: str) -> str:
    """What a command prints; it must succeed."""
    result = call(app, *words)
    assert result.exit_code == 0, result.output
    return result.stdout
