"""One thing that was looked at before measuring."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

CheckState = Literal["ok", "warn", "fail", "unknown"]


@dataclass(frozen=True)
class Check:
    """What was looked at, what was seen, why it matters for a measurement, and what to do about it.

    `fail`: measuring here makes no sense. `warn`: it does, with that in mind. `unknown`: the system does not tell.
    `seen`, `why` and `todo` are sentences; `seen` may quote names that others chose (of processes, of files).
    """

    id: str
    state: CheckState
    seen: str
    why: str
    todo: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)
