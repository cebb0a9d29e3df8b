"""What the runner tells while it works, and how it is shown: live on a terminal, as plain lines in a pipe, or not."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from benchctl.engines.base import Completion
from benchctl.plain_text import visible
from benchctl.runs.plan import CellPlan
from benchctl.runs.time_left import TimeLeft


class RunProgress:
    """What the runner tells. This one shows nothing: for `--quiet` and `--json`, and the base of the others."""

    def begin(self, plan: list[CellPlan]) -> None:
        """The plan is known."""

    def cell_started(self, cell: CellPlan) -> None:
        """An engine process is being launched."""

    def asked(self, cell: CellPlan, task: str, prompt_idx: int) -> None:
        """A request was sent."""

    def tokens(self, count: int) -> None:
        """So many tokens of the current answer have arrived."""

    def answered(self, cell: CellPlan, completion: Completion | None) -> None:
        """An answer is complete, or failed (`None`)."""

    def cell_ended(self, cell: CellPlan, failure: str | None) -> None:
        """The engine process has ended."""

    def note(self, text: str) -> None:
        """Something the user should read."""

    def end(self) -> None:
        """The run is over."""


class _Counted(RunProgress):
    """Keeps what both visible forms need: how much is done, and what the current cell achieved."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.clock = TimeLeft([])
        self.cells = self.total = self.number = 0
        self.rates: list[float] = []

    def begin(self, plan: list[CellPlan]) -> None:
        self.clock = TimeLeft(plan)
        self.cells, self.total = len(plan), sum(len(cell.prompts) for cell in plan)

    def cell_started(self, cell: CellPlan) -> None:
        self.number += 1
        self.rates = []
        self.clock.cell_started(cell.arm.name)

    def answered(self, cell: CellPlan, completion: Completion | None) -> None:
        self.clock.answered(cell.arm.name)
        if completion and completion.decode_s > 0:
            self.rates.append((completion.n_predicted - 1) / completion.decode_s)

    def cell_ended(self, cell: CellPlan, failure: str | None) -> None:
        self.clock.cell_ended(cell.arm.name)

    def note(self, text: str) -> None:
        self.console.print(Text(visible(text), style="yellow"), soft_wrap=not self.console.is_terminal)

    def summary(self, cell: CellPlan, failure: str | None) -> Text:
        """One line for an ended cell."""
        line = Text(f"[{self.number}/{self.cells}] {cell.name}: ")
        if failure is not None:
            return line.append(f"failed: {visible(failure)}", style="red")
        mean = sum(self.rates) / len(self.rates) if self.rates else 0.0
        return line.append(f"{len(self.rates)} answers, {mean:.1f} tok/s")


class Lines(_Counted):
    """Plain lines, one a cell, for pipes and logs."""

    def cell_ended(self, cell: CellPlan, failure: str | None) -> None:
        super().cell_ended(cell, failure)
        line = self.summary(cell, failure)
        left = self.clock.left()
        if left is not None:
            line.append(f", about {spoken(left)} left")
        self.console.print(line, soft_wrap=True)


class Live(_Counted):
    """A live line with a bar: arm, prompt, tokens so far, tokens per second, time left."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            console=console,
            transient=True,
        )
        self.task = self.bar.add_task("starting", total=None, left="")
        self.what = ""
        self.sent = self.first = 0.0

    def begin(self, plan: list[CellPlan]) -> None:
        super().begin(plan)
        self.bar.update(self.task, total=self.total)
        self.bar.start()

    def cell_started(self, cell: CellPlan) -> None:
        super().cell_started(cell)
        self.bar.update(self.task, description=f"{cell.name}: starting the engine")

    def asked(self, cell: CellPlan, task: str, prompt_idx: int) -> None:
        self.what, self.first = f"{cell.name}: {task}/{prompt_idx}", 0.0

    def tokens(self, count: int) -> None:
        now = time.monotonic()
        if not self.first:
            self.first = now
        elif now - self.sent > 0.2:  # drawing more often would take time from the measurement
            self.sent = now
            rate = count / (now - self.first)
            self.bar.update(self.task, description=f"{self.what}, {count} tokens, {rate:.1f} tok/s")

    def answered(self, cell: CellPlan, completion: Completion | None) -> None:
        super().answered(cell, completion)
        left = self.clock.left()
        self.bar.update(self.task, advance=1, left="" if left is None else f"about {spoken(left)} left")

    def cell_ended(self, cell: CellPlan, failure: str | None) -> None:
        super().cell_ended(cell, failure)
        self.console.print(self.summary(cell, failure))

    def end(self) -> None:
        self.bar.stop()


def spoken(seconds: float) -> str:
    """Return a duration as people say it: `40 s`, `3 min`, `2 h 10 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def progress_for(console: Console, *, quiet: bool) -> RunProgress:
    """Choose the form that fits where the output goes."""
    if quiet:
        return RunProgress()
    return Live(console) if console.is_terminal else Lines(console)
