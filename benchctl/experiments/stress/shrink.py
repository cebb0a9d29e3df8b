"""The fewest requests that still show a fault: parts of the plan are left out while it shows without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchctl.experiments.stress.plan import ProcessPlan, Wave


def shrink(removable: Sequence[str], shows: Callable[[Sequence[str]], bool]) -> list[str]:
    """Return what is left of `removable` when no part of it can be left out any more.

    Halves first, then ever smaller parts, down to single ones (Zeller's delta debugging, 2002, complements only).
    `shows`: whether the fault shows with these alone; it shows with all of them.
    """
    needed = list(removable)
    size = len(needed)
    while size >= 1 and needed:
        start = 0
        while start < len(needed):
            fewer = needed[:start] + needed[start + size :]
            if shows(fewer):
                needed = fewer
            else:
                start += size
        size //= 2
    return needed


def leading_up(process: ProcessPlan, request: str) -> list[Wave]:
    """Return the waves of a process up to that of a request; of that one, what may have been in flight with it."""
    waves: list[Wave] = []
    for wave in process.waves:
        names = [each.id for each in wave.requests]
        if request in names:
            end = names.index(request) + wave.clients
            return [*waves, wave.model_copy(update={"requests": wave.requests[:end]})]
        waves.append(wave)
    raise KeyError(request)


def only(waves: Sequence[Wave], ids: Sequence[str]) -> list[Wave]:
    """Return the waves with these requests alone; waves without any are left out."""
    chosen = {*ids}
    parts = [[request for request in wave.requests if request.id in chosen] for wave in waves]
    pairs = zip(waves, parts, strict=True)
    return [wave.model_copy(update={"requests": tuple(part)}) for wave, part in pairs if part]
