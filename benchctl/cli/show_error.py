"""How an error is shown: what happened, where, the engine's last words, and what to do."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from benchctl.errors import BenchctlError, EngineError
from benchctl.text import visible


def show_error(error: BenchctlError) -> None:
    """Print `error` to stderr. Everything in it may be untrusted, so it is never read as markup."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    head = Text("error: ", style="bold red")
    if error.where:
        head.append(f"{visible(error.where)}: ", style="bold")
    head.append(visible(error.what))
    console.print(head)
    if isinstance(error, EngineError):
        for line in error.log_tail:
            console.print(Text(f"  | {visible(line)}", style="dim"))
    if error.fix:
        console.print(Text(f"  {visible(error.fix)}"))
