"""Runs' worth of answers, drawn again from one audited run: how often is an arm found wrong, and by what?

A drawn run has so many of the prompts, each once, with the arm's own answer as it was scored: a prompt drawn twice
would count what chance did to it twice, and with 200 of 12 a sound arm is found wrong by that alone. The noise is drawn
again from the answers that it was measured on, as many prefixes at least, since a run that is measured anew has other
noise, too. The drawn run is judged by benchctl's own `audit_parts`, alone, at the level of one arm.

`afresh`: a sound arm. The prompts are drawn with replacement, and each answer diverges where a loss that is drawn from
the measured noise exceeds its margin, so that a drawn run may have more prompts than were measured; the judge knows
that noise as it was measured (`audit_simulation` draws the noise, too).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchctl.data.scores import AnswerKey, DivergedToken, NullPass, ScoredAnswer, TargetScores, read_scores
from benchctl.data.store import open_run
from benchctl.lossless.judge.audit import audit_parts
from benchctl.lossless.judge.noise import SMALL_MARGIN
from benchctl.lossless.judge.run import OutputComparison
from benchctl.lossless.judge.selection import Answer, ArmAnswers, Selection, select_answers

_NOISE = "noise"
"""The task of the answers that noise is drawn from: no arm's own."""


@dataclass(frozen=True)
class Audited:
    """What was scored of a run."""

    selection: Selection
    audit: TargetScores

    @classmethod
    def read(cls, folder: Path) -> Audited | None:
        """Return what is kept of the run in `folder`; `None` where nothing was scored."""
        audit = read_scores(folder)
        if audit is None or not audit.answers:
            return None
        return cls(select_answers(OutputComparison(open_run(folder)).parts), audit)


STATED = (0.1, 0.3)
"""Nats within which the engines of the stated power accept the runner-up."""


def found_in_draws(
    audited: Audited,
    arm: str,
    *,
    prompts: int,
    draws: int,
    nats: Sequence[float] = STATED,
    seed: int = 1,
    afresh: bool = False,
) -> dict[str, Any]:
    """Return in how many drawn runs of an arm something is found, and the power that they state, in percent; an arm
    never audited is identical."""
    arm_answers = next((entry for entry in audited.selection.arms if entry.arm == arm), None)
    if arm_answers is None:
        return {"identical": True}
    scored = {entry.answer for entry in audited.audit.answers}
    scored_answers = sum(answer.key in scored for answer in arm_answers.answers)
    if not afresh and prompts > scored_answers:
        return {"prompts_scored": scored_answers}
    rng = np.random.default_rng(seed)
    drawn = list(_drawn(audited, arm_answers, prompts, draws, rng, afresh=afresh))
    stated: dict[float, list[float]] = {}
    for stated_nats in nats:
        audits = [audit_parts([(entry.audit, entry.selection)], nats=stated_nats)[arm] for entry in drawn]
        stated[stated_nats] = [100 * audit.stated.chance for audit in audits if audit.stated is not None]
    return {
        "draws": draws,
        "violation_percent": 100 * sum(entry.violates for entry in audits) / draws,
        "by_the_test_percent": 100 * sum(entry.violates and not entry.beyond for entry in audits) / draws,
        "lacking_percent": 100 * sum(entry.lacking is not None for entry in audits) / draws,
        "no_divergence_percent": 100 * sum(not entry.diverged for entry in audits) / draws,
        "stated_power_percent": {
            f"{within:g}": {"mean": float(np.mean(chances)), "tenths": np.quantile(chances, [0.1, 0.9]).tolist()}
            for within, chances in stated.items()
            if chances
        },
    }


def _drawn(
    audited: Audited, arm_answers: ArmAnswers, prompts: int, draws: int, rng: np.random.Generator, *, afresh: bool
) -> Iterator[Audited]:
    scored = {entry.answer: entry for entry in audited.audit.answers}
    pool = [answer for answer in arm_answers.answers if answer.key in scored]
    passes: dict[AnswerKey, list[NullPass]] = {}
    for entry in audited.audit.passes:
        if entry.width in arm_answers.widths:
            passes.setdefault(entry.answer, []).append(entry)
    measured = list(passes)
    enough = sum(len(entry.places) for several in passes.values() for entry in several)
    for _ in range(draws):
        answers: list[Answer] = []
        scores: list[ScoredAnswer] = []
        agreed, reach = {}, {}
        for number, place in enumerate(rng.choice(len(pool), size=prompts, replace=afresh).tolist()):
            renamed, key = replace(pool[place], prompt_idx=number), pool[place].key
            answers.append(renamed)
            update: dict[str, Any] = {"prompt_idx": number}
            if afresh:
                source = measured[rng.integers(len(measured))]
                margins = scored[source].margins
                losses = [  # as the judge does: at sure places noise is another
                    loss
                    for entry in passes[source]
                    for where, loss in zip(entry.places, entry.losses, strict=True)
                    if margins[where] <= SMALL_MARGIN
                ]
                update["diverged"] = [
                    DivergedToken(index=index, likeliest=-1, gap=margin)
                    for index, margin in enumerate(scored[key].margins)
                    if margin <= SMALL_MARGIN and losses and rng.choice(losses) > margin
                ]
            scores.append(scored[key].model_copy(update=update))
            first = update["diverged"][0].index if afresh and update["diverged"] else len(scores[-1].margins)
            agreed[renamed.key] = first if afresh else arm_answers.agreed[key]
            if key in arm_answers.reach:
                reach[renamed.key] = arm_answers.reach[key]
        null: list[NullPass] = []
        prefixes = 0
        for number in itertools.count():
            if prefixes >= enough:
                break
            other = {"task": _NOISE, "prompt_idx": number}
            key = measured[number] if afresh else measured[rng.integers(len(measured))]
            scores.append(scored[key].model_copy(update=other))
            null += [entry.model_copy(update=other) for entry in passes[key]]
            prefixes += sum(len(entry.places) for entry in passes[key])
        arm = replace(arm_answers, answers=tuple(answers), agreed=agreed, reach=reach)
        audit = audited.audit.model_copy(update={"answers": scores, "passes": null})
        yield Audited(Selection((arm,), (), {}), audit)
