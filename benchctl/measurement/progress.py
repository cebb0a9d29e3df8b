"""What goes on, drawn by rich: on a terminal live lines below the finished steps, in a pipe those alone, or nothing.

A display shows the steps of any long command; a run reports its cells and answers, and what they come to.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from benchctl.engines.base import Completion
from benchctl.measurement.estimate import Timings
from benchctl.measurement.plan import CellPlan
from benchctl.recipes.groups import ComparedArm
from benchctl.text import one_line, spoken, visible

WIDE = 100
"""Columns of a terminal from which on the live line has room for the time that passed."""
RATED_TOKENS = 10
"""The rate of an answer is shown from so many tokens on: that of two is noise."""


class _Bar(Progress):
    """The live line, with further lines below it."""

    standing: str = ""
    below: tuple[str, ...] = ()

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return the line and those below it."""
        yield from super().get_renderables()
        if self.standing:
            yield Text(self.standing, style="cyan")
        for line in self.below:
            yield Text(f"  {line}", style="dim", no_wrap=True, overflow="ellipsis")


class Display:
    """A live line that turns and counts its seconds, whatever is being waited for, and steps that are over."""

    def __init__(self, console: Console) -> None:
        self.console = console
        wide = console.width >= WIDE
        self._bar = _Bar(
            SpinnerColumn(),
            TextColumn(
                "{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")
            ),
            BarColumn(bar_width=24 if wide else 8),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            *([TimeElapsedColumn(table_column=Column(no_wrap=True))] if wide else []),
            TextColumn("{task.fields[left]}", markup=False, table_column=Column(no_wrap=True)),
            console=console,
            expand=True,
            transient=True,
            disable=not self.live,
        )
        self._task = self._bar.add_task("starting", total=None, left="")

    @property
    def live(self) -> bool:
        """Whether there is a live line."""
        return self.console.is_terminal and not self.console.quiet

    def __enter__(self) -> Display:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Show the live line from now on."""
        self._bar.start()

    def stop(self) -> None:
        """Take the live line away."""
        self._bar.stop()

    def update(
        self, step: str | None = None, *, done: int = 0, total: int | None = None, time_left: str | None = None
    ) -> None:
        """Update what is being done, how many more steps are done, of how many, and what time is left; `None` stays."""
        if step is not None:
            self._bar.update(self._task, description=one_line(step))
        if time_left is not None:
            self._bar.update(self._task, left=time_left)
        self._bar.update(self._task, advance=done, total=total)

    def at(self, step: str, done: int, total: int) -> None:
        """Show a step of which so much is done; `total` 0: not counted."""
        self._bar.update(self._task, description=one_line(step), completed=done, total=total or None)

    def below(self, lines: Iterable[str]) -> None:
        """Show further lines below the live line."""
        self._bar.below = tuple(one_line(line) for line in lines)
        self._bar.refresh()

    def standing(self, text: str) -> None:
        """Show something below the live line until it is replaced; where there is none, print it."""
        if self.live:
            self._bar.standing = one_line(text, 2000)
            self._bar.refresh()
        else:
            self.console.print(Text(one_line(text, 2000)), soft_wrap=True)

    def line(self, text: Text) -> None:
        """Print a finished step."""
        self.console.print(text, soft_wrap=not self.live)

    def note(self, text: str, style: str = "yellow") -> None:
        """Print something that the user should read."""
        self.console.print(Text(visible(text), style=style), soft_wrap=not self.live)


@contextmanager
def shown_steps(name: str = "", *, quiet: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """Give a function of (step, how much of it is done, of how much) that shows it on stderr.

    A live line on a terminal; elsewhere a line for every step that is not counted, and for every tenth of the others.
    A step that is a sentence, with its full stop, stays as a line of its own.
    """
    display, printed = Display(Console(stderr=True, highlight=False, quiet=quiet)), ("", -1)
    begun = ("", 0, 0.0)  # the step, how much of it was done when it was first shown, and when

    def show(step: str, done: int, total: int) -> None:
        nonlocal printed, begun
        text = f"{name}: {step}" if name else step
        if begun[0] != step or done < begun[1]:
            begun = (step, done, time.monotonic())
        remaining = _time_left(time.monotonic() - begun[2], done - begun[1], total - done)
        if display.live and not step.endswith("."):
            display.update(time_left=remaining)
            display.at(text, done, total)
        elif printed != (now := ("", done * 10 // total) if total else (step, -1)):
            printed = now
            counted = f" {done}/{total}{f', {remaining}' if remaining else ''}" if total else ""
            display.line(Text(f"{one_line(text)}{counted}"))

    with display:
        yield show


def _time_left(passed_s: float, done: int, left: int) -> str:
    """Return how long the rest of a counted step takes at its pace so far; empty before a twentieth is done."""
    if left <= 0 or done <= 0 or done < (done + left) / 20:
        return ""
    return f"about {spoken(passed_s * left / done)} left"


Place = tuple[int, str, int]
"""Block, task and index of the prompt."""


class RunningSpeedups:
    """The speed-ups while a run goes on, computed between cells, when nothing is being measured.

    Answers one at a time of every arm are paired with its baseline's to the same prompt of the same block.
    """

    def __init__(self, compared: Mapping[str, ComparedArm]) -> None:
        self._compared = [arm for arm in compared.values() if arm.group.one_at_a_time and not arm.is_baseline]
        self._current: dict[str, Place] = {}
        self._answers: dict[str, dict[Place, tuple[int, float]]] = defaultdict(dict)

    def request_sent(self, cell: CellPlan, task: str, prompt_idx: int) -> None:
        """A request was sent, the only request in flight of its arm."""
        self._current[cell.arm.name] = (cell.block, task, prompt_idx)

    def answered(self, cell: CellPlan, completion: Completion | None) -> None:
        """Its answer is complete, or failed (`None`)."""
        prompt = self._current.pop(cell.arm.name, None)
        if prompt is not None and completion is not None and completion.after_first and completion.decode_s:
            self._answers[cell.arm.name][prompt] = (completion.after_first, completion.decode_s)

    def _baseline(self, arm: ComparedArm) -> dict[Place, tuple[int, float]]:
        """The answers of an arm's baseline, at the mean pace of both of its cells; its first alone for its second."""
        first = self._answers[arm.baseline]
        second = {} if arm.again is None or arm.is_again else self._answers[arm.again]
        paces = {prompt: seconds / tokens for prompt, (tokens, seconds) in second.items()}
        return {
            prompt: (tokens, (seconds + paces.get(prompt, seconds / tokens) * tokens) / 2)
            for prompt, (tokens, seconds) in first.items()
        }

    def lines(self) -> list[str]:
        """Return a line for every arm with a pair: the pooled speed-up, and its interval from three blocks on."""
        import numpy as np

        from benchctl.analysis.result import MIN_BLOCKS
        from benchctl.analysis.speedup import pooled
        from benchctl.analysis.statistics import pooled_interval

        lines = []
        for arm in self._compared:
            ours, theirs = self._answers[arm.name], self._baseline(arm)
            paired = sorted(ours.keys() & theirs.keys())
            if not paired:
                continue
            sums = np.array([(*ours[prompt], *theirs[prompt]) for prompt in paired])
            block = np.array([prompt[0] for prompt in paired])
            interval, blocks = pooled_interval(sums, block), len(set(block.tolist()))
            if interval is not None:
                spread = f"{interval.low:.2f} to {interval.high:.2f}, {blocks} repetitions"
            else:
                spread = f"{blocks} of {MIN_BLOCKS} repetitions"
            lines.append(f"{arm.name}: {pooled(sums):.2f}× so far ({spread})")
        return lines


