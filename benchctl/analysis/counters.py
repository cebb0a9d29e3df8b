"""The counters of speculation as columns, and whether they contradict each other or what the client received."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from benchctl.analysis.frame import Booleans, Floats, Frame, Integers


@dataclass(frozen=True)
class Counters:
    """Columns of the frame; NaN where the engine does not report a value."""

    drafted: Floats
    accepted: Floats
    rounds: Floats
    plain: Floats
    """Steps of the target without a draft."""
    by_position: Floats
    """(records, positions): rounds that accepted the draft token at each position; NaN where not reported."""
    positions: Integers
    """How many positions each record reports; 0 where it reports none."""
    drafted_by_position: Floats
    """(records, positions): rounds that drafted a token at each position; of the same width as `by_position`."""
    drafted_positions: Integers
    """How many positions each record reports drafts for."""
    contradictions: list[tuple[str, Booleans]]
    """A sentence for every way to be contradictory, and the records that are."""

    @property
    def trusted(self) -> Booleans:
        """The records that contradict themselves in no way."""
        contradictory: Booleans = np.any([mask for _, mask in self.contradictions], axis=0)
        return ~contradictory


def find_counters(frame: Frame) -> Counters:
    """Collect the counters of every record and check them against each other and the tokens received."""
    records = frame.records
    drafted, accepted, rounds = frame.column("draft_n"), frame.column("draft_n_accepted"), frame.column("rounds")
    plain = frame.column("plain_steps")
    sizes = [None if record.token_ids is None else len(record.token_ids) for record in records]
    ids = np.array(sizes, dtype=np.float64)  # numpy reads None as NaN
    by_place = [record.accepted_by_position for record in records]
    positions = _lengths(by_place)
    drafts = [record.drafted_by_position for record in records]
    drafted_positions = _lengths(drafts)
    width = int(max(positions.max(initial=1), drafted_positions.max(initial=1)))
    by_position = _by_position(by_place, positions, width)
    drafted_by_position = _by_position(drafts, drafted_positions, width)
    before = np.concatenate([rounds[:, np.newaxis], by_position[:, :-1]], axis=1)
    rising: Booleans = np.any(by_position > before, axis=1)
    cut = np.where(positions > 0, positions, np.nan)  # so many accepted tokens the end of an answer may cut off
    out = frame.predicted + positions
    return Counters(
        drafted=drafted,
        accepted=accepted,
        rounds=rounds,
        plain=plain,
        by_position=by_position,
        positions=positions,
        drafted_by_position=drafted_by_position,
        drafted_positions=drafted_positions,
        contradictions=[  # a comparison with NaN is false: what is not reported contradicts nothing
            ("more draft tokens were accepted than drafted", accepted > drafted),
            ("more draft tokens were accepted than tokens came out", accepted > out),
            ("more verify rounds were counted than tokens came out", rounds > frame.predicted),
            (
                "rounds and accepted tokens make more tokens than came out",
                rounds + accepted > frame.predicted - 1 + cut,
            ),
            (
                "steps with and without a draft and accepted tokens make fewer tokens than came out",
                rounds + plain + accepted < frame.predicted - 1,
            ),
            ("draft tokens were counted without a verify round", (rounds == 0) & (drafted > 0)),
            ("more verify rounds were counted than draft tokens", rounds > drafted),
            ("the acceptances by position do not add up to the total", np.abs(by_position.sum(axis=1) - accepted) > 0),
            ("a later position was accepted more often than the one before", rising),
            (
                "the drafts by position do not add up to the total",
                np.abs(drafted_by_position.sum(axis=1) - drafted) > 0,
            ),
            (
                "more draft tokens were accepted at a position than drafted there",
                np.any(by_position > drafted_by_position, axis=1),
            ),
            (
                "the token ids are not as many as the tokens counted",
                frame.answered & (ids != frame.predicted) & ~np.isnan(ids),
            ),
        ],
    )


def _lengths(by_place: list[list[int] | None]) -> Integers:
    return np.array([len(counts or ()) for counts in by_place], dtype=np.int64)


def _by_position(by_place: list[list[int] | None], positions: Integers, width: int) -> Floats:
    table = np.full((len(by_place), width), np.nan)
    table[[counts is not None for counts in by_place]] = 0
    every = chain.from_iterable(counts for counts in by_place if counts)
    table[np.arange(table.shape[1]) < positions[:, np.newaxis]] = np.fromiter(every, np.float64, int(positions.sum()))
    return table
