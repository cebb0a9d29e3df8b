"""Prints an error: what happened, where, the engine's last log lines, and what to do.

The traceback of an unexpected exception is saved to a file, and the message explains how to report it.
"""

from __future__ import annotations

import platform
import sys
import tempfile
import traceback
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.text import Text

from benchctl import __version__
from benchctl.errors import BenchctlError, EngineError, InternalError, StorageError
from benchctl.paths import cache_folder
from benchctl.text import one_line, visible
from benchctl.writing import write_whole


def show_error(error: BenchctlError) -> None:
    """Print `error` to stderr. Everything in it may be untrusted, so it is never parsed as markup."""
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


def internal_error(error: Exception) -> InternalError:
    """Return the message for an unexpected exception; its traceback is saved to a file."""
    message = f"benchctl itself failed: {type(error).__name__}: {one_line(str(error), 200)}."
    file = _keep_traceback(error)
    report = "This is a bug in benchctl, not in the engine or the models."
    if file is None:
        traceback.print_exception(error, file=sys.stderr)
        return InternalError(message, fix=f"{report} Report it with the traceback above.")
    return InternalError(
        message,
        fix=f"{report} Report it with the traceback in {file}; check it first: it may contain names of your files.",
    )


def _keep_traceback(error: Exception) -> Path | None:
    """Save the traceback and return its path; `None` when no folder can be written."""
    about = f"benchctl {__version__}, Python {platform.python_version()}, {platform.platform()}\n{sys.argv!r}\n\n"
    text = about + "".join(traceback.format_exception(error))
    name = f"benchctl-{datetime.now().astimezone():%Y%m%d-%H%M%S-%f}.txt"
    for folder in (cache_folder() / "errors", Path(tempfile.gettempdir())):
        with suppress(OSError, StorageError):
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / name, text.encode("utf-8", "backslashreplace"))
            return folder / name
    return None
