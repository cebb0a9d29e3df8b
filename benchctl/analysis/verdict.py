"""The verdict on an arm: does it pay, is it lossless, and why.

An arm is called faster or slower only when its 95 % interval excludes 1, taken so wide that all such claims of the run
hold together; `within` only when it is shown to differ by no more than a twentieth. The speed is `unknown` below three
blocks, without a valid attestation, and where a difference is not due to speculation: nothing was drafted, or it turns
once every pair of answers is cut to the length that both reached.

Arms that are lossy by design are labelled everywhere, and never identical, not even where every hash is equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchctl.analysis.cells import attestations, identity_of, states
from benchctl.analysis.decision_results import BreakEvenReach, Speed, SpeedDoubt, Verdict, VerdictReason
from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.output_results import Losslessness
from benchctl.analysis.speed_results import Acceptance, Cost, SpeedUp
from benchctl.recipes.adapters import SYNTHETIC

if TYPE_CHECKING:
    from benchctl.analysis.frame import Frame

EQUIVALENT = 0.05
"""An arm that is shown to differ by no more than this share is called `within`: smaller differences rarely matter."""


def find_verdict(
    frame: Frame,
    speedups: Sequence[SpeedUp],
    acceptance: Sequence[Acceptance],
    losslessness: Losslessness,
    cost: Cost,
    whole_answers: SpeedUp | None = None,
) -> Verdict:
    """Conclude from everything that was found of an arm.

    `whole_answers`: the speed-up of whole answers. It decides where requests share the engine, since some decode faster
    while others wait.
    """
    arm = losslessness.arm
    overall = next(speedup for speedup in speedups if speedup.task == ALL_TASKS)
    accepted = next(row for row in acceptance if row.task == ALL_TASKS)
    attested, identity = attestations(frame, arm), identity_of(frame.manifest, arm)
    refused = next(
        (
            cell_state
            for cell_state in attested + attestations(frame, frame.arms[frame.baseline])
            if cell_state.state == "failed"
        ),
        None,
    )
    refusal = " ".join(filter(None, (refused.reason, refused.remedy))) if refused else ""
    state = attested[0].state if attested else "unknown"
    decides = overall if whole_answers is None else whole_answers
    inactive = accepted.drafted == 0 or state == "idle"
    doubt = _doubt(decides, drafted=not inactive and state != "off")
    speed = "unknown" if refused or doubt else speed_word(decides)
    return Verdict(
        arm=arm,
        setting=describe_speculation(identity.speculation) if identity else "not recorded",
        speed=speed,
        speedup=decides.pooled,
        interval=decides.interval,
        like_these=decides.like_these,
        within=decides.within if speed == "within" else None,
        more_blocks=decides.more_blocks if speed == "undecided" else None,
        lossless=losslessness.verdict,
        unviolated=losslessness.unviolated,
        lossy=losslessness.lossy,
        acceptance=accepted.rate,
        acceptance_doubt=accepted.doubt,
        attestation=state,
        doubt=doubt,
        reason="refused" if refused else _reason(state, overall, accepted, cost),
        refusal=refusal,
        break_even=None if refused else _break_even(speed, overall, accepted, cost),
        not_shown=[] if refused else _not_shown(frame, arm),
        blocks=len(decides.by_block),
        median=decides.median,
        length_matched=decides.length_matched,
        whole_answers=whole_answers is not None,
    )


def distrusted(verdict: Verdict, reason: str) -> Verdict:
    """Return a verdict on a run whose stored evidence cannot be relied on: nothing is concluded, for this reason."""
    cleared = dict.fromkeys(("interval", "like_these", "within", "more_blocks", "doubt", "break_even"))
    return verdict.model_copy(update={**cleared, "speed": "unknown", "reason": "distrusted", "refusal": reason})


def _not_shown(frame: Frame, arm: str) -> list[str]:
    """Return those of this arm and the baseline of which an endpoint does not show whether they speculated."""
    names = dict.fromkeys((arm, frame.arms[frame.baseline]))
    return [name for name in names if states(frame, name)[:1] == ["unverified"]]


def speed_word(overall: SpeedUp) -> Speed:
    """Return the class that the interval allows, over all claims of the run together."""
    if overall.interval is None:
        return "unknown"
    if overall.interval.excludes_one:
        return "faster" if overall.interval.low > 1 else "slower"
    return "within" if overall.within is not None and overall.within <= EQUIVALENT else "undecided"


def describe_speculation(speculation: Mapping[str, Any] | None) -> str:
    """Return a recipe's speculation as `draft-simple, depth 4`."""
    if speculation is None:
        return "no speculation"
    every = {key: value for key, value in speculation.items() if key != "options"} | (speculation.get("options") or {})
    settings = {key: value for key, value in every.items() if value is not None}
    kind = settings.pop("type", "unknown type")
    names = {"max": "depth", "min": "at least", "p_min": "p ≥", "size_n": "key", "size_m": "copy", "min_hits": "hits"}
    kinds = kind if isinstance(kind, str) else " + ".join(map(str, kind))
    return ", ".join([kinds, *(f"{names.get(key, key)} {value}" for key, value in settings.items())])


