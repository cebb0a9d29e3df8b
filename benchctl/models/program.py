"""A program that works on model files and ends: llama-quantize, llama.cpp's converter.

It is handed in from above, since this floor starts no process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

OnLine = Callable[[str], None]
"""Called with every line of a program's output, as it comes; untrusted text."""

Run = Callable[[Sequence[str], Path, OnLine | None], int]
"""(command, log, on_line): run it to its end with its output in `log`; return the exit status, negative for a signal.

Whatever happens to benchctl meanwhile, the program ends with it. Raises EngineError (`launch`) when it does not start.
"""


@dataclass(frozen=True)
class Program:
    """A program and how to run it."""

    command: tuple[str, ...]
    """What its arguments are added to."""
    build: str
    """SHA-256 of what decides its result: the program with its libraries."""
    run: Run

    @property
    def where(self) -> str:
        """What messages call it: its file."""
        return self.command[-1]
