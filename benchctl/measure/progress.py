"""What the runner tells while it works, and how it is shown: live on a terminal, as plain lines in a pipe, or not."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from benchctl.engines.base import Completion
from benchctl.measure.estimate import TimeLeft
from benchctl.measure.plan import CellPlan
from benchctl.text import one_line, spoken, visible


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

    def tokens_together(self, cell: CellPlan, count: int) -> None:
        """So many tokens have arrived in all answers of this cell, of which several are in flight."""

    def answered(self, cell: CellPlan, completion: Completion | None) -> None:
        """An answer is complete, or failed (`None`)."""

    def cell_ended(self, cell: CellPlan, failure: str | None) -> None:
        """The engine process has ended."""

    def note(self, text: str) -> None:
        """Something the user should read."""

    def end(self) -> None:
        """The run is over."""


class Display:
    """What goes on, drawn by rich: on a terminal a live line below the finished steps, in a pipe the steps alone."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=None, left="")

    @property
    def live(self) -> bool:
        """Whether there is a live line."""
        return self.console.is_terminal

    def start(self) -> None:
        """Show the live line from now on."""
        self._bar.start()

    def stop(self) -> None:
        """Take the live line away."""
        self._bar.stop()

    def update(
        self, what: str | None = None, *, done: int = 0, total: int | None = None, left: str | None = None
    ) -> None:
        """Say what is being done, how many more steps are done, of how many, and what time is left; `None` stays."""
        if what is not None:
            self._bar.update(self._task, description=one_line(what))
        if left is not None:
            self._bar.update(self._task, left=left)
        self._bar.update(self._task, advance=done, total=total)

    def line(self, text: Text) -> None:
        """Print a finished step."""
        self.console.print(text, soft_wrap=not self.live)

    def note(self, text: str) -> None:
        """Print something that the user should read."""
        self.console.print(Text(visible(text), style="yellow"), soft_wrap=not self.live)


class RunDisplay(RunProgress):
    """Shows a run: how much is done, what the current cell achieves, how long the rest takes."""

    def __init__(self, console: Console) -> None:
        self.display = Display(console)
        self.what = ""
        self.in_flight = 0
        self.sent = self.first = 0.0
        self.clock = TimeLeft([])
        self.cells = self.total = self.ended = 0
        self.open_ended = False
        self.decoded: dict[str, list[tuple[int, float] | None]] = {}
        """Of every cell that is up, decode steps and seconds of each answer so far; `None` for one that failed."""
        self.span: dict[str, tuple[float, float]] = {}
        """Of every cell that was asked, when its first request was sent and when its last one so far ended."""
        self.answered_tokens: dict[str, int] = {}

    def begin(self, plan: list[CellPlan], *, open_ended: bool = False) -> None:
        self.open_ended = open_ended
        self.more(plan)
        self.display.start()

    def more(self, plan: list[CellPlan]) -> None:
        self.clock.extend(plan)
        self.cells += len(plan)
        self.total += sum(len(cell.prompts) for cell in plan)
        self.display.update(total=self.total)

    def cell_started(self, cell: CellPlan) -> None:
        self.decoded[cell.name] = []
        self.answered_tokens[cell.name] = 0
        self.span.pop(cell.name, None)  # of a process before this one
        self.clock.cell_started(cell.arm.name)
        self.display.update(f"{cell.name}: starting the engine")

    def cell_ready(self, cell: CellPlan) -> None:
        self.clock.cell_ready(cell.arm.name)
        self.in_flight, self.first = 0, 0.0

    def asked(self, cell: CellPlan, task: str, prompt_idx: int) -> None:
        now = time.monotonic()
        self.span.setdefault(cell.name, (now, now))
        self.in_flight += 1
        if cell.arm.overlapping:
            self.what = f"{cell.name}: {self.in_flight} in flight"
        else:
            self.what, self.first = f"{cell.name}: {task}/{prompt_idx}", 0.0

    def tokens(self, count: int) -> None:
        now = time.monotonic()
        if not self.first:
            self.first = now
        elif now - self.sent > 0.2:  # drawing more often would take time from the measurement
            self.sent = now
            self.display.update(f"{self.what}, {count} tokens, {count / (now - self.first):.1f} tok/s")

    def tokens_together(self, cell: CellPlan, count: int) -> None:
        self.tokens(count)

    def answered(self, cell: CellPlan, completion: Completion | None) -> None:
        self.clock.answered(cell.arm.name)
        self.decoded[cell.name].append((completion.n_predicted - 1, completion.decode_s) if completion else None)
        self.answered_tokens[cell.name] += completion.n_predicted if completion else 0
        if cell.name in self.span:
            self.span[cell.name] = (self.span[cell.name][0], time.monotonic())
        self.in_flight = max(0, self.in_flight - 1)  # a prompt that could not be rendered never was in flight
        self.display.update(done=1, left=self.left())

    def cell_ended(self, cell: CellPlan, failure: str | None) -> None:
        self.ended += 1
        self.clock.cell_ended(cell.arm.name, len(cell.prompts) - len(self.decoded[cell.name]))
        left = "" if self.display.live else self.left()
        self.display.line(self.summary(cell, failure).append(f", {left}" if left else ""))

    def note(self, text: str) -> None:
        self.display.note(text)

    def end(self) -> None:
        self.display.stop()

    def summary(self, cell: CellPlan, failure: str | None) -> Text:
        """One line for an ended cell."""
        line = Text(f"[{self.ended}/{self.cells}{'+' if self.open_ended else ''}] {cell.name}: ")
        if failure is not None:
            return line.append(f"failed: {visible(failure)}", style="red")
        answers = [answer for answer in self.decoded[cell.name] if answer is not None]
        seconds = sum(passed for _, passed in answers)
        rate = sum(steps for steps, _ in answers) / seconds if seconds else 0.0
        line.append(f"{len(answers)} answers, {rate:.1f} tok/s")
        if answers and cell.arm.overlapping:
            first, last = self.span[cell.name]
            together = self.answered_tokens[cell.name] / (last - first) if last > first else 0.0
            line.append(f" each, {together:.1f} tok/s together")
        return line

    def left(self) -> str:
        """The time left in words; empty before anything is known."""
        seconds = self.clock.left()
        if seconds is None or (self.open_ended and seconds < 1):
            return ""
        return f"{'at least' if self.open_ended else 'about'} {spoken(seconds)} left"


def progress_for(console: Console, *, quiet: bool) -> RunProgress:
    """Return what shows a run on `console`, or nothing."""
    if quiet:
        return RunProgress()
    return RunDisplay(console)
