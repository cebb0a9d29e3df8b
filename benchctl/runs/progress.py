"""What the runner tells while it works, and how it is shown: live on a terminal, as plain lines in a pipe, or not."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from benchctl.engines.base import Completion
from benchctl.plain_text import visible
from benchctl.runs.plan import CellPlan
from benchctl.runs.time_left import TimeLeft, spoken


class RunProgress:
    """What the runner tells. This one shows nothing: for `--quiet` and `--json`, and the base of the others."""

    def begin(self, plan: list[CellPlan], *, open_ended: bool = False) -> None:
        """The plan is known; `open_ended`: there may come more."""

    def more(self, plan: list[CellPlan]) -> None:
        """Further cells will be run."""

    def cell_started(self, cell: CellPlan) -> None:
        """An engine process is being launched."""

    def cell_ready(self, cell: CellPlan) -> None:
        """The engine is healthy, attested and warm."""

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
        self.cells = self.total = self.ended = 0
        self.open_ended = False
        self.rates: dict[str, list[float | None]] = {}
        """Of every cell that is up, the decode rate of each answer so far; `None` for one that failed."""

    def begin(self, plan: list[CellPlan], *, open_ended: bool = False) -> None:
        self.open_ended = open_ended
        self.more(plan)

    def more(self, plan: list[CellPlan]) -> None:
        self.clock.extend(plan)
        self.cells += len(plan)
        self.total += sum(len(cell.prompts) for cell in plan)

    def cell_started(self, cell: CellPlan) -> None:
        self.rates[cell.name] = []
        self.clock.cell_started(cell.arm.name)

    def cell_ready(self, cell: CellPlan) -> None:
        self.clock.cell_ready(cell.arm.name)

    def asked(self, cell: CellPlan, task: str, prompt_idx: int) -> None:
        self.clock.asked()

    def answered(self, cell: CellPlan, completion: Completion | None) -> None:
        self.clock.answered(cell.arm.name)
        timed = completion is not None and completion.decode_s > 0
        rate = (completion.n_predicted - 1) / completion.decode_s if completion and timed else None
        self.rates[cell.name].append(rate)

    def cell_ended(self, cell: CellPlan, failure: str | None) -> None:
        self.ended += 1
        self.clock.cell_ended(cell.arm.name, len(cell.prompts) - len(self.rates[cell.name]))

    def note(self, text: str) -> None:
        self.console.print(Text(visible(text), style="yellow"), soft_wrap=not self.console.is_terminal)

    def summary(self, cell: CellPlan, failure: str | None) -> Text:
        """One line for an ended cell."""
        line = Text(f"[{self.ended}/{self.cells}{'+' if self.open_ended else ''}] {cell.name}: ")
        if failure is not None:
            return line.append(f"failed: {visible(failure)}", style="red")
        rates = [rate for rate in self.rates[cell.name] if rate is not None]
        mean = sum(rates) / len(rates) if rates else 0.0
        return line.append(f"{len(rates)} answers, {mean:.1f} tok/s")

    def left(self) -> str:
        """The time left in words; empty before anything is known."""
        seconds = self.clock.left()
        if seconds is None or (self.open_ended and seconds < 1):
            return ""
        return f"{'at least' if self.open_ended else 'about'} {spoken(seconds)} left"


class Lines(_Counted):
    """Plain lines, one a cell, for pipes and logs."""

    def cell_ended(self, cell: CellPlan, failure: str | None) -> None:
        super().cell_ended(cell, failure)
        left = self.left()
        line = self.summary(cell, failure).append(f", {left}" if left else "")
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

    def begin(self, plan: list[CellPlan], *, open_ended: bool = False) -> None:
        super().begin(plan, open_ended=open_ended)
        self.bar.start()

    def more(self, plan: list[CellPlan]) -> None:
        super().more(plan)
        self.bar.update(self.task, total=self.total)

    def cell_started(self, cell: CellPlan) -> None:
        super().cell_started(cell)
        self.bar.update(self.task, description=f"{cell.name}: starting the engine")

    def asked(self, cell: CellPlan, task: str, prompt_idx: int) -> None:
        super().asked(cell, task, prompt_idx)
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
        self.bar.update(self.task, advance=1, left=self.left())

    def cell_ended(self, cell: CellPlan, failure: str | None) -> None:
        super().cell_ended(cell, failure)
        self.console.print(self.summary(cell, failure))

    def end(self) -> None:
        self.bar.stop()


def progress_for(console: Console, *, quiet: bool) -> RunProgress:
    """Choose the form that fits where the output goes."""
    if quiet:
        return RunProgress()
    return Live(console) if console.is_terminal else Lines(console)
