"""What the page says of each arm at its head: the row of the table of conclusions, larger."""

from __future__ import annotations

from dataclasses import dataclass

from benchctl.analysis.advice import inactive_arms
from benchctl.analysis.results import Analysis, Verdict
from benchctl.reports import numbers
from benchctl.reports.columns import Tone
from benchctl.reports.tables.output import OUTPUT_SIGNS, OUTPUT_TONE
from benchctl.reports.tables.speed import PAYS, SPEED_TONE, conclusions


@dataclass(frozen=True)
class Card:
    """What the page says of an arm at its head: the row of `conclusions`, larger."""

    verdict: Verdict
    speed: str
    """The speed-up, or that the arm is inactive."""
    pays: str
    speed_tone: Tone
    speed_sign: str
    output_tone: Tone
    output_sign: str
    between_blocks: str
    """Empty where fewer than two blocks can be compared."""
    drafting: str
    inactive: bool


def cards(analysis: Analysis) -> list[Card]:
    """A card an arm, in the order of `conclusions`."""
    table = conclusions(analysis)
    spread = next(column for column in table.columns if column.header == "Between blocks")
    inactive = inactive_arms(analysis)
    return [_card(verdict, str(spread.text(verdict)), inactive=verdict.arm in inactive) for verdict in table.rows]


def _card(verdict: Verdict, spread: str, *, inactive: bool) -> Card:
    return Card(
        verdict=verdict,
        speed="inactive" if inactive else numbers.ratio(verdict.speedup),
        pays="never drafted" if inactive else PAYS[verdict.speed],
        speed_tone="quiet" if inactive else SPEED_TONE.get(verdict.speed, "open"),
        speed_sign="–" if inactive else {"faster": "▲", "slower": "▼", "within": "≈"}.get(verdict.speed, "?"),
        output_tone=OUTPUT_TONE.get(verdict.lossless, "open"),
        output_sign=OUTPUT_SIGNS.get(verdict.lossless, "?"),
        between_blocks=spread.removeprefix(numbers.ABSENT),
        drafting=_drafting(verdict),
        inactive=inactive,
    )


def _drafting(verdict: Verdict) -> str:
    if verdict.acceptance is not None:
        return f"{numbers.percent(verdict.acceptance)} of drafts accepted"
    return {
        "idle": "on, but never drafted",
        "unverified": "not shown whether it speculated",
        "failed": "did not run as asked",
    }.get(verdict.attestation, "acceptance not reported")