class RunProgress:
    """Shows a run: how much is done, what the current cell achieves, the speed-up so far, how long the rest takes.

    Without a console, as for `--quiet` and `--json`, it shows nothing. `verbose`: a line for every answer, too.
    """

    def __init__(self, console: Console | None = None, *, verbose: bool = False) -> None:
        self.display = Display(console or Console(quiet=True))
        self.verbose = verbose
        self.speedups = RunningSpeedups({})
        self.what = ""
        self.in_flight = 0
        self.sent = self.first = 0.0
        self.cells = self.total = self.ended = 0
        self.open_ended = False
        self.decoded: dict[str, list[tuple[int, float] | None]] = defaultdict(list)
        """Timed tokens and seconds of each answer so far, by running cell; `None` for a failed answer."""
        self.span: dict[str, tuple[float, float]] = {}
        """When the first request of a cell was sent, and when the latest ended."""
        self.answered_tokens: Counter[str] = Counter()
        self.timings = Timings()
        self.begun: float | None = None
        """When the first cell could start."""
        self.timed_s = 0.0
        """The sum of all process starts and answers so far, in seconds."""
        self.stretch = 1.0
        """The time that passed until a cell ended over that."""
        self.ahead: dict[str, CellPlan] = {}
        """Cells that have not ended, by name."""
        self.started: dict[str, float] = {}
        """When each process was launched that is not ready yet."""
        self.ready: set[str] = set()
        self.announced = False
        """Whether the time left, by the first answers, was printed."""

    def waiting(self, step: str) -> None:
        """Something before the first cell takes its time: reading models, the preflight."""
        self.display.update(step)
        self.display.start()

    def begin(
        self,
        plan: list[CellPlan],
        *,
        open_ended: bool = False,
        compared: Mapping[str, ComparedArm] | None = None,
        timings: Timings | None = None,
    ) -> None:
        """The plan is known; `open_ended`: there may come more. `compared`: of the recipe. `timings`: earlier ones."""
        self.open_ended, self.begun = open_ended, time.monotonic()
        self.timings = Timings(timings)
        self.announced = timings is not None and timings.known
        self.speedups = RunningSpeedups(compared or {})
        self.more(plan)
        self.display.start()

    def more(self, plan: list[CellPlan]) -> None:
        """Further cells will be run."""
        self.cells += len(plan)
        self.ahead |= {cell.name: cell for cell in plan}
        self.total += sum(len(cell.prompts) for cell in plan)
        self.display.update(total=self.total)

    def cell_started(self, cell: CellPlan) -> None:
        """An engine process is being launched."""
        for earlier in (self.decoded, self.answered_tokens, self.span):  # of an earlier process
            earlier.pop(cell.name, None)
        self.ready.discard(cell.name)
        self.started[cell.name] = time.monotonic()
        self.display.update(f"{cell.name}: launching the engine, which loads its models")

    def cell_ready(self, cell: CellPlan) -> None:
        """The engine is healthy, attested and warm."""
        self.in_flight, self.first = 0, 0.0
        self.ready.add(cell.name)
        if cell.name in self.started:
            self._add(self.timings.starts[cell.arm.name], time.monotonic() - self.started.pop(cell.name))
        self.display.update(f"{cell.name}: ready")

    def request_sent(self, cell: CellPlan, task: str, prompt_idx: int) -> None:
        """A request was sent."""
        now = time.monotonic()
        self.span.setdefault(cell.name, (now, now))
        self.in_flight += 1
        if cell.arm.overlapping:
            self.what = f"{cell.name}: {self.in_flight} in flight"
        else:
            self.what, self.first = f"{cell.name}: {task}/{prompt_idx}", 0.0
            self.speedups.request_sent(cell, task, prompt_idx)
            self.display.update(f"{self.what}, prompt processing")

    def tokens(self, count: int) -> None:
        """So many tokens of the current answer have arrived."""
        if not self.display.live:
            return
        now = time.monotonic()
        if not self.first:
            self.first = now
        elif now - self.sent > 0.2:  # drawing more often would take time from the measurement
            self.sent = now
            enough = count >= RATED_TOKENS
            rate = f", {(count - 1) / (now - self.first):.1f} tok/s" if enough else f", {count} tokens"
            self.display.update(f"{self.what}{rate}")

    def answered(self, cell: CellPlan, completion: Completion | None) -> None:
        """An answer is complete, or failed (`None`)."""
        self.decoded[cell.name].append(_timed(completion) if completion else None)
        self.answered_tokens[cell.name] += completion.n_predicted if completion else 0
        if cell.name in self.span:
            self.span[cell.name] = (self.span[cell.name][0], time.monotonic())
        self.in_flight = max(0, self.in_flight - 1)  # a prompt that could not be rendered never was in flight
        self.speedups.answered(cell, completion)
        if completion and not cell.arm.overlapping:
            self._add(self.timings.answers[cell.arm.name], completion.e2e_s)
        self.display.update(done=1, time_left=self.left().replace("at least ", "≥ "))
        if not self.display.live and not self.announced and (time_left := self.left()):
            self.announced = True
            self.display.line(Text(f"By the first answers: {time_left}."))
        if self.verbose:
            self.display.line(Text(f"  {self.what}: {_answer(completion)}", style="dim"))

    def cell_ended(self, cell: CellPlan, failure: str | None) -> None:
        """The engine process has ended."""
        self.ended += 1
        self.ahead.pop(cell.name, None)
        answers = len(self.decoded[cell.name])
        if cell.name in self.span and cell.name in self.ready:
            first, last = self.span[cell.name]
            self.timings.starts[cell.arm.name][-1] += (stopping := time.monotonic() - last)
            self.timed_s += stopping
            if cell.arm.overlapping and answers:
                self.timings.answers[cell.arm.name].append((last - first) / answers)
                self.timed_s += last - first
        if cell.name in self.started:
            self.timed_s += time.monotonic() - self.started.pop(cell.name)
        if self.begun is not None and self.timed_s:
            self.stretch = (time.monotonic() - self.begun) / self.timed_s
        self.announced = True
        self.total -= len(cell.prompts) - len(self.decoded[cell.name])  # what it did not answer will not come
        self.display.update(total=self.total)
        time_left = "" if self.display.live else self.left()
        self.display.line(self.summary(cell, failure).append(f", {time_left}" if time_left else ""))
        if self.display.live:
            self.display.below(self.speedups.lines())

    def standing(self, heading: str, arms: Sequence[str]) -> None:
        """Which arms of a search remain, fastest first, with their speed-ups so far."""
        self.display.standing(f"{heading}: {', '.join(arms)}.")

    def note(self, text: str) -> None:
        """Something the user should read."""
        self.display.note(text)

    def end(self) -> None:
        """The run is over."""
        self.display.stop()

    def summary(self, cell: CellPlan, failure: str | None) -> Text:
        """A line for an ended cell."""
        line = Text(f"[{self.ended}/{self.cells}{'+' if self.open_ended else ''}] {cell.name}: ")
        if failure is not None:
            return line.append(f"failed: {visible(failure)}", style="red")
        answers = [answer for answer in self.decoded[cell.name] if answer is not None]
        seconds = sum(passed for _, passed in answers)
        line.append(f"{len(answers)} answers")
        if answers:
            rate = sum(tokens for tokens, _ in answers) / seconds if seconds else None
            line.append(", decode rate not known" if rate is None else f", {rate:.1f} tok/s")
        if answers and cell.arm.overlapping:
            first, last = self.span[cell.name]
            of_all = self.answered_tokens[cell.name] / (last - first) if last > first else 0.0
            line.append(f" each, {of_all:.1f} tok/s together")
        return line

    def left(self) -> str:
        """The time left in words; empty before anything is known.

        It counts what lies between the answers so far, and that cells run beside each other on a cluster.
        """
        parts = [
            self.timings.seconds(cell.arm.name, name not in self.ready, len(cell.prompts) - len(self.decoded[name]))
            for name, cell in self.ahead.items()
        ]
        seconds = sum(part for part in parts if part is not None)
        if self.begun is None or None in parts or seconds < 1:
            return ""
        return f"{'at least' if self.open_ended else 'about'} {spoken(seconds * self.stretch)} left"

    def _add(self, timings: list[float], seconds: float) -> None:
        timings.append(seconds)
        self.timed_s += seconds


def _timed(completion: Completion) -> tuple[int, float]:
    """Return the tokens that were timed, and their seconds; nothing of an answer without a decode rate."""
    return (completion.after_first or 0, completion.decode_s) if completion.decode_rate else (0, 0.0)


def _answer(completion: Completion | None) -> str:
    if completion is None:
        return "failed"
    rate = completion.decode_rate
    speed = "decode rate not known" if rate is None else f"{rate:.1f} tok/s"
    parts = [f"{completion.n_predicted} tokens ({completion.finish_reason})", speed]
    ledger = completion.ledger
    if ledger.drafted is not None:
        parts.append(f"{ledger.accepted} of {ledger.drafted} drafted tokens accepted")
    return ", ".join(parts)
