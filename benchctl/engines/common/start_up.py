"""The time between the start of an engine's process and the moment at which it is healthy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchctl.engines.common.log import log_tail, name_log, read_log
from benchctl.engines.common.log_causes import Reason
from benchctl.engines.common.process import EngineProcess, describe_exit
from benchctl.errors import EngineError


@dataclass
class StartUp:
    """An engine that is coming up; ask it in a loop whether that still goes on."""

    process: EngineProcess
    log_path: Path
    timeout_s: float
    launch_cause: Callable[[Sequence[str]], Reason | None]
    """Reads why the engine ended from its log, and from how it ended, which is the last line: `signal SIGSEGV`."""
    poll_s: float
    _began: float = field(default_factory=time.monotonic)

    def wait_a_moment(self) -> None:
        """Wait `poll_s` seconds. Raises EngineError: the process has ended (`launch`), the time is up (`health`)."""
        if self.process.wait(self.poll_s):
            ended = describe_exit(self.process.status)
            cause = self.launch_cause([*read_log(self.log_path).split("\n"), ended])
            how = f"The engine ended with {ended} before it was healthy."
            raise EngineError(
                f"{how} {cause[0]}" if cause else how,
                kind="launch",
                fix=name_log(cause[1] if cause else "Read the engine's log.", self.log_path),
                log_tail=log_tail(self.log_path),
            )
        if time.monotonic() - self._began > self.timeout_s:
            raise EngineError(
                f"The engine was not healthy after {self.timeout_s:g} s.",
                kind="health",
                fix=name_log(
                    "Raise engine.health_timeout_s if the model is large; else read the engine's log.", self.log_path
                ),
                log_tail=log_tail(self.log_path),
            )
