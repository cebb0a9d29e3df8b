"""The noise floor of single forks: how far the target's own noise takes a margin at a verify width.

Measured on the engine, model and machine of the run, at prefixes chosen without regard to forks; without speculation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchctl.analysis.audit.noise import SMALL_MARGIN, Noise, noise_of
from benchctl.analysis.results import AUDIT_LEVEL, NoiseFloor
from benchctl.data.audits import Audit
from benchctl.data.replays import Position, Reading, Replays

if TYPE_CHECKING:
    from benchctl.analysis.audit.noise import Floats

FEWEST = 20
FEWEST_CHANGES = 5
"""Below so many prefixes, of which fewer than so many changed, nothing is said of the noise."""
FEWEST_TOKENS = 1_000
"""The floor of a shorter run is that of one of so many tokens."""


def find_noise(replays: Replays | None, width: int, *, tokens: int = 0, audit: Audit | None = None) -> NoiseFloor:
    """Return how margins change between one token at a time and `width` at once.

    The floor is the margin that the noise of all `tokens` of the run's arms passes at any place with a chance of half
    the audit's level: by the losses at small margins, where tokens flip, and with as many places near a tie as the
    sample has. Of an audit its own prefixes are taken where it has more.

    Where the engine could not be asked to read `width` tokens at once, the change is that of reading prompt and answer
    at once: the other extreme of widths, and another order of the same sums.
    """
    by_prefill = replays is not None and _no_width_was_read(replays)
    noise = _sampled(replays, width, by_prefill=by_prefill)
    audited = noise_of(audit, {one.key: one for one in audit.answers}, (width,)) if audit else None
    if audited is not None and len(audited.margins) > len(noise.margins):
        noise, by_prefill = audited, audit is not None and audit.shape == "prefill"
    count, changed = len(noise.margins), int((noise.losses != 0).sum())
    floor, method = _floor(noise, changed, max(tokens, FEWEST_TOKENS))
    if by_prefill:
        method += "; of reading everything at once, for this engine cannot be asked for a width"
    sizes = np.abs(noise.losses)
    return NoiseFloor(
        width=width,
        floor=floor,
        method=method,
        prefixes=count,
        changed=changed,
        median=float(np.median(sizes)) if count else None,
        largest=float(sizes.max()) if count else None,
        largest_at_small=float(np.abs(noise.small.losses).max()) if count else None,
        null_places=count,
        null_forks=int((noise.losses > noise.margins).sum()),
        by_prefill=by_prefill,
    )


def _sampled(replays: Replays | None, width: int, *, by_prefill: bool) -> Noise:
    """Return the losses at the prefixes of the sample, which were chosen whether anything forked there or not."""
    numbers: dict[tuple[str, int], int] = {}
    rows = []
    for position in replays.positions if replays else ():
        told = None if position.fork else margins(position, width, by_prefill=by_prefill)
        if told is not None:
            answer = numbers.setdefault((position.task, position.prompt_idx), len(numbers))
            rows.append((told[0], told[0] - told[1], answer))
    table: Floats = np.array(rows, dtype=np.float64).reshape(-1, 3)
    return Noise(table[:, 0], table[:, 1], table[:, 2].astype(np.int64))


def _no_width_was_read(replays: Replays) -> bool:
    """Whether the engine told for every fork that it cannot read on in batches, and did so nowhere."""
    if any(reading.shape == "verify" for one in replays.positions for reading in one.readings):
        return False
    forks = [one for one in replays.positions if one.fork]
    return bool(forks) and all("verify" in one.absent for one in forks)


def margins(position: Position, width: int, *, by_prefill: bool = False) -> tuple[float, float, bool] | None:
    """Return the margin token by token, that at `width`, and whether the likeliest token changed; `None` if unknown.

    `by_prefill`: that of reading everything at once in place of that at `width`.
    """
    alone = next((one for one in position.readings if one.shape == "decode"), None)
    together = together_at(position, width, by_prefill=by_prefill)
    if alone is None or together is None or alone.rival is None or together.rival is None:
        return None
    if alone.margin is None or together.margin is None:
        return None
    return alone.margin, together.margin, alone.likeliest != together.likeliest


def together_at(position: Position, width: int, *, by_prefill: bool = False) -> Reading | None:
    """Return the reading that stands for a round of `width` tokens at a place.

    Before the `width`-th token of an answer that is one of all its tokens: what is borrowed from the prompt to fill up
    a round, as earlier benchctls did, no round reads.
    """
    if by_prefill:
        return next((one for one in position.readings if one.shape == "prefill"), None)
    widths = {min(width, position.index)} if position.fork else {width, min(width, position.index)}
    return next((one for one in position.readings if one.shape == "verify" and one.width in widths), None)


def _floor(noise: Noise, changed: int, tokens: int) -> tuple[float | None, str]:
    """Return the floor, and how it was made."""
    count = len(noise.margins)
    if count < FEWEST and changed < FEWEST_CHANGES:
        return None, f"only {count} prefixes were measured; {FEWEST} are needed"
    if not changed:
        return 0.0, f"none of {count} prefixes changed at all"
    floor = noise.floor_of(tokens, AUDIT_LEVEL / 2)
    small = len(noise.small.margins)
    where = f"margins up to {SMALL_MARGIN:g} nat" if small < count else "all margins"
    of_all = f"{small} of {count} prefixes, those at {where}," if small < count else f"{count} prefixes"
    return (
        floor,
        f"passed by noise in 1 of {2 / AUDIT_LEVEL:.0f} runs of {tokens:,} tokens; by {of_all} {changed} changed",
    )
