"""Runs' worth of answers, drawn again from one audited run: how often is an arm found wrong, and by what?

A drawn run has so many prompts, with replacement, each with the arm's own answer as it was scored; the noise is drawn
again from the answers that it was measured on, as many prefixes at least, since a run that is measured anew has other
noise, too. The drawn run is judged by benchctl's own `audit_arms`, alone, at the level of one arm.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchctl.data.audits import AnswerKey, Audit, NullPass, ScoredAnswer, read_audit
from benchctl.data.store import open_run
from benchctl.lossless.analysed import OutputComparison
from benchctl.lossless.conclude import audit_arms
from benchctl.lossless.selection import Answer, ArmAnswers, Selection, select_answers

_NOISE = "noise"
"""The task of the answers that noise is drawn from: no arm's own."""


@dataclass(frozen=True)
class Audited:
    """What was scored of a run."""

    selection: Selection
    audit: Audit

    @classmethod
    def read(cls, folder: Path) -> Audited | None:
        """Return what is kept of the run in `folder`; `None` where nothing was scored."""
        audit = read_audit(folder)
        return None if audit is None else cls(select_answers(OutputComparison(open_run(folder)).parts), audit)


STATED = (0.1, 0.3)
"""Nats within which the engines of the stated power accept the runner-up."""


def found_in_draws(audited: Audited, arm: str, *, prompts: int, draws: int, seed: int = 1) -> dict[str, Any]:
    """Return in how many drawn runs of an arm something is found, and the power that they state, in percent; an arm
    never audited is identical."""
    own = next((one for one in audited.selection.arms if one.arm == arm), None)
    if own is None:
        return {"identical": True}
    rng = np.random.default_rng(seed)
    drawn = list(_drawn(audited, own, prompts, draws, rng))
    stated: dict[float, list[float]] = {}
    for nats in STATED:
        found = [audit_arms(one.audit, one.selection, nats=nats)[arm] for one in drawn]
        stated[nats] = [100 * audit.stated.chance for audit in found if audit.stated is not None]
    return {
        "draws": draws,
        "violation_percent": 100 * sum(one.violates for one in found) / draws,
        "by_the_test_percent": 100 * sum(one.violates and not one.beyond for one in found) / draws,
        "lacking_percent": 100 * sum(one.lacking is not None for one in found) / draws,
        "no_divergence_percent": 100 * sum(not one.diverged for one in found) / draws,
        "stated_power_percent": {
            f"{nats:g}": {"mean": float(np.mean(chances)), "tenths": np.quantile(chances, [0.1, 0.9]).tolist()}
            for nats, chances in stated.items()
            if chances
        },
    }


def _drawn(audited: Audited, own: ArmAnswers, prompts: int, draws: int, rng: np.random.Generator) -> Iterator[Audited]:
    scored = {one.key: one for one in audited.audit.answers}
    pool = [answer for answer in own.answers if answer.key in scored]
    passes: dict[AnswerKey, list[NullPass]] = {}
    for one in audited.audit.passes:
        if one.width in own.widths:
            passes.setdefault(one.answer, []).append(one)
    measured = list(passes)
    enough = sum(len(one.places) for several in passes.values() for one in several)
    for _ in range(draws):
        answers: list[Answer] = []
        scores: list[ScoredAnswer] = []
        agreed = {}
        for number, place in enumerate(rng.integers(len(pool), size=prompts).tolist()):
            renamed = replace(pool[place], prompt_idx=number)
            answers.append(renamed)
            scores.append(scored[pool[place].key].model_copy(update={"prompt_idx": number}))
            agreed[renamed.key] = own.agreed[pool[place].key]
        null: list[NullPass] = []
        prefixes = 0
        for number in itertools.count():
            if prefixes >= enough:
                break
            other = {"task": _NOISE, "prompt_idx": number}
            key = measured[rng.integers(len(measured))]
            scores.append(scored[key].model_copy(update=other))
            null += [one.model_copy(update=other) for one in passes[key]]
            prefixes += sum(len(one.places) for one in passes[key])
        arm = replace(own, answers=tuple(answers), agreed=agreed)
        audit = audited.audit.model_copy(update={"answers": scores, "passes": null})
        yield Audited(Selection((arm,), (), {}), audit)