def _doubt(overall: SpeedUp, *, drafted: bool) -> SpeedDoubt | None:
    """Return why a clear interval does not show an effect of speculation."""
    word, matched = speed_word(overall), overall.length_matched
    if word == "faster" and not drafted:
        return "not drafted"
    if word not in ("faster", "slower") or not overall.pairs_unequal or overall.pooled is None:
        return None
    if matched is not None and (matched > 1) != (overall.pooled > 1):
        return "unequal lengths"
    return "no equal pair" if overall.pairs_unequal == overall.pairs else None


def _reason(state: str, overall: SpeedUp, accepted: Acceptance, cost: Cost) -> VerdictReason:
    """Return what explains an arm's speed: the first that holds."""
    reasons: tuple[tuple[VerdictReason, bool], ...] = (
        ("not timed", overall.pooled is None),
        ("not shown", state == "unverified" and accepted.rate is None),
        ("off", state == "off"),
        ("never fired", state == "idle" or accepted.drafted == 0),
        ("not reported", accepted.rate is None),
        ("no rounds", accepted.acceptance_length is None),
        ("no cost", cost.overhead is None),
    )
    return next((reason for reason, holds in reasons if holds), "cost")


def _break_even(speed: Speed, overall: SpeedUp, accepted: Acceptance, cost: Cost) -> BreakEvenReach | None:
    """Return which acceptance would pay; `None` where the cost is as uncertain as the speed-up that it comes from."""
    if speed not in ("faster", "slower") or cost.depth is None or cost.alpha is None or cost.overhead is None:
        return None
    if cost.break_even_alpha is None:
        # At the upper end of the interval the arm takes `share` of its time; its plain steps still cost a step each.
        share = (overall.pooled or 0.0) / overall.interval.high if overall.interval else 0.0
        plain = max(0.0, (accepted.tokens_per_round or 0.0) - (accepted.acceptance_length or 0.0))
        cheapest = share * (1 + cost.overhead) - (1 - share) * plain
        return "none" if cheapest > cost.depth + 1 else None
    if (cost.alpha >= cost.break_even_alpha) != (speed == "faster"):
        return None  # acceptance that varies by position, or steps without a draft: the model does not fit this arm
    if cost.break_even_alpha == 0:
        return "every"
    return "nearly every" if cost.break_even_alpha >= 0.995 else None  # else the cost of a round says it


def select(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Mark the fastest of several arms: its value is selected."""
    rated = [verdict for verdict in verdicts if verdict.speedup is not None and verdict.speed != "unknown"]
    if len(rated) < 2:
        return list(verdicts)
    best = max(rated, key=lambda verdict: verdict.speedup or 0.0)
    marked = best.model_copy(update={"selected": True, "selected_of": len(rated)})
    return [marked if verdict is best else verdict for verdict in verdicts]


def synthetic_arms(verdicts: Iterable[Verdict]) -> set[str]:
    """Return the arms of synthetic acceptance: their speed is measured, and nothing of any draft."""
    return {verdict.arm for verdict in verdicts if SYNTHETIC in verdict.lossy}
