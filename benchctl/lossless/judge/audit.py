"""From scored answers to the audit of every arm: the hazard test, the farthest divergences, and the power of both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from benchctl.analysis.answers import common_length
from benchctl.analysis.losslessness import AUDIT_LEVEL, ENOUGH_POWER, ArmAudit, DetectionPower, can_be_shown
from benchctl.analysis.statistics import holm
from benchctl.lossless.judge.noise import (
    TAUS,
    Noise,
    Places,
    Simulation,
    hazard_test,
    joined,
    noise_of,
    null_statistics,
    statistic,
)
from benchctl.lossless.judge.selection import Reach
from benchctl.recipes.schema import STATED_NATS

if TYPE_CHECKING:
    from benchctl.analysis.frame import Floats
    from benchctl.data.manifest import Manifest
    from benchctl.data.scores import AnswerKey, ScoredAnswer, TargetScores
    from benchctl.lossless.judge.selection import Answer, ArmAnswers, Selection


PREFIXES = 1_000
"""Prefixes that the noise of an arm is measured at, at least."""
UNSCORED = "its answers were not scored on the target alone (`benchctl verify-lossless` does)"
NOT_SCORED = "its answers were not scored"

PROPOSED = 0.05
"""How often a draft is assumed to propose the runner-up at a place within a wrong engine's reach, where how often the
arm's drafts were rejected (`ArmAnswers.rejecting`) is not known. With deliberately faulty engines
(`benchmarks/lossy_engines`) it did so at 4 to 12 % of them on the bundled pair, 2.6 % of whose tokens are rejections,
and at 20 to 38 % on a real pair (14 to 21 %): near-ties are rejected more often than other places. A larger value would
overstate the power."""
ROUNDS = 500
"""Simulated arms with such a fault."""
BEYOND = 10
"""Draws without a fault beyond the threshold that the power is for; the extreme of a few would be chance."""
TIMES = (2, 4, 8, 16, 32, 64)
"""Multiples of the number of answers that are tried."""
MOST_PLACES = 6_000
"""More places near a tie are not simulated."""


def audit_parts(
    parts: Sequence[tuple[TargetScores | None, Selection]], *, reason: str = UNSCORED, nats: float = STATED_NATS
) -> dict[str, ArmAudit]:
    """Return the audit of every arm of all parts of a run, each scored on its own target; levels hold for all.

    `reason`: why what is not scored was not; `nats`: within which the engine of the stated power accepts the runner-up.
    """
    found: dict[str, ArmAudit] = {}
    arms = sum(len(selection.arms) for _, selection in parts)
    for scores, selection in parts:
        found |= {
            arm.arm: _audit(arm, scores, selection.lacks.get(arm.arm), reason, arms, nats) for arm in selection.arms
        }
    tested = {name: arm.p for name, arm in found.items() if arm.p is not None}
    for name, adjusted in zip(tested, holm(list(tested.values())), strict=True):
        found[name] = found[name].model_copy(update={"p_adjusted": adjusted})
    return found


def _audit(
    arm: ArmAnswers, scores: TargetScores | None, lacks: str | None, reason: str, arms: int, nats: float
) -> ArmAudit:
    """`lacks`: why none of its answers can be audited; `arms`: how many are audited in the whole run."""
    scored = {answer.answer: answer for answer in scores.answers} if scores else {}
    known = [(answer, scored[answer.key]) for answer in arm.answers if answer.key in scored]
    by_prefill = scores is not None and scores.shape == "prefill"
    reach = {} if by_prefill else arm.reach  # those scores differ from decoding at every place
    places = _places(known, reach)
    noise = noise_of(scores, arm.widths, arm.slots)
    prompts = len({(answer.task, answer.prompt_idx) for answer, _ in known})
    found: dict[str, object] = {
        **dict.fromkeys(("expected", "p", "p_adjusted", "floor", "excess_limit")),
        "arm": arm.arm,
        "widths": arm.widths,
        "slots": arm.slots,
        "by_prefill": by_prefill,
        "answers": len(known),
        "of": len(arm.answers),
        "prompts": prompts,
        "tokens": len(places.margins),
        "diverged": int(places.diverged.sum()),
        "beyond": 0,
        "prefixes": len(noise.margins),
        "changed": int((noise.losses != 0).sum()),
        "lacking": lacks or _lacking(arm, known, noise, reason, by_prefill=by_prefill),
    }
    if found["lacking"] is None:
        level = AUDIT_LEVEL / 2 / arms
        hazard = hazard_test(noise, places)
        reached = places.at(places.reached)
        floor = noise.floor(reached.margins, level / 2)  # the other half is for rivals behind the second
        proposed = PROPOSED if arm.rejecting is None else arm.rejecting
        found |= {
            "expected": hazard.expected,
            "p": hazard.p,
            "floor": floor,
            "beyond": _beyond(known, reach, floor),
            "excess_limit": excess_limit(noise, places),
            "stated": find_power(noise, reached, nats, prompts, level=level, proposed=proposed),
        }
    return ArmAudit.model_validate(found)


def _lacking(
    arm: ArmAnswers,
    known: Sequence[tuple[Answer, ScoredAnswer]],
    noise: Noise,
    reason: str,
    *,
    by_prefill: bool,
) -> str | None:
    """Return what is missing for a test, as the end of a sentence."""
    if not known:
        return reason
    if not by_prefill and not arm.overlapping:
        agreed = [(scored, min(arm.agreed[scored.answer], len(scored.margins))) for _, scored in known]
        others = sum(divergence.index < common for scored, common in agreed for divergence in scored.diverged)
        if others:
            places = sum(common for _, common in agreed)
            return (
                f"scored token by token, the target alone diverges from the baseline's own answers at {others:,} of "
                f"{places:,} places, so it did not compute what the run did"
            )
    if by_prefill and arm.slots > 1:
        return "the noise that several requests in one batch add cannot be measured on this engine"
    if (max(arm.widths) > 1 or arm.slots > 1) and len(noise.margins) < PREFIXES:
        several = " or ".join(map(str, arm.widths))
        how = "in another shape" if by_prefill else f"{several} tokens at a time"
        how += f" of each of {arm.slots} requests in one batch" if arm.slots > 1 else ""
        return f"the noise of reading {how} was measured at {len(noise.margins):,} prefixes; {PREFIXES:,} are needed"
    return None


def _places(known: Sequence[tuple[Answer, ScoredAnswer]], reach: Mapping[AnswerKey, Reach]) -> Places:
    """Lay out the places of an arm's answers; what several answers to a prompt have in common counts once.

    `reach`: of the rounds of each; those that are absent may differ anywhere.
    """
    parts: list[Places] = []
    earlier: dict[tuple[str, int], list[Answer]] = {}
    for number, (answer, scored) in enumerate(known):
        before = earlier.setdefault((answer.task, answer.prompt_idx), [])
        start = max((common_length(answer.token_ids, other.token_ids) for other in before), default=0)
        before.append(answer)
        size = len(scored.margins)
        index = np.arange(start, size)
        diverged = np.isin(index, [divergence.index for divergence in scored.diverged])
        rounds = _reach_of(answer, size, reach)
        surely, perhaps = index >= size - rounds.fewest, index >= size - rounds.largest
        parts.append(Places(np.array(scored.margins[start:]), diverged, np.full(len(index), number), perhaps, surely))
    return joined(parts)


def _reach_of(answer: Answer, size: int, reach: Mapping[AnswerKey, Reach]) -> Reach:
    """Return what rounds reach of an answer of `size` tokens: all of it where it is absent."""
    return reach.get(answer.key, Reach(size, size))


def _beyond(known: Sequence[tuple[Answer, ScoredAnswer]], reach: Mapping[AnswerKey, Reach], floor: float) -> int:
    """Return how many divergences are beyond `floor`, or where no round with a draft reached."""
    found = 0
    for answer, scored in known:
        size = len(scored.margins)
        first = size - _reach_of(answer, size, reach).largest
        found += sum(divergence.gap > floor or divergence.index < first for divergence in scored.diverged)
    return found


def excess_limit(noise: Noise, places: Places) -> float | None:
    """Return the 95 % upper limit of divergences beyond those of noise, per 1,000 tokens.

    Noise is taken to have been at the fewest places that it can have been, so that the limit is no lower than it is.
    """
    size = len(places.margins)
    if not size:
        return None
    rng = np.random.default_rng(3)
    true = rng.gamma(int(places.diverged.sum()) + 1, size=200)  # the exact Poisson limit is a quantile of this
    noisy = places.at(places.surely_reached)
    expected = np.array([tail.chance_above(noisy.margins).sum() for tail in noise.resampled_tails[:200]])
    return max(0.0, float(np.quantile(true - expected, 0.95))) / size * 1000


def audit_summary(audit: ArmAudit) -> str:
    """Return what was found, or what is missing, in a sentence or two."""
    if audit.lacking is not None:
        return f"There is no verdict on its whole answers: {audit.lacking}."
    where = f"{audit.tokens:,} tokens of {_count(audit.answers, 'answer')}"
    if audit.answers < audit.of:
        where += f", sampled from {audit.of},"
    how = "read at once" if audit.by_prefill else "token by token"
    width = "the arm's verify width" + (f", {audit.slots} requests in a batch," if audit.slots > 1 else "")
    noise = "the change between prefill and decode" if audit.by_prefill else f"its own noise at {width}"
    scored = (
        f"Scored on the target alone, {how}, {where} diverge from its likeliest token {_times(audit.diverged)}; "
        f"{noise} explains {audit.expected or 0:.1f}"
    )
    if audit.violates:
        return f"{scored}, but not {_unexplained(audit)}."
    return f"{scored} (p = {_p(audit.p)}; at most {audit.excess_limit or 0:.2g} per 1,000 tokens beyond it, at 95 %)."


def power_sentence(audit: ArmAudit) -> str:
    """Return how likely a wrong engine would have been found where no violation was, in a sentence."""
    stated = audit.stated
    chance = 0.0 if stated is None else stated.chance
    found = f"No violation found, power {100 * chance:.0f} %"
    if audit.shows or stated is None:
        return f"{found}."
    if not can_be_shown(stated):
        return f"{found}: too little, and more prompts than anybody measures would be needed on this target."
    return f"{found}: too little, about {stated.prompts:,} prompts like these are needed."


def _unexplained(audit: ArmAudit) -> str:
    found = []
    if audit.beyond:
        found.append(f"{_count(audit.beyond, 'divergence')} at margins above {audit.floor or 0:.3g} nats")
    if audit.p_adjusted is not None and (audit.p_adjusted <= 0.005 or not found):
        found.append(f"where and how often they are (p = {_p(audit.p)})")
    return ", nor ".join(found)


def _p(p: float | None) -> str:
    return "–" if p is None else f"{p:.2g}" if p > 0 else "0: this target has no noise"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def find_power(
    noise: Noise, places: Places, nats: float, prompts: int, *, level: float, proposed: float, seed: int = 2
) -> DetectionPower:
    """Return the power at `level` against a rule that accepts the runner-up within `nats`, at places of `prompts`.

    `proposed`: the share of the places within `nats` at which the draft proposes the runner-up.
    """
    near = places.up_to(max(TAUS))
    if noise.silent:
        return power_of_equality(places.margins, nats, prompts, proposed)
    rng = np.random.default_rng(seed)
    first = _chance(noise, near, nats, level, proposed, rng, draws=math.ceil(BEYOND / level))
    found = DetectionPower(nats=nats, chance=first, prompts=prompts if first >= ENOUGH_POWER else None)
    if first >= ENOUGH_POWER or not len(near.margins):
        return found
    for times in TIMES:
        if times * len(near.margins) > MOST_PLACES:
            break
        if _chance(noise, _repeated(near, times, rng), nats, level, proposed, rng) >= ENOUGH_POWER:
            return found.model_copy(update={"prompts": times * prompts})
    return found


def power_of_equality(margins: Floats, nats: float, prompts: int, proposed: float) -> DetectionPower:
    """Return the power where a single swapped token is detected: 1 - (1 - proposed)^(places within `nats`).

    `margins`: at every token of answers to `prompts`, nats.
    """
    missed = (1 - proposed) ** int((margins <= nats).sum())
    enough = (factor * prompts for factor in (1, *TIMES) if 1 - missed**factor >= ENOUGH_POWER)
    return DetectionPower(nats=nats, chance=1 - missed, prompts=next(enough, None))


def stated_nats(manifest: Manifest | None) -> float:
    """Return within how many nats the engine of a run's stated power accepts the runner-up, by its recipe."""
    stated = ((manifest.recipe if manifest else {}).get("lossless") or {}).get("detect_nats")
    return stated if isinstance(stated, (int, float)) and stated > 0 else STATED_NATS


