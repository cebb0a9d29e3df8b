"""Waiting for a condition, never for a time: how long it takes is the machine's affair."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import psutil

LIMIT_S = 240.0
"""What is not true by then never will be. A process that a test expects to be killed must sleep for longer."""
Value = TypeVar("Value")


def wait_for(condition: Callable[[], Value], expected: str) -> Value:
    """Return what `condition` returns once that is true."""
    until = time.monotonic() + LIMIT_S
    while not (value := condition()):
        assert time.monotonic() < until, f"waited {LIMIT_S:g} s for {expected}"
        time.sleep(0.05)
    return value


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or waits only for whoever inherited it to notice."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
