"""The verdict on an arm, in words that a person can decide by: does it pay, is it lossless, and why.

An arm is called faster or slower only when its 95 % interval excludes 1. Below three blocks there is no interval, and
without a valid attestation no comparison; the speed is then `unknown`, with the reason in the sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from benchctl.analysis.cells import attestations
from benchctl.analysis.results import ALL_TASKS, Acceptance, Cost, Losslessness, SpeedUp, Verdict

if TYPE_CHECKING:
    from benchctl.analysis.frame import Frame
    from benchctl.runs.manifest import AttestationRecord

Speed = Literal["faster", "slower", "no clear difference", "unknown"]


def find_verdict(
    frame: Frame,
    speedups: Sequence[SpeedUp],
    acceptance: Sequence[Acceptance],
    losslessness: Losslessness,
    cost: Cost,
) -> Verdict:
    """Conclude from everything that was found of one arm."""
    arm = losslessness.arm
    overall = next(one for one in speedups if one.task == ALL_TASKS)
    accepted = next(one for one in acceptance if one.task == ALL_TASKS)
    own = attestations(frame, arm)
    refused = next(
        (one for one in own + attestations(frame, frame.arms[frame.baseline]) if one.state == "failed"), None
    )
    speed = "unknown" if refused else speed_word(overall)
    return Verdict(
        arm=arm,
        setting=setting(frame, arm),
        speed=speed,
        speedup=overall.pooled,
        interval=overall.interval,
        lossless=losslessness.verdict,
        acceptance=accepted.rate,
        attestation=own[0].state if own else "unknown",
        sentence=f"{_speed_sentence(arm, speed, overall, refused)} {_lossless_sentence(losslessness)}",
        why=_refusal(refused) if refused else _why(own, accepted, cost),
    )


def speed_word(overall: SpeedUp) -> Speed:
    """Return what the interval allows to say."""
    if overall.interval is None:
        return "unknown"
    if overall.interval.low > 1:
        return "faster"
    return "slower" if overall.interval.high < 1 else "no clear difference"


def setting(frame: Frame, arm: str) -> str:
    """Say how an arm speculates, in the recipe's words: `draft-simple, depth 4`."""
    identity = next((one for one in frame.manifest.arms if one.name == arm), None) if frame.manifest else None
    if identity is None:
        return "not recorded"
    if identity.speculation is None:
        return "no speculation"
    said = {key: value for key, value in identity.speculation.items() if value is not None}
    kind = said.pop("type", "unknown type")
    names = {"max": "depth", "min": "at least", "p_min": "p ≥", "size_n": "key", "size_m": "copy", "min_hits": "hits"}
    kinds = kind if isinstance(kind, str) else " + ".join(map(str, kind))
    return ", ".join([kinds, *(f"{names.get(key, key)} {value}" for key, value in said.items())])


def _speed_sentence(arm: str, speed: Speed, overall: SpeedUp, refused: AttestationRecord | None) -> str:
    if refused:
        return f"Nothing can be said of {arm}'s speed: what ran is not what the recipe asked for."
    if overall.pooled is None:
        return f"Nothing can be said of {arm}'s speed: no prompt was timed on both sides."
    ratio = f"{overall.pooled:.2f}× the baseline"
    if overall.interval is None:
        blocks = len(overall.by_block)
        count = "one block" if blocks == 1 else f"{blocks} blocks"
        return f"{arm} ran at {ratio} in {count}; below three blocks it is not known how far another run would differ."
    interval = f"95 % interval {overall.interval.low:.2f} to {overall.interval.high:.2f}"
    if speed == "no clear difference":
        return f"{arm} shows no clear difference: {ratio} ({interval})."
    return f"{arm} is {speed}: {ratio} ({interval})."


def _lossless_sentence(found: Losslessness) -> str:
    if found.verdict == "lossless":
        return "Its output is lossless."
    start = (
        "Its output is not lossless" if found.verdict == "not lossless" else "Whether it is lossless is undetermined"
    )
    return f"{start}: {found.reason[0].lower()}{found.reason[1:]}"


def _refusal(refused: AttestationRecord) -> str:
    return " ".join(part for part in (refused.reason, refused.remedy) if part) or "The attestation failed."


def _why(own: Sequence[AttestationRecord], accepted: Acceptance, cost: Cost) -> str:
    if own and own[0].state == "idle":
        return "Speculation was on but never fired: nothing was drafted, so this is the cost of looking."
    if accepted.rate is None:
        return "The engine does not tell what was drafted, so the speed cannot be explained from these records."
    taken = f"{_percent(accepted.rate)} of its draft tokens were accepted"
    if cost.overhead is None or accepted.acceptance_length is None:
        return f"{taken}; the engine does not tell the verify rounds, so what a round costs is not known."
    link = "and" if (cost.measured or 0) > 1 else "but"
    round_ = f"a round costs {1 + cost.overhead:.1f} baseline steps and yields {accepted.acceptance_length:.1f} tokens"
    return f"{taken}, {link} {round_}. {_break_even(cost)}".strip()


def _break_even(cost: Cost) -> str:
    if cost.depth is None or cost.alpha is None:
        return ""
    if cost.break_even_alpha is None:
        return "At this cost no acceptance would pay."
    if cost.break_even_alpha == 0:
        return "At this cost every acceptance pays."
    pays = f"At depth {cost.depth} and this cost it pays from {_percent(cost.break_even_alpha)} acceptance a token"
    return f"{pays}; measured were {_percent(cost.alpha)}."


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
