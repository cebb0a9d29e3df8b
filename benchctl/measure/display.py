"""What goes on, drawn by rich: on a terminal live lines below the finished steps, in a pipe the steps alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from benchctl.text import one_line, visible


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
        self._bar = _Bar(
            SpinnerColumn(),
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
        self, what: str | None = None, *, done: int = 0, total: int | None = None, left: str | None = None
    ) -> None:
        """Update what is being done, how many more steps are done, of how many, and what time is left; `None` stays."""
        if what is not None:
            self._bar.update(self._task, description=one_line(what))
        if left is not None:
            self._bar.update(self._task, left=left)
        self._bar.update(self._task, advance=done, total=total)

    def at(self, what: str, done: int, total: int) -> None:
        """Show a step of which so much is done; `total` 0: not counted."""
        self._bar.update(self._task, description=one_line(what), completed=done, total=total or None)

    def below(self, lines: Iterable[str]) -> None:
        """Show further lines below the live line."""
        self._bar.below = tuple(one_line(line) for line in lines)
        if self.live:
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
    """
    display, told = Display(Console(stderr=True, highlight=False, quiet=quiet)), ("", -1)

    def show(step: str, done: int, total: int) -> None:
        nonlocal told
        text = f"{name}: {step}" if name else step
        if display.live:
            display.at(text, done, total)
        elif told != (now := ("", done * 10 // total) if total else (step, -1)):
            told = now
            display.line(Text(f"{one_line(text)}{f' {done}/{total}' if total else ''}"))

    with display:
        yield show
