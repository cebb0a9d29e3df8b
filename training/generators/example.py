"""What a generator hands out: one user turn, its answer, and the slots that decide whether it is held out."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Example:
    """One exchange; `keys` are the slot combinations it uses, each looked up in `heldout.json` under `task`."""

    task: str
    user: str
    assistant: str
    keys: tuple[str, ...]


Generator = Callable[[Random], Example]
