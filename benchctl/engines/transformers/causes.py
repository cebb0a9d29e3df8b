"""Why the server ended, by its log: it writes the reason in one line."""

from __future__ import annotations

import re
from collections.abc import Sequence

from benchctl.engines.common.log import Cause, first_cause

_REFUSED = re.compile(r"benchctl-serve: error: (.*?) \| (.*)$")
_KNOWN = (
    Cause(
        r"(?:CUDA out of memory|MPS backend out of memory|OutOfMemoryError)",
        "The device has too little memory.",
        "Lower engine.context, write dtype: bfloat16, or take a smaller model.",
    ),
    Cause(
        r"No module named '(\w+)'",
        "The Python lacks the package {0}.",
        "`benchctl engines install transformers`, or name another Python.",
    ),
    Cause(r"^((?:[\w.]*)Error: .{1,300})", "{0}", "Read the engine's log."),
)


def launch_cause(log: Sequence[str]) -> tuple[str, str] | None:
    """Return (sentence, fix) for why the server ended; `None` when the log shows none."""
    for line in log:
        if found := _REFUSED.search(line):
            return found[1], found[2]
    known = first_cause(log, _KNOWN)
    return None if known is None else known[:2]
