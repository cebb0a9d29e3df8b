"""Why llama-server ended or would not speculate: patterns of its log, each with a sentence and what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from benchctl.engines.common.log import Reason, first_reason, read_causes

BROKEN_BUILD = (
    "Run `benchctl engines install llama.cpp`: what it builds is tried, and built again without the processor's "
    "instructions (AMX first) that crash. For a build of your own: --no-repack in engine.args, or compile it with "
    "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16."
)
_AMX = re.compile(r"\bAMX\b.* model buffer size")
_CAUSES = read_causes(Path(__file__).with_name("causes.txt"))
_HOW_IT_ENDED = _CAUSES["how it ended"]
"""From `describe_exit`: the last line that `launch_cause` gets."""

_LAUNCH = _CAUSES["launch"]

NOT_SPECULATING = _CAUSES["not speculating"]


def launch_cause(log: Sequence[str]) -> Reason | None:
    """Return the first known reason why the engine ended; the log's last line may be how: `signal SIGSEGV`."""
    if log and log[-1] == "signal SIGSEGV" and any(_AMX.search(line) for line in log):
        return "This llama-server crashes in its code for AMX: it was miscompiled.", BROKEN_BUILD
    return first_reason(log, (*_LAUNCH, *_HOW_IT_ENDED))
