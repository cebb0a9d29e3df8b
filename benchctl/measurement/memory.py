"""Is there room? For all engines of a block at once (`schedule: interleaved`), and for many slots in an engine.

Counted for every engine: its model files in full (a mapped file is shared between processes, but llama.cpp repacks
weights into memory of its own on many processors), for every slot the KV cache of the whole context and the recurrent
state, and an allowance for buffers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from math import inf

from benchctl.errors import UsageError
from benchctl.machine.nvidia import free_memory
from benchctl.models.files import ResolvedModel, ResolvedPair
from benchctl.recipes.schema import Arm, Recipe

BUFFERS = 128 << 20
"""Bytes allowed for the compute buffers and everything else of a process."""
SHARE = 0.9
"""Share of the free memory that a plan may take."""
_CACHE_BITS = {"f32": 32, "q8_0": 8.5, "q4_0": 4.5, "q4_1": 5, "iq4_nl": 4.5, "q5_0": 5.5, "q5_1": 6}
"""Bits of a cached value by llama.cpp's types of 32 values with their scales; 16 for all others."""
_FREE = re.compile(r"\(\d+ MiB, (\d+) MiB free\)")
"""How llama-server lists a device: `Vulkan0: Intel(R) Graphics (24000 MiB, 23000 MiB free)`."""
_GIB = 1 << 30
_MIB = 1 << 20


def check_memory(recipe: Recipe, models: ResolvedPair, devices: Sequence[str]) -> None:
    """Raise UsageError when the engines of all arms do not fit at once; `devices`: what the engine's binary finds."""
    needed = {arm.name: engine_bytes(arm, models, recipe.engine.context) for arm in recipe.arms}
    where, free = free_bytes(recipe.device, devices)
    total = sum(needed.values())
    if total <= SHARE * free:
        return
    fits = sum(some <= SHARE * free for some in accumulate(sorted(needed.values())))
    raise UsageError(
        f"schedule: interleaved keeps the engines of all {len(needed)} arms up at once. That takes about "
        f"{total / _GIB:.1f} GiB, and {free / _GIB:.1f} GiB of {where} are free.",
        where="schedule",
        fix="Measure the arms in turn (schedule: blocks)"
        + (f", or fewer arms at once (--only): {fits} would fit." if fits > 1 else "."),
    )


def tight_slots(recipe: Recipe, models: ResolvedPair, devices: Sequence[str]) -> list[str]:
    """Return a sentence for every number of slots with which no engine may fit; an estimate, so it only warns."""
    where, free = free_bytes(recipe.device, devices)
    needed: dict[int, int] = {}
    for arm in recipe.arms:
        if arm.concurrency > 1:
            size = engine_bytes(arm, models, recipe.engine.context)
            needed[arm.concurrency] = max(size, needed.get(arm.concurrency, 0))
    return [
        f"Concurrency {slots}: so many slots of {recipe.engine.context} tokens take about {size / _GIB:.1f} GiB, and "
        f"{free / _GIB:.1f} GiB of {where} are free. Lower engine.context if the engine does not start."
        for slots, size in needed.items()
        if size > SHARE * free
    ]


def engine_bytes(arm: Arm, models: ResolvedPair, context: int) -> int:
    """Return about how many bytes the engine of an arm takes."""
    drafts = arm.speculation is not None and any(name.startswith("draft-") for name in arm.speculation.types)
    cache = arm.cache_type
    used: list[tuple[ResolvedModel | None, str | None]] = [(models.target, cache.target if cache else None)]
    if drafts:
        used.append((models.draft, cache.draft if cache else None))
    return BUFFERS + sum(_model_bytes(model, context, arm.concurrency, kind) for model, kind in used)


def peak_bytes(recipe: Recipe, models: ResolvedPair) -> int:
    """Return about how many bytes the engines that are up together take at most; of folders their files alone."""
    if models.target.folder is None and models.target.files:
        sizes = [engine_bytes(arm, models, recipe.engine.context) for arm in recipe.arms]
    else:
        sizes = [sum(model.size for model in (models.target, models.draft) if model)]
    return sum(sizes) if recipe.schedule == "interleaved" else max(sizes)


def free_bytes(device: str, devices: Sequence[str]) -> tuple[str, float]:
    """Return (which memory, free bytes of it): the GPUs' where the engine will run there, else the machine's."""
    import psutil

    if device != "cpu" and devices:
        cuda = any(name.startswith("CUDA") for name in devices)
        free = free_memory() if cuda else []
        free = free or [int(match[1]) * _MIB for name in devices if (match := _FREE.search(name))]
        return "GPU memory", float(sum(free)) if free else inf
    return "memory", float(psutil.virtual_memory().available)


def _model_bytes(model: ResolvedModel | None, context: int, slots: int, cache_type: str | None) -> int:
    if model is None:
        return 0
    cache = int(model.cache_bytes * _CACHE_BITS.get(cache_type or "f16", 16) / 16)
    return model.size + slots * (context * cache + model.state_bytes)
