"""Acceptance: how many draft tokens the target accepted, from counters that do not contradict each other."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from benchctl.analysis.cells import attestations, speculation_of
from benchctl.analysis.speed_results import Acceptance, AcceptanceDoubt
from benchctl.data.cell import CONTRADICTED, UNCHECKED_ACCEPTANCE
from benchctl.data.counts import DraftCounts, contradicted

if TYPE_CHECKING:
    from benchctl.analysis.frame import Booleans, Floats, Frame, Integers


@dataclass(frozen=True)
class CounterColumns:
    """Columns of the frame; NaN where the engine does not report a value."""

    drafted: Floats
    verified: Floats
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
    by_length: Floats
    """(records, lengths): tokens accepted of the drafts of exactly 1, 2, … tokens; of the same width."""
    contradictions: dict[str, Booleans]
    """By a sentence for every way to be contradictory, the records that are."""
    refused: Booleans
    """The records whose number of tokens is refused."""

    @property
    def contradictory(self) -> Booleans:
        """The records whose counters contradict each other."""
        mask: Booleans = np.any(list(self.contradictions.values()), axis=0)
        return mask

    @property
    def trusted(self) -> Booleans:
        """The records of which nothing is contradicted."""
        return ~(self.contradictory | self.refused)


def find_counters(frame: Frame) -> CounterColumns:
    """Collect the counters of every record and check them against each other and the tokens received."""
    records = frame.records
    drafted, accepted, rounds = frame.column("draft_n"), frame.column("draft_n_accepted"), frame.column("rounds")
    verified, plain = frame.column("verified"), frame.column("plain_steps")
    by_place = [record.accepted_by_position for record in records]
    positions = _lengths(by_place)
    drafts = [record.drafted_by_position for record in records]
    drafted_positions = _lengths(drafts)
    lengths = [record.accepted_by_length for record in records]
    width = max(int(counts.max(initial=1)) for counts in (positions, drafted_positions, _lengths(lengths)))
    by_position = _by_position(by_place, positions, width)
    drafted_by_position = _by_position(drafts, drafted_positions, width)
    by_length = _by_position(lengths, _lengths(lengths), width)
    before = np.concatenate([rounds[:, np.newaxis], by_position[:, :-1]], axis=1)
    cut = np.where(positions > 0, positions, _depths(frame))
    constrained = np.array([prompt in frame.constrained for prompt in frame.prompts], dtype=bool)[frame.prompt]
    return CounterColumns(
        drafted=drafted,
        verified=verified,
        accepted=accepted,
        rounds=rounds,
        plain=plain,
        by_position=by_position,
        positions=positions,
        drafted_by_position=drafted_by_position,
        drafted_positions=drafted_positions,
        by_length=by_length,
        contradictions=contradicted(
            DraftCounts(
                tokens=frame.predicted,
                drafted=drafted,
                verified=verified,
                accepted=accepted,
                rounds=rounds,
                plain=plain,
                cut=cut,
                at_most=frame.predicted + np.nan_to_num(cut),
                accepted_by_position=by_position.sum(axis=1),
                drafted_by_position=drafted_by_position.sum(axis=1),
                accepted_by_length=by_length.sum(axis=1),
                rises=np.any(by_position > before, axis=1),
                exceeds=np.any(by_position > drafted_by_position, axis=1),
                free=~constrained,
            )
        ),
        refused=np.array([reason is not None for reason in frame.refused], dtype=bool),
    )


def _depths(frame: Frame) -> Floats:
    """Return how many tokens each record's rounds draft by the recipe; NaN where that is not said."""
    depths = [speculation_of(frame, arm).get("max") for arm in frame.arms]
    return np.array([depth if isinstance(depth, int) else np.nan for depth in depths], dtype=np.float64)[frame.arm]


def _lengths(by_place: list[list[int] | None]) -> Integers:
    return np.array([len(counts or ()) for counts in by_place], dtype=np.int64)


def _by_position(by_place: list[list[int] | None], positions: Integers, width: int) -> Floats:
    table = np.full((len(by_place), width), np.nan)
    table[[counts is not None for counts in by_place]] = 0
    counts_of_all = chain.from_iterable(counts for counts in by_place if counts)
    table[np.arange(table.shape[1]) < positions[:, np.newaxis]] = np.fromiter(
        counts_of_all, np.float64, int(positions.sum())
    )
    return table


def find_acceptance(frame: Frame, counters: CounterColumns, arm: int) -> list[Acceptance]:
    """Return the acceptance of an arm over all tasks, then of each task."""
    usable = (frame.arm == arm) & frame.answered & counters.trusted
    overall, *by_task = (
        _acceptance(frame, counters, frame.arms[arm], name, usable & mask)
        for name, mask in frame.by_task(np.arange(len(usable)))
    )
    doubt = _doubt(frame, counters, arm)
    overall, *by_task = (
        row.model_copy(update={"doubt": doubt if row.rate is not None else None}) for row in (overall, *by_task)
    )
    rates = [row.rate for row in by_task if row.rate is not None]
    return [overall.model_copy(update={"rate_by_task": float(np.mean(rates)) if rates else None}), *by_task]


