"""Starting the program, as `benchctl` and as `python -m benchctl`.

Until the commands are imported, and again once they have ended, nothing is there that an interrupt could spoil: Ctrl-C
then ends the process at once, where Python would show a traceback of whatever it was importing.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def _end_at_once(number: int, frame: FrameType | None) -> None:
    os.write(2, b"Interrupted.\n")
    os._exit(128 + number)


def _unless_ignored(handler: object) -> None:
    """Let `handler` take Ctrl-C, unless the shell has it ignored, as it does in the background."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, handler)  # type: ignore[arg-type]


def main() -> None:
    """Run the command line."""
    _unless_ignored(_end_at_once)
    from benchctl.cli.app import main as run

    try:
        _unless_ignored(signal.default_int_handler)
        run()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    finally:
        _unless_ignored(_end_at_once)


if __name__ == "__main__":
    main()
