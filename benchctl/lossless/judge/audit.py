"""From scored answers to the audit of every arm: the hazard test, the farthest divergences, and the power of both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from benchctl.analysis.answers import common_length
from benchctl.analysis.losslessness import AUDIT_LEVEL, ENOUGH_POWER, ArmAudit, DetectionPower, Reason, because
from benchctl.analysis.statistics import holm, tests_after
from benchctl.lossless.judge.noise import (
    SECOND_ROUND,
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
from benchctl.words.unscored import unscored

if TYPE_CHECKING:
    from benchctl.analysis.frame import Floats
    from benchctl.data.manifest import Manifest
    from benchctl.data.scores import AnswerKey, ScoredAnswer, TargetScores
    from benchctl.lossless.judge.selection import Answer, ArmAnswers, Selection


PREFIXES = 1_000
"""Prefixes that the noise of an arm is measured at, at least."""
NOT_VERIFIED = because("not-verified")
NOT_SCORED = because("not-scored")

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
    parts: Sequence[tuple[TargetScores | None, Selection]],
    *,
    reason: Reason = NOT_VERIFIED,
    nats: float = STATED_NATS,
    times_asked: int = 0,
) -> dict[str, ArmAudit]:
    """Return the audit of every arm of all parts of a run, each scored on its own target; levels hold for all.

    `reason`: why what is not scored was not; `nats`: within which the engine of the stated power accepts the runner-up.
    `times_asked`: how often further prompts were asked. Each time the arms are tested again, at a lower level
    (`tests_after`): over all tests together the chance of a false alarm is less than twice that of the first.
    """
    arms = sum(len(selection.arms) for _, selection in parts)
    repeats = tests_after(times_asked)
    audits = {
        arm.arm: _audit(arm, scores, selection.lacks.get(arm.arm), reason, arms * repeats, nats)
        for scores, selection in parts
        for arm in selection.arms
    }
    tested = {name: audit.p for name, audit in audits.items() if audit.p is not None}
    for name, adjusted in zip(tested, holm(list(tested.values())), strict=True):
        audits[name] = audits[name].model_copy(update={"p_adjusted": min(1.0, adjusted * repeats)})
    return audits


def _audit(
    arm: ArmAnswers, scores: TargetScores | None, lacks: Reason | None, reason: Reason, tests: int, nats: float
) -> ArmAudit:
    """`lacks`: why none of its answers can be audited; `tests`: how many share the level, with those of other arms."""
    by_key = {answer.answer: answer for answer in scores.answers} if scores else {}
    scored = [(answer, by_key[answer.key]) for answer in arm.answers if answer.key in by_key]
    by_prefill = scores is not None and scores.shape == "prefill"
    reach = {} if by_prefill else arm.reach  # those scores differ from decoding at every place
    places = _places(scored, reach)
    noise = noise_of(scores, arm.widths, arm.slots)
    prompts = len({(answer.task, answer.prompt_idx) for answer, _ in scored})
    lacking = lacks or _lacking(arm, scored, noise, reason, by_prefill=by_prefill)
    fields: dict[str, object] = {
        **dict.fromkeys(("expected", "p", "p_adjusted", "floor", "excess_limit")),
        "arm": arm.arm,
        "widths": arm.widths,
        "slots": arm.slots,
        "by_prefill": by_prefill,
        "answers": len(scored),
        "of": len(arm.answers),
        "prompts": prompts,
        "tokens": len(places.margins),
        "diverged": int(places.diverged.sum()),
        "beyond": 0,
        "prefixes": len(noise.margins),
        "continued": _continued(scores, arm),
        "changed": int((noise.losses != 0).sum()),
        "lacking": unscored(lacking) if lacking else None,
    }
    if lacking is None:
        level = AUDIT_LEVEL / 2 / tests
        rounds = max(SECOND_ROUND, math.ceil(2 / level))  # with fewer no p-value is below the level
        hazard = hazard_test(noise, places, rounds=rounds)
        reached = places.at(places.reached)
        floor = noise.floor(reached.margins, level / 2)  # the other half is for rivals behind the second
        proposed = PROPOSED if arm.rejecting is None else arm.rejecting
        fields |= {
            "expected": hazard.expected,
            "p": hazard.p,
            "floor": floor,
            "beyond": _beyond(scored, reach, floor),
            "excess_limit": excess_limit(noise, places),
            "stated": find_power(noise, reached, nats, prompts, level=level, proposed=proposed),
        }
    return ArmAudit.model_validate(fields)


def _continued(scores: TargetScores | None, arm: ArmAnswers) -> int:
    """Return at how many places in no answer of the run the noise of an arm was measured."""
    passes = scores.passes if scores else []
    return sum(
        len(read.places) for read in passes if read.suite and read.width in arm.widths and read.slots == arm.slots
    )


def _lacking(
    arm: ArmAnswers,
    scored: Sequence[tuple[Answer, ScoredAnswer]],
    noise: Noise,
    reason: Reason,
    *,
    by_prefill: bool,
) -> Reason | None:
    """Return what is missing for a test."""
    if not scored:
        return reason
    if not by_prefill and not arm.overlapping:
        agreed = [(score, min(arm.agreed[score.answer], len(score.margins))) for _, score in scored]
        diverged = sum(divergence.index < common for score, common in agreed for divergence in score.diverged)
        if diverged:
            return because("not-reproduced", diverged=diverged, places=sum(common for _, common in agreed))
    if by_prefill and arm.slots > 1:
        return because("no-shared-noise")
    if (max(arm.widths) > 1 or arm.slots > 1) and len(noise.margins) < PREFIXES:
        return because(
            "few-prefixes",
            widths=" ".join(map(str, arm.widths)),
            slots=arm.slots,
            by_prefill=by_prefill,
            measured=len(noise.margins),
            needed=PREFIXES,
        )
    return None


def _places(scored: Sequence[tuple[Answer, ScoredAnswer]], reach: Mapping[AnswerKey, Reach]) -> Places:
    """Lay out the places of an arm's answers; what several answers to a prompt have in common counts once.

    `reach`: of the rounds of each; those that are absent may differ anywhere.
    """
    parts: list[Places] = []
    earlier: dict[tuple[str, int], list[Answer]] = {}
    for number, (answer, score) in enumerate(scored):
        before = earlier.setdefault((answer.task, answer.prompt_idx), [])
        start = max((common_length(answer.token_ids, earlier_answer.token_ids) for earlier_answer in before), default=0)
        before.append(answer)
        size = len(score.margins)
        index = np.arange(start, size)
        diverged = np.isin(index, [divergence.index for divergence in score.diverged])
        rounds = _reach_of(answer, size, reach)
        surely, perhaps = index >= size - rounds.fewest, index >= size - rounds.largest
        parts.append(Places(np.array(score.margins[start:]), diverged, np.full(len(index), number), perhaps, surely))
    return joined(parts)


def _reach_of(answer: Answer, size: int, reach: Mapping[AnswerKey, Reach]) -> Reach:
    """Return what rounds reach of an answer of `size` tokens: all of it where it is absent."""
    return reach.get(answer.key, Reach(size, size))


def _beyond(scored: Sequence[tuple[Answer, ScoredAnswer]], reach: Mapping[AnswerKey, Reach], floor: float) -> int:
    """Return how many divergences are beyond `floor`, or where no round with a draft reached."""
    count = 0
    for answer, score in scored:
        size = len(score.margins)
        first = size - _reach_of(answer, size, reach).largest
        count += sum(divergence.gap > floor or divergence.index < first for divergence in score.diverged)
    return count


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
    power = DetectionPower(nats=nats, chance=first, prompts=prompts if first >= ENOUGH_POWER else None)
    if first >= ENOUGH_POWER or not len(near.margins):
        return power
    for times in TIMES:
        if times * len(near.margins) > MOST_PLACES:
            break
        if _chance(noise, _repeated(near, times, rng), nats, level, proposed, rng) >= ENOUGH_POWER:
            return power.model_copy(update={"prompts": times * prompts})
    return power


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
    chances = noise.tail.chance_above(near.margins)[np.newaxis]
    return float((statistic(simulation.flips(rounds) | swapped, chances, near.margins) > limit).mean())


def _repeated(places: Places, times: int, rng: np.random.Generator) -> Places:
    """Return `times` as many answers, drawn from these with replacement."""
    drawn = rng.integers(places.count, size=times * places.count)
    rows = [np.flatnonzero(places.answers == answer_number) for answer_number in drawn]
    index = np.concatenate(rows) if rows else np.zeros(0, np.int64)
    numbers = np.repeat(np.arange(len(drawn)), [len(row) for row in rows])
    return replace(places.at(index), answers=numbers)
