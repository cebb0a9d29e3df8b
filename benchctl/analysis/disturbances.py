"""Checks of what was recorded of the machine beside the engine: other work, heat, swapping, clocks that jump.

Each yields an `Observation`. Where a cell has no such record, or the system does not report a value, there is no
warning; other work is then estimated by the load average.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

from benchctl.analysis.cells import latest_cells
from benchctl.analysis.record_checks import Observation

if TYPE_CHECKING:
    from benchctl.analysis.frame import Frame
    from benchctl.data.cell import Cell, WatchRecord

OTHERS_SHARE = 0.10
"""Of the cores' time while a cell was measured: more than this used by others, or stolen by a host, is another load."""
LEAST_REPORTED = 0.05
"""Cores; less is not reported."""
SHORTEST_S = 0.5
"""A shorter watch gives no shares: the system counts processor time in hundredths of a second."""
LOAD_SHARE = 0.5
"""Of the cores: a one-minute load above it before the first cell is someone else's work. Before a later one the cell
before it may have added as much as all cores."""
SLOWER_CLOCK = 0.15
"""A cell's clock so far below the run's fastest cell is not the processor's full speed."""
GPU_SLOWED_SHARE = 0.01
SWAPPED_BYTES = 8 * 2**20
MAJOR_FAULTS = 100
"""The engine waiting for the disk so often within one cell is more than a page of a library used for the first time."""
CLOCK_JUMP_S = 0.1
"""A clock that is steered moves by half a thousandth at most; what changes faster was set, or the machine slept."""


def check_disturbances(frame: Frame) -> Iterator[Observation]:
    """Check the watches of every process of the run, earlier attempts included: their records may count."""
    cells = frame.manifest.cells if frame.manifest else []
    watched = [(f"block {cell.block + 1}, {cell.arm}", cell.watch) for cell in cells if cell.watch is not None]
    yield from _other_work(watched)
    yield from _load(frame)
    yield from _heat(watched)
    yield from _swapping(watched, cells)
    yield from _spilled(cells)
    yield from _clock_jumps(watched)


Watched = Sequence[tuple[str, "WatchRecord"]]
"""(name of the cell, its watch)."""


def _other_work(watched: Watched) -> Iterator[Observation]:
    shares = [(_taken(watch), name, watch) for name, watch in watched if _has_shares(watch)]
    busy = [share for share in shares if share[0] > OTHERS_SHARE]
    if busy:
        _, name, watch = max(busy, key=itemgetter(0))
        used, stolen = (watch.other_cpu_s or 0.0) / watch.wall_s, (watch.stolen_cpu_s or 0.0) / watch.wall_s
        parts = [f"other programs used {used:.1f} of {watch.cores} cores"] if used >= LEAST_REPORTED else []
        if stolen >= LEAST_REPORTED:
            rest = "" if parts else f" of {watch.cores} cores"
            parts.append(f"the host of this virtual machine took {stolen:.1f}{rest}")
        where = f"{len(busy)} of {len(shares)} cells had to share the cores; in the worst, {name},"
        yield "high-load", "machine", f"{where} {' and '.join(parts)}."


def _has_shares(watch: WatchRecord) -> bool:
    reported = watch.other_cpu_s is not None or watch.stolen_cpu_s is not None
    return reported and bool(watch.cores) and watch.wall_s >= SHORTEST_S


def _taken(watch: WatchRecord) -> float:
    """Return the share of the cores' time that others used."""
    return ((watch.other_cpu_s or 0.0) + (watch.stolen_cpu_s or 0.0)) / (watch.wall_s * (watch.cores or 1))


