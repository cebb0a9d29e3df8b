"""The verdict on an arm, in sentences: does it pay, is it lossless, and why.

An arm is called faster or slower only when its 95 % interval excludes 1, taken so wide that all such claims of the run
hold together; `within` only when it is shown to differ by no more than a twentieth. The speed is `unknown`, with the
reason in the sentence, below three blocks, without a valid attestation, and where a difference is not due to
speculation: nothing was drafted, or it turns once every pair of answers is cut to the length that both reached.

Arms that are lossy by design are labelled everywhere, and never identical, not even where every hash is equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchctl.analysis.cells import attestations, identity_of, states
from benchctl.analysis.results import (
    ALL_TASKS,
    Acceptance,
    Cost,
    Losslessness,
    Speed,
    SpeedUp,
    Verdict,
    open_for_others,
)
from benchctl.analysis.scope import scope_sentence
from benchctl.recipes.adapters import SYNTHETIC
from benchctl.text import at_most_percent, percent, plural

if TYPE_CHECKING:
    from benchctl.analysis.frame import Frame
    from benchctl.data.cell import AttestationRecord

EQUIVALENT = 0.05
"""An arm that is shown to differ by no more than this share is called `within`: smaller differences rarely matter."""


def find_verdict(
    frame: Frame,
    speedups: Sequence[SpeedUp],
    acceptance: Sequence[Acceptance],
    losslessness: Losslessness,
    cost: Cost,
    whole: SpeedUp | None = None,
) -> Verdict:
    """Conclude from everything that was found of an arm.

    `whole`: the speed-up of whole answers, which decides where requests share the engine: while some wait, others
    decode faster.
    """
    arm = losslessness.arm
    overall = next(speedup for speedup in speedups if speedup.task == ALL_TASKS)
    accepted = next(row for row in acceptance if row.task == ALL_TASKS)
    own, identity = attestations(frame, arm), identity_of(frame.manifest, arm)
    refused = next(
        (found for found in own + attestations(frame, frame.arms[frame.baseline]) if found.state == "failed"), None
    )
    refusal = " ".join(filter(None, (refused.reason, refused.remedy))) if refused else ""
    state = own[0].state if own else "unknown"
    decides = overall if whole is None else whole
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
        sentence=" ".join(
            [
                "Nothing was drafted, so no speed-up is reported."
                if inactive and not refused
                else _speed_sentence(speed, decides, doubt, refused, of="" if whole is None else " over whole answers"),
                *([] if refused else _unseen(frame, arm)),
                _lossless_sentence(losslessness).strip(),
            ]
        ),
        why=(refusal or "The attestation failed.") if refused else _why(speed, state, overall, accepted, cost),
    )


def distrusted(verdict: Verdict, reason: str) -> Verdict:
    """Return a verdict on a run whose stored evidence cannot be relied on: nothing is concluded, with the reason."""
    sentence = f"Neither its speed nor whether its output is the target's own is known. {reason}"
    own = {"speed": "unknown", "interval": None, "like_these": None, "within": None, "more_blocks": None}
    return verdict.model_copy(update={**own, "sentence": sentence, "why": reason})


def _unseen(frame: Frame, arm: str) -> list[str]:
    """Return what an endpoint does not show of this arm or of the baseline, as a sentence, if anything."""
    names = [name for name in {arm: 0, frame.arms[frame.baseline]: 0} if states(frame, name)[:1] == ["unverified"]]
    return [f"Not verified: the endpoint does not show whether it speculated ({' and '.join(names)})."] if names else []


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
    settings = {key: value for key, value in speculation.items() if value is not None}
    kind = settings.pop("type", "unknown type")
    names = {"max": "depth", "min": "at least", "p_min": "p ≥", "size_n": "key", "size_m": "copy", "min_hits": "hits"}
    kinds = kind if isinstance(kind, str) else " + ".join(map(str, kind))
    return ", ".join([kinds, *(f"{names.get(key, key)} {value}" for key, value in settings.items())])


def _doubt(overall: SpeedUp, *, drafted: bool) -> str | None:
    """Why a clear interval does not show an effect of speculation, as the end of a sentence."""
    word, matched = speed_word(overall), overall.length_matched
    if word == "faster" and not drafted:
        return "although nothing was drafted, so speculation is not the cause"
    if word not in ("faster", "slower") or not overall.pairs_unequal or overall.pooled is None:
        return None
    if matched is not None and (matched > 1) != (overall.pooled > 1):
        return f"but {matched:.2f}× when answers are cut to the length that both reached, so it is due to their lengths"
    if overall.pairs_unequal == overall.pairs:
        return "but no answer is as long as the baseline's, so they are not the same work"
    return None


def _speed_sentence(
    speed: Speed, overall: SpeedUp, doubt: str | None, refused: AttestationRecord | None, *, of: str
) -> str:
    if refused:
        return "Its speed is not assessed: a cell of it or of the baseline did not run what the recipe requests."
    if overall.pooled is None:
        return "Its speed is not known: no prompt was timed in both arms."
    ratio = f"{overall.pooled:.2f}× the baseline{of}"
    if overall.interval is None:
        blocks = len(overall.by_block)
        count = "one block" if blocks == 1 else f"{blocks} blocks"
        return f"{ratio} in {count}; below three blocks it is not known how far another run would differ."
    measured = f"{ratio} (95 % interval {overall.interval.from_to})"
    if direction := contrary(overall):
        measured += f"; {direction.removesuffix('.')}"
    if doubt:
        return f"{measured}, {doubt}."
    if speed == "within":
        return f"Within ±{at_most_percent(overall.within or 0.0)} of the baseline: {measured}."
    if speed == "undecided":
        more = overall.more_blocks or 0
        needed = f"; about {more} more {plural(more, 'block')} would separate ±10 %" if more else ""
        return f"Undecided: {measured}{needed}."
    beyond = " For other prompts like these it is open." if open_for_others(overall.like_these) else ""
    return f"{speed.capitalize()}: {measured}.{beyond}"


def contrary(row: SpeedUp) -> str | None:
    """Return a sentence where the pooled ratio and the median of the prompts lie on different sides of 1."""
    if row.pooled is None or row.median is None or (round(row.pooled, 2) - 1) * (round(row.median, 2) - 1) >= 0:
        return None
    median = f"{row.median:.2f}×"
    if row.median > 1:
        return f"the median prompt gains ({median}), but the prompts that lose cost more time than the others save."
    return f"the median prompt loses ({median}), but the prompts that gain save more time than the others cost."


_START = {
    "consistent with the target": "Its output differs, consistently with the target",
    "violation": "Its output is not the target's own",
    "undetermined": "Whether its output is the target's own is undetermined",
}


def _lossless_sentence(judged: Losslessness) -> str:
    """Return the verdict on the output with its scope."""
    scope = scope_sentence(judged.scope, judged) if judged.scope else ""
    if judged.verdict == "identical":
        prompts = len(judged.comparisons)
        return f"Its output is identical on {'the one prompt' if prompts == 1 else f'all {prompts} prompts'}. {scope}"
    reason = f"{judged.reason[0].lower()}{judged.reason[1:]}"
    if judged.verdict == "not judged":
        return f"Whether its output is the target's own is not assessed: {reason.partition(';')[0]}."
    return f"{_START[judged.verdict]}: {reason} {scope}".strip()


def _why(speed: Speed, state: str, overall: SpeedUp, accepted: Acceptance, cost: Cost) -> str:
    if overall.pooled is None:
        return "Of this arm or of the baseline no answer was timed; the warnings say why."
    if state == "unverified" and accepted.rate is None:
        return "The endpoint does not show whether it speculated, so a difference may have any other cause."
    if state == "off":
        return "This arm does not speculate: a difference from the baseline is noise, or another setting."
    if state == "idle" or accepted.drafted == 0:
        return "Speculation was on but never fired: nothing was drafted, so there was nothing to gain."
    if accepted.rate is None:
        reason = "What was drafted is not reported, or the counters contradict each other"
        return f"{reason}, so these records cannot explain the speed."
    few = accepted.prompts_drafted < accepted.prompts
    drafted = (
        f"It drafted for {accepted.prompts_drafted} of {accepted.prompts} prompts{_noise(overall)}; " if few else ""
    )
    taken = f"{drafted}{percent(accepted.rate, accepted.doubt)} of its draft tokens were accepted"
    if accepted.acceptance_length is None:
        return f"{taken}; the engine does not report verify rounds, so the cost of a round is not known."
    if cost.overhead is None:
        return f"{taken}; too few steps had a draft to measure the cost of a round."
    link = "but" if speed == "slower" else "and"
    round_ = f"a round cost {1 + cost.overhead:.1f} baseline steps and yielded {accepted.acceptance_length:.1f} tokens"
    return f"{taken}, {link} {round_}. {_break_even(speed, overall, accepted, cost)}".strip()


def _noise(overall: SpeedUp) -> str:
    """Say what the prompts without a draft ran, as a part of a sentence."""
    idle = overall.no_draft
    if idle is None or idle.interval is None:
        return ""
    price = ": to look for a draft has a price, too" if idle.interval.high < 1 else ""
    count = " and count as 1.00×" if idle.counted else price
    return f" (the other {idle.prompts} ran {idle.pooled:.2f}×, {idle.interval.from_to}{count})"


def _break_even(speed: Speed, overall: SpeedUp, accepted: Acceptance, cost: Cost) -> str:
    """Whether any acceptance would pay; empty where the cost is as uncertain as the speed-up that it comes from."""
    if speed not in ("faster", "slower") or cost.depth is None or cost.alpha is None or cost.overhead is None:
        return ""
    if cost.break_even_alpha is None:
        # At the upper end of the interval the arm takes `share` of its time; its plain steps still cost a step each.
        share = (overall.pooled or 0.0) / overall.interval.high if overall.interval else 0.0
        plain = max(0.0, (accepted.tokens_per_round or 0.0) - (accepted.acceptance_length or 0.0))
        cheapest = share * (1 + cost.overhead) - (1 - share) * plain
        return "At this cost no acceptance would pay." if cheapest > cost.depth + 1 else ""
    if (cost.alpha >= cost.break_even_alpha) != (speed == "faster"):
        return ""  # acceptance that varies by position, or steps without a draft: the model does not fit this arm
    if cost.break_even_alpha == 0:
        return "At this cost every acceptance pays."
    if cost.break_even_alpha >= 0.995:
        return f"For depth {cost.depth} to pay at this cost, nearly every draft token would have to be accepted."
    return ""  # what a round costs is what it would have to yield


def select(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Mark the fastest of several arms, and note that its value is selected."""
    known = [verdict for verdict in verdicts if verdict.speedup is not None and verdict.speed != "unknown"]
    if len(known) < 2:
        return list(verdicts)
    best = max(known, key=lambda verdict: verdict.speedup or 0.0)
    note = f"It is the fastest of {len(known)} arms, so its value is selected: expect somewhat less of a new run."
    marked = best.model_copy(update={"selected": True, "sentence": f"{best.sentence} {note}"})
    return [marked if verdict is best else verdict for verdict in verdicts]


def label_lossy(found: Losslessness, frame: Frame) -> Losslessness:
    """Return the verdict with the arm's settings that are lossy by design; with any, it is a violation."""
    identity = identity_of(frame.manifest, found.arm)
    settings = identity.lossy if identity else []
    if not settings:
        return found
    equal = " Equal answers are coincidence." if found.verdict == "identical" else ""
    whose = "its text is not a model's output" if SYNTHETIC in settings else "its output is not the target's own"
    reason = f"Lossy by design: {', '.join(settings)}; {whose}.{equal} {found.reason}"
    return found.model_copy(update={"verdict": "violation", "reason": reason, "lossy": settings})


def synthetic_arms(verdicts: Iterable[Verdict]) -> set[str]:
    """Return the arms of synthetic acceptance: their speed is measured, and nothing of any draft."""
    return {verdict.arm for verdict in verdicts if SYNTHETIC in verdict.lossy}


def lossy_label(settings: list[str]) -> str:
    """Return the suffix of an arm's name in tables: empty, or ` (lossy by design: …)`."""
    return f" (lossy by design: {', '.join(settings)})" if settings else ""