def _doubt(frame: Frame, counters: CounterColumns, arm: int) -> AcceptanceDoubt | None:
    """Return why an arm's acceptance may not be believed, by its records and by what its cells observed."""
    observed = [line for attestation in attestations(frame, frame.arms[arm]) for line in attestation.evidence]
    if (counters.contradictory & (frame.arm == arm)).any() or any(map(CONTRADICTED.match, observed)):
        return "contradicted"
    return "unchecked" if any(UNCHECKED_ACCEPTANCE in line for line in observed) else None


def _acceptance(frame: Frame, counters: CounterColumns, arm: str, task: str, rows: Booleans) -> Acceptance:
    drafted, accepted = _known_sums(rows, counters.drafted, counters.accepted)
    verified, _ = _known_sums(rows, counters.verified, counters.accepted)
    partly_reported = bool((rows & (counters.drafted > 0) & np.isnan(counters.verified)).any())
    in_rounds, rounds = _known_sums(rows, counters.accepted, counters.rounds)
    in_drafting, steps = _known_sums(rows & (counters.rounds > 0), frame.decoded, counters.rounds)
    plain, _ = _known_sums(rows, counters.plain, counters.rounds)
    decoded, accepted_sum = _known_sums(rows, frame.decoded, counters.accepted)
    positions = _positions(counters.by_position, counters, rows)
    drafts = _positions(counters.drafted_by_position, counters, rows)
    rated = rows & (counters.drafted > 0) & ~np.isnan(counters.accepted)
    return Acceptance(
        arm=arm,
        task=task,
        drafted=None if drafted is None else int(drafted),
        verified=None if verified is None or partly_reported else int(verified),
        accepted=None if accepted is None else int(accepted),
        prompts=len(np.unique(frame.prompt[rows & ~np.isnan(counters.drafted)])),
        prompts_drafted=len(np.unique(frame.prompt[rows & (counters.drafted > 0)])),
        rate=accepted / drafted if accepted is not None and drafted else None,
        rounds=None if rounds is None else int(rounds),
        acceptance_length=1 + in_rounds / rounds if in_rounds is not None and rounds else None,
        tokens_per_round=in_drafting / steps if in_drafting is not None and steps else None,
        plain_steps=None if plain is None else int(plain),
        tokens_per_step=decoded / (decoded - accepted_sum)
        if decoded and accepted_sum is not None and decoded > accepted_sum
        else None,
        rate_by_request=float((counters.accepted[rated] / counters.drafted[rated]).mean()) if rated.any() else None,
        position_unconditional=[count / positions[0] for count in positions[1:]] if positions else None,
        position_conditional=_conditional(positions, drafts) if positions else None,
        position_drafted=[int(count) for count in drafts[1:]] if drafts else None,
        position_rate=_rates(positions, drafts) if positions and drafts else None,
        draft_lengths=_exactly(drafts[1:]) if drafts else None,
        length_rate=_of_lengths(counters, rows),
        accepted_in_round=_exactly(positions) if positions else None,
    )


def _positions(by_position: Floats, counters: CounterColumns, rows: Booleans) -> list[float] | None:
    """Return the rounds, then the counts at position 0, 1, … as far as any got, over the answers that report both."""
    rated = rows & ~np.isnan(counters.rounds) & ~np.isnan(by_position[:, 0])
    if not rated.any() or not counters.rounds[rated].sum():
        return None
    widths = np.maximum(counters.positions, counters.drafted_positions)
    return [
        float(counters.rounds[rated].sum()),
        *map(float, by_position[rated, : widths[rated].max()].sum(axis=0)),
    ]


def _conditional(accepted: list[float], drafted: list[float] | None) -> list[float]:
    """Return each count over that before it, or the drafts that reached it where these are fewer."""
    reached = accepted if drafted is None else [min(pair) for pair in zip(accepted, [*drafted[1:], 0.0], strict=False)]
    return [count / before for before, count in zip(reached, accepted[1:], strict=False) if before]


def _rates(accepted: list[float], drafted: list[float]) -> list[float]:
    """Return accepted / drafted by position, as far as drafts reach."""
    return [count / drafts for count, drafts in zip(accepted[1:], drafted[1:], strict=False) if drafts]


def _of_lengths(counters: CounterColumns, rows: Booleans) -> list[float | None] | None:
    """Return accepted / drafted of the drafts of exactly 1, 2, … tokens, `None` for a length that none has."""
    reported = rows & ~np.isnan(counters.by_length[:, 0]) & ~np.isnan(counters.drafted_by_position[:, 0])
    if not reported.any():
        return None
    drafts = _exactly(counters.drafted_by_position[reported].sum(axis=0).tolist())
    accepted = counters.by_length[reported].sum(axis=0).tolist()
    longest = max((length for length, count in enumerate(drafts, 1) if count), default=0)
    by_length = enumerate(zip(accepted[:longest], drafts, strict=False), 1)
    return [accepted_count / (count * length) if count else None for length, (accepted_count, count) in by_length]


def _exactly(at_least: list[float]) -> list[int]:
    """Turn counts of rounds that reached at least 0, 1, … into counts that reached exactly so many."""
    return [int(reached - beyond) for reached, beyond in zip(at_least, [*at_least[1:], 0.0], strict=True)]


def _known_sums(rows: Booleans, first: Floats, second: Floats) -> tuple[float | None, float | None]:
    """Sum two columns over the rows in which both are reported; `None` where there is none."""
    reported = rows & ~np.isnan(first) & ~np.isnan(second)
    return (float(first[reported].sum()), float(second[reported].sum())) if reported.any() else (None, None)
