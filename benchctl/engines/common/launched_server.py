"""What every server that benchctl has started shares: its process, its log, and what it means when it is gone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchctl.engines.common.answer_clock import protocol_error
from benchctl.engines.common.log import log_tail, name_log, read_log
from benchctl.engines.common.log_causes import Reason
from benchctl.engines.common.process import EngineProcess, describe_exit
from benchctl.errors import EngineError


class LaunchedServer:
    """Base of the servers of adapters that launch their engine."""

    def __init__(
        self,
        process: EngineProcess,
        log_path: Path,
        launch_cause: Callable[[Sequence[str]], Reason | None],
        *,
        dying_s: float,
    ) -> None:
        """`launch_cause` reads a log; `dying_s`: how long the process may outlive a connection that broke."""
        self._process = process
        self._log_path = log_path
        self._launch_cause = launch_cause
        self._dying_s = dying_s
        self._stopping = False
        """Set by `stop`: what breaks from then on is no finding."""

    @property
    def log_path(self) -> Path:
        """Where the engine's output goes."""
        return self._log_path

    @property
    def pid(self) -> int:
        """The engine's process id."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.alive()

    def log_tail(self, lines: int = 20) -> tuple[str, ...]:
        """The engine's last log lines, oldest first, cleaned."""
        return log_tail(self._log_path, lines)

    @staticmethod
    def _prompt_ids(answer: Mapping[str, object]) -> tuple[int, ...]:
        """Return the token ids that `/tokenize` told of a prompt. Raises EngineError, also for one without any."""
        ids = answer.get("tokens")
        if not isinstance(ids, list) or not all(isinstance(one, int) for one in ids):
            raise protocol_error("The engine did not tell the prompt's token ids.")
        if not ids:
            raise EngineError("The prompt has no tokens.", kind="http", fix="Give every prompt of the suite some text.")
        return tuple(ids)

    def _log(self) -> list[str]:
        return read_log(self._log_path).split("\n")

    def _broken_off(self, what: str) -> EngineError:
        """Return a crash when the engine has ended, be it with status 0, else a broken protocol."""
        if not self._process.wait(0.0 if self._stopping else self._dying_s):
            return protocol_error(f"{what}, but the engine still runs.")
        return self._crash(what, f"the engine ended with {describe_exit(self._process.status)}")

    def _crash(self, what: str, how: str) -> EngineError:
        cause = self._launch_cause([*self._log(), describe_exit(self._process.status)])
        return EngineError(
            f"{what}: {how}.{f' {cause[0]}' if cause else ''}",
            kind="crash",
            fix=name_log(cause[1] if cause else "Read the engine's log.", self._log_path),
            log_tail=self.log_tail(),
        )
