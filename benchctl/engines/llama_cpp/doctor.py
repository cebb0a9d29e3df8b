"""What `benchctl doctor` says of llama.cpp: is there a llama-server, can it speculate, does it answer?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchctl.engines.inventory import FoundEngine
from benchctl.engines.llama_cpp.trial import check_quantized
from benchctl.machine.doctor import Check


def check(found: Sequence[FoundEngine], *, others: bool) -> list[Check]:
    """Check the llama-server that runs when a recipe names none; `others`: another kind of engine can be measured."""
    name, why = "engine.llama.cpp", "Without an engine nothing can be measured."
    first = found[0]
    if first.problem:
        return [Check(name, "fail", f"{first.where}: {first.problem.rstrip('.')}.", why, first.hint)]
    if not first.found_in:
        todo = "Run `benchctl engines install llama.cpp`."
        return [Check(name, "warn" if others else "fail", "There is no llama-server.", why, todo)]
    seen = f"{first.where} ({first.found_in}) is {first.version or 'of an unknown version'}."
    if not first.speculation_types:
        todo = "Use a newer build: `benchctl engines install llama.cpp` makes one."
        return [Check(name, "warn", f"{seen} It knows no speculation types.", why, todo)]
    return [Check(name, "ok", seen, why), check_quantized(Path(first.where or ""))]