def _load(frame: Frame) -> Iterator[Observation]:
    """Cells that started while something else was running, where nothing better is known than the load average."""
    cores = (frame.manifest.machine if frame.manifest else {}).get("cores")
    cells = sorted(latest_cells(frame.manifest), key=lambda cell: cell.started_at)
    if not isinstance(cores, int) or any(cell.watch and cell.watch.other_cpu_s is not None for cell in cells):
        return
    known = [(cell.load_before, cell) for cell in cells if cell.load_before is not None]
    own = [0, *(cores for _ in known[1:])]
    busy = [(load, cell) for (load, cell), ours in zip(known, own, strict=False) if load > LOAD_SHARE * cores + ours]
    if busy:
        load, worst = max(busy, key=itemgetter(0))
        sentence = (
            f"{len(busy)} of {len(known)} cells started at a higher load than the run itself explains; "
            f"the highest was {load:.1f} on {cores} cores, before {_name(worst)}."
        )
        yield "high-load", "machine", sentence


def _heat(watched: Watched) -> Iterator[Observation]:
    sentences = []
    if events := [(watch.throttled, name) for name, watch in watched if watch.throttled]:
        count, name = max(events)
        sentences.append(f"Heat slowed a core in {_cells(events)}, most often in {name}: {count} times.")
    shares = [((watch.gpu_slowed_s or 0.0) / watch.wall_s, name) for name, watch in watched if watch.wall_s]
    if slowed := [share for share in shares if share[0] > GPU_SLOWED_SHARE]:
        share, name = max(slowed)
        sentences.append(
            f"Heat slowed the GPU in {_cells(slowed)}, longest in {name}: {100 * share:.0f} % of the time."
        )
    if clocks := [(watch.cpu_mhz, name) for name, watch in watched if watch.cpu_mhz]:
        (lowest, name), (highest, _) = min(clocks), max(clocks)
        if lowest < (1 - SLOWER_CLOCK) * highest:
            sentences.append(
                f"The cores ran at {lowest:.0f} MHz in {name}, and at up to {highest:.0f} MHz in other cells."
            )
    if sentences:
        yield "throttling", "machine", " ".join(sentences)


def _spilled(cells: Sequence[Cell]) -> Iterator[Observation]:
    spilled = dict.fromkeys(
        f"{cell.arm}: {cell.memory.spilled}" for cell in cells if cell.memory is not None and cell.memory.spilled
    )
    if spilled:
        yield "spilled", "machine", f"{'; '.join(spilled)}."


def _swapping(watched: Watched, cells: Sequence[Cell]) -> Iterator[Observation]:
    sentences = []
    sizes = [(watch.swapped_bytes or 0, name) for name, watch in watched]
    if swapped := [size for size in sizes if size[0] > SWAPPED_BYTES]:
        size, name = max(swapped)
        sentences.append(f"The system swapped in {_cells(swapped)}, most in {name}: {size / 2**20:.0f} MiB.")
    counts = [(watch.engine_major_faults or 0, name) for name, watch in watched]
    if faults := [count for count in counts if count[0] > MAJOR_FAULTS]:
        count, name = max(faults)
        sentences.append(
            f"The engine waited for memory from disk in {_cells(faults)}, most in {name}: {count:,} times."
        )
    in_swap = [((cell.memory.swapped or 0) if cell.memory else 0, _name(cell)) for cell in cells]
    if out := [size for size in in_swap if size[0] > SWAPPED_BYTES]:
        size, name = max(out)
        sentences.append(
            f"Part of the engine was swapped out in {_cells(out)}, most in {name}: {size / 2**20:.0f} MiB."
        )
    if sentences:
        yield "swapping", "machine", " ".join(sentences)


def _clock_jumps(watched: Watched) -> Iterator[Observation]:
    steps = [(watch.clock_jump_s or 0.0, name) for name, watch in watched]
    if jumps := [step for step in steps if abs(step[0]) > CLOCK_JUMP_S]:
        jump, name = max(jumps, key=lambda jump: abs(jump[0]))
        yield "clock-jump", "machine", f"The wall clock jumped in {_cells(jumps)}, furthest in {name}: {jump:+.1f} s."


def _cells(found: Sequence[object]) -> str:
    return "1 cell" if len(found) == 1 else f"{len(found)} cells"


def _name(cell: Cell) -> str:
    return f"block {cell.block + 1}, {cell.arm}"
