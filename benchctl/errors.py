"""The errors that benchctl shows to people: what happened, where, and what to do next.

Every error that a user can cause or must act on is a `BenchctlError`; the command line prints it as a block and
exits with its code. Anything else that escapes is a bug of benchctl, shown as an `InternalError`.
"""

from __future__ import annotations

from typing import ClassVar


class BenchctlError(Exception):
    """A problem, written for the person who must act.

    `what` is a sentence; `where` names the place (file:line: key, a cell, a URL); `fix` says what to do next;
    `installs` is what `benchctl engines install` would have to be given to mend it: `llama.cpp --cuda`.
    """

    exit_code: ClassVar[int] = 1

    def __init__(
        self, message: str, *, where: str | None = None, fix: str | None = None, installs: str | None = None
    ) -> None:
        super().__init__(message)
        self.what = message
        self.where = where
        self.fix = fix
        self.installs = installs

    def __str__(self) -> str:
        parts = [f"{self.where}: {self.what}" if self.where else self.what]
        if self.fix:
            parts.append(self.fix)
        return "\n".join(parts)


class GateError(BenchctlError):
    """A gate did not hold: an arm is not lossless, or a `--fail-if` condition was met (exit code 1)."""

    exit_code = 1


class UsageError(BenchctlError):
    """The recipe or the command line is wrong (exit code 2)."""

    exit_code = 2


class EngineError(BenchctlError):
    """An engine could not be found, started, attested or talked to (exit code 3).

    `kind` is a stable word for programs: `launch`, `health`, `crash`, `timeout`, `http`, `protocol`, `attestation`,
    `install`.
    `log_tail` holds the engine's last log lines, oldest first; they are untrusted text. `retry_after_s`: a busy server
    asks to be sent the request again after so many seconds; `None` where it does not.
    """

    exit_code = 3

    def __init__(
        self,
        message: str,
        *,
        kind: str,
        where: str | None = None,
        fix: str | None = None,
        log_tail: tuple[str, ...] = (),
        installs: str | None = None,
    ) -> None:
        super().__init__(message, where=where, fix=fix, installs=installs)
        self.kind = kind
        self.log_tail = log_tail
        self.retry_after_s: float | None = None


class StorageError(BenchctlError):
    """benchctl's own files could not be written or read (exit code 4).

    A full disk, missing permission, a run folder of a newer schema, a run that another benchctl is writing.
    """

    exit_code = 4


class InternalError(BenchctlError):
    """Something that benchctl did not foresee: a bug of its own (exit code 70, `EX_SOFTWARE` of sysexits.h)."""

    exit_code = 70
