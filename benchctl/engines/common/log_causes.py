"""Why an engine ended or refused, read from its log: a closed list of patterns an engine, each with what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

Reason = tuple[str, str]
"""What happened, in a sentence, and what to do."""


@dataclass(frozen=True)
class Cause:
    """What a log line means to the person who must act; `{0}` in the sentence is the pattern's first group."""

    pattern: str
    sentence: str
    fix: str


def first_cause(log: Sequence[str], causes: Sequence[Cause]) -> tuple[str, str, str] | None:
    """Return (sentence, fix, log line) for the first of `causes` that the log shows."""
    for cause in causes:
        pattern = re.compile(cause.pattern)
        for line in log:
            found = pattern.search(line)
            if found:
                groups = [str(group)[:200] for group in found.groups() or ("",)]
                return cause.sentence.format(*groups), cause.fix, line
    return None
