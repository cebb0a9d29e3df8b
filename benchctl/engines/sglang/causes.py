"""Why SGLang ended: the root cause picked out of its log, and what to do.

A process of SGLang's that fails has its launcher kill all of them with SIGKILL: status 137 is not memory.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from benchctl.engines.common.log import Cause, first_cause

_KNOWN = (
    Cause(r"unrecognized arguments: (.*)", "This SGLang has no option {0}.", "Correct engine.args or the arm's args."),
    Cause(r"error: argument (--\S+?)[:/].*?: (.*)", "SGLang refuses the value of {0}: {1}", "Correct the recipe."),
    Cause(
        r"No module named '(sgl_kernel[\w.]*)'",
        "This SGLang lacks its compiled kernels ({0}).",
        "Install the sgl-kernel that belongs to it; the package index has it for CUDA alone.",
    ),
    Cause(
        r"((?:CUDA )?out of memory|OutOfMemoryError|Not enough memory)(.*)",
        "There is too little memory: {0}{1}",
        "Lower engine.context or --mem-fraction-static in engine.args, or take a smaller model.",
    ),
    Cause(
        r"[Aa]ddress already in use|port .* is (?:already )?(?:in use|occupied)", "The port is taken.", "Run it again."
    ),
    Cause(
        r"(\w+ speculative decoding is not supported by .*)",
        "SGLang refuses: {0}",
        "Use another algorithm, or another device.",
    ),
)
_RAISED = re.compile(r"^(?:\[[^\]]*\]\s*)*(?:[\w.]*\.)?([A-Z]\w*(?:Error|Exception)): (.+)")
_KILLED = re.compile(r"Received sigquit from a child process")


def launch_cause(log: Sequence[str]) -> tuple[str, str] | None:
    """Return (sentence, fix) for the first reason in the log's lines why SGLang ended; `None` when they show none."""
    found = first_cause(log, _KNOWN)
    if found is not None:
        return found[:2]
    for line in log:
        if raised := _RAISED.match(line.strip()):
            return f"{raised[1]}: {raised[2][:300]}", "Read the engine's log."
    if any(_KILLED.search(line) for line in log):
        what = "One of its processes failed, and its launcher killed the others (so SIGKILL is not lack of memory)."
        return what, "Read the engine's log."
    return None