def _chance(
    noise: Noise,
    near: Places,
    nats: float,
    level: float,
    proposed: float,
    rng: np.random.Generator,
    *,
    draws: int | None = None,
) -> float:
    """Return the power at these places. `draws`: without a fault, for the threshold; few serve to count prompts."""
    simulation = Simulation(noise, near, rng)
    rounds = max(200, min(ROUNDS, 4_000_000 // max(1, len(near.margins))))
    null = null_statistics(simulation, near.margins, draws or rounds)
    limit = np.quantile(null, 1 - level, method="higher")
    swapped = (near.margins <= nats) & (rng.random((rounds, len(near.margins))) < proposed)
    own = noise.tail.chance_above(near.margins)[np.newaxis]
    return float((statistic(simulation.flips(rounds) | swapped, own, near.margins) > limit).mean())


def _repeated(places: Places, times: int, rng: np.random.Generator) -> Places:
    """Return `times` as many answers, drawn from these with replacement."""
    drawn = rng.integers(places.count, size=times * places.count)
    rows = [np.flatnonzero(places.answers == answer_number) for answer_number in drawn]
    index = np.concatenate(rows) if rows else np.zeros(0, np.int64)
    numbers = np.repeat(np.arange(len(drawn)), [len(row) for row in rows])
    return replace(places.at(index), answers=numbers)
