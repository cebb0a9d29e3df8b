"""From scored answers to what they show of every arm: the hazard test, the farthest divergences, and their power."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from benchctl.analysis.audit.hazard import Places, Simulation, hazard_test
from benchctl.analysis.audit.noise import Noise, noise_of
from benchctl.analysis.audit.power import find_power
from benchctl.analysis.fork import common_length
from benchctl.analysis.results import AUDIT_LEVEL, ArmAudit, Seen

if TYPE_CHECKING:
    from benchctl.analysis.audit.noise import Floats
    from benchctl.analysis.audit.selection import Answer, ArmAnswers, Selection
    from benchctl.data.audits import AnswerKey, Audit, ScoredAnswer

PREFIXES = 1_000
"""Prefixes that the noise of an arm is measured at, at least."""
BUGS = (0.1, 0.3)
"""Nats within which the wrong engines of the power accept the runner-up."""
UNSCORED = "its answers were not scored on the target alone (`benchctl verify-lossless` does)"


def audit_arms(audit: Audit | None, selection: Selection, *, reason: str = UNSCORED) -> dict[str, ArmAudit]:
    """Return what was found of every arm of the selection. `reason`: why what is not scored was not."""
    scored = {answer.key: answer for answer in audit.answers} if audit else {}
    found = {arm.arm: _audit(arm, scored, audit, selection, reason) for arm in selection.arms}
    by_p = sorted((one.p, name) for name, one in found.items() if one.p is not None)
    worst = 0.0
    for rank, (p, name) in enumerate(by_p):  # Holm, Scand. J. Statist. 6, 1979
        worst = max(worst, min(1.0, p * (len(by_p) - rank)))
        found[name] = found[name].model_copy(update={"p_adjusted": worst})
    return found


def _audit(
    arm: ArmAnswers, scored: Mapping[AnswerKey, ScoredAnswer], audit: Audit | None, selection: Selection, reason: str
) -> ArmAudit:
    known = [(answer, scored[answer.key]) for answer in arm.answers if answer.key in scored]
    places = _places(known)
    noise = noise_of(audit, scored, arm.widths) if audit else Noise(np.zeros(0), np.zeros(0), np.zeros(0, np.int64))
    by_prefill = audit is not None and audit.shape == "prefill"
    prompts = len({(answer.task, answer.prompt_idx) for answer, _ in known})
    told = ArmAudit(
        arm=arm.arm,
        widths=arm.widths,
        by_prefill=by_prefill,
        answers=len(known),
        of=len(arm.answers),
        prompts=prompts,
        tokens=len(places.margins),
        diverged=int(places.diverged.sum()),
        expected=None,
        p=None,
        p_adjusted=None,
        floor=None,
        beyond=0,
        excess_limit=None,
        prefixes=len(noise.margins),
        changed=int((noise.losses != 0).sum()),
    )
    lacking = selection.lacks.get(arm.arm) or _lacking(arm, known, noise, reason, by_prefill=by_prefill)
    if lacking is not None:
        return told.model_copy(update={"lacking": lacking})
    arms = len(selection.arms)
    level = AUDIT_LEVEL / 2 / arms
    hazard = hazard_test(noise, places)
    floor = noise.floor(places.margins, level / 2)  # the other half is for rivals behind the second
    power = [find_power(noise, places, nats, level=level) for nats in BUGS]
    return told.model_copy(
        update={
            "expected": hazard.expected,
            "p": hazard.p,
            "floor": floor,
            "beyond": sum(one.gap > floor for _, answer in known for one in answer.diverged),
            "excess_limit": _excess_limit(noise, places),
            "seen": tuple(
                Seen(nats=one.nats, chance=one.chance, prompts=one.times and one.times * prompts) for one in power
            ),
        }
    )


def _lacking(
    arm: ArmAnswers,
    known: Sequence[tuple[Answer, ScoredAnswer]],
    noise: Noise,
    reason: str,
    *,
    by_prefill: bool,
) -> str | None:
    """Say what is missing for a test, as the end of a sentence."""
    if not known:
        return reason
    if not by_prefill and not arm.overlapping:
        agreed = [(answer, min(arm.agreed[answer.key], len(answer.margins))) for _, answer in known]
        others = sum(one.index < common for answer, common in agreed for one in answer.diverged)
        if others:
            places = sum(common for _, common in agreed)
            return (
                f"read again token by token, the target alone leaves the baseline's own answers at {others:,} of "
                f"{places:,} places: what was read is not what ran"
            )
    if max(arm.widths) > 1 and len(noise.margins) < PREFIXES:
        several = " or ".join(map(str, arm.widths))
        how = "in another shape" if by_prefill else f"{several} tokens at a time"
        return f"the noise of reading {how} was measured at {len(noise.margins):,} prefixes; {PREFIXES:,} are needed"
    return None


def _places(known: Sequence[tuple[Answer, ScoredAnswer]]) -> Places:
    """Lay out the places of an arm's answers; what several answers to a prompt have in common counts once."""
    margins: list[Floats] = []
    diverged: list[int] = []
    numbers: list[int] = []
    earlier: dict[tuple[str, int], list[Answer]] = {}
    total = 0
    for number, (answer, scored) in enumerate(known):
        before = earlier.setdefault((answer.task, answer.prompt_idx), [])
        start = max((common_length(answer.token_ids, other.token_ids) for other in before), default=0)
        before.append(answer)
        diverged += [total + one.index - start for one in scored.diverged if one.index >= start]
        margins.append(np.array(scored.margins[start:]))
        numbers += [number] * (len(scored.margins) - start)
        total += max(0, len(scored.margins) - start)
    flags = np.zeros(total, dtype=np.bool_)
    flags[diverged] = True
    return Places(np.concatenate([np.zeros(0), *margins]), flags, np.array(numbers, dtype=np.int64))


def _excess_limit(noise: Noise, places: Places) -> float | None:
    """Return the 95 % upper limit of divergences beyond those of noise, per 1,000 tokens."""
    size = len(places.margins)
    if not size:
        return None
    rng = np.random.default_rng(3)
    true = rng.gamma(int(places.diverged.sum()) + 1, size=200)  # the exact Poisson limit is a quantile of this
    simulation = Simulation(noise, places, rng)
    expected = np.array([simulation.another_tail().chance_above(places.margins).sum() for _ in range(200)])
    return max(0.0, float(np.quantile(true - expected, 0.95))) / size * 1000
