"""Where the time of an answer goes: seconds by phase, the device synchronized at every border."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Literal

import torch

Phase = Literal["prompt", "draft", "verify", "plain", "rollback", "search", "other"]
"""prompt: reading it; verify: the target's pass over a draft; plain: its step without one; rollback: snapshots and what
undoes a draft; search: choosing what to leave out; other: everything else, such as handing tokens out."""


def synchronized_now(device: torch.device | str) -> float:
    """Return the seconds of `time.perf_counter` once the device has done all that it was given."""
    wait = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}.get(torch.device(device).type)
    if wait is not None:
        wait()
    return time.perf_counter()


class PhaseClock:
    """Sums seconds by phase; whatever passes between two calls belongs to the phase that the second one names."""

    def __init__(self, device: torch.device | str) -> None:
        self._device = device
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._since = time.perf_counter()

    def passed(self, phase: Phase) -> None:
        """Count the time since the last call to `phase`."""
        now = synchronized_now(self._device)
        self.seconds[phase] += now - self._since
        self._since = now
