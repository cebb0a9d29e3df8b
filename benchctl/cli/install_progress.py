"""How an installation shows that it goes on: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchctl.engines.installing import Report


@contextmanager
def show_progress(name: str) -> Iterator[Report]:
    """Give a function that shows what is being done to `name`, and how much of it is, on stderr."""
    if not sys.stderr.isatty():
        yield _PlainLines(name)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(name, total=None)

        def report(stage: str, done: int, total: int) -> None:
            progress.update(task, description=f"{name}: {stage}", completed=done, total=total or None)

        yield report


class _PlainLines:
    """A line for every stage, and one for every tenth of a stage that counts its steps."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.last = ("", -1)

    def __call__(self, stage: str, done: int, total: int) -> None:
        tenth = done * 10 // total if total else 0
        if (stage, tenth) == self.last:
            return
        self.last = (stage, tenth)
        steps = f" {done}/{total}" if total else ""
        sys.stderr.write(f"{self.name}: {stage}{steps}\n")
        sys.stderr.flush()
