"""Whether a draft is worth speculating with, from the predictions of target and draft along the target's answers.

All-token acceptance α(k) is the chance that all k tokens of a draft are accepted. Under greedy decoding it is the
share of starts at which the draft's likeliest token is the answer's k times in a row, given the answer's own tokens:
that is what a round does, because a draft that was accepted so far equals the answer's tokens. Of answers drawn from
the target it is the mean over contexts of Σ over x1…xk of Π min(p, q) (Leviathan et al. 2023, section 3), of which

    Π over the first k - 1 places of min(1, q/p) at the answer's token · Σ min(p, q) at the last

is an unbiased estimate: the answer's tokens come from p, so that the factor q/p weighs them as drafts. α(1) is the
acceptance per token. The speed-up is E / (v + k·c) with E(α, k) of the acceptance *per token*: α(k) fed into it would
count the same rejections several times.

Intervals are by bootstrap over prompts, because the positions of a prompt are correlated. Predictions are compared with
what a run measured with the same target, draft and speculation.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from benchctl.analysis.cost import expected_tokens
from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.result import Interval, Result
from benchctl.analysis.results import Analysis
from benchctl.analysis.statistics import pearson
from benchctl.data.manifest import Manifest
from benchctl.data.store import MANIFEST, open_run, read_manifest
from benchctl.data.traces import Expectations
from benchctl.errors import BenchctlError
from benchctl.experiments.diagnose.stored import DiagnosedDraft, Diagnosis, DraftCosts, ForcedAnswer
from benchctl.lossless.judge.run import analyse_run

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

DEPTHS = (2, 4, 8)
"""Depths at which all-token acceptance is reported."""
RESAMPLES = 10_000
SEED = 20261122
METHOD = "95 %, bootstrap over prompts, 10,000 resamples"
VIABLE = 5.0
HOPELESS = 20.0
"""Of the ablation study: a component is viable as a draft where removing it multiplies perplexity by less than 5, and
is not where it does by more than 20."""
DEEPEST = 16
"""The best predicted depth is searched from 1 to here."""


class Estimate(Result):
    """A share with its interval; no interval with fewer than two prompts."""

    value: float
    interval: Interval | None


class DraftAcceptance(Result):
    """The acceptance of a way to draft, for one task or all, greedy or sampled."""

    draft: str
    task: str
    temperature: float
    prompts: int
    starts: int
    """Positions at which a draft began."""
    per_token: Estimate
    """Acceptance of a token, over all drafted positions."""
    all_tokens: dict[int, Estimate]
    """α(k) by depth, for depths that some answer is long enough for."""
    accepted_share: dict[int, Estimate] = Field(default_factory=dict)
    """Accepted ÷ k by depth, (α(1) + … + α(k)) / k: what the studies call α(k), and what a run's acceptance is."""
    distance: float | None = None
    """Mean total variation distance at temperature 1 over the target's likeliest tokens; of greedy answers alone."""
    distance_most: float | None = None
    agreement: float | None = None
    """Share of starts at which the likeliest tokens are the same; of greedy answers alone."""


class Payoff(Result):
    """The predicted result of speculation at one depth."""

    depth: int
    temperature: float
    tokens: float
    """E(α, k) with the acceptance per token."""
    measured_tokens: float | None
    """1 + α(1) + … + α(k): acceptance need not be equal at every depth; `None` beyond what was read."""
    check: float | None
    """v: the target's pass over k + 1 tokens over its step, measured; `None`: not timed, and taken for 1."""
    speedup_measured: float | None
    """E / (v + k·c), where c is the measured cost of a draft step."""
    speedup_flops: float | None
    """E / (1 + k·c), where c is the draft's share of floating-point operations: only computing costs time."""


PerplexityVerdict = Literal["viable", "between", "not viable"]


class DraftDiagnosis(Result):
    """The diagnosis of a way to draft."""

    draft: str
    kind: Literal["pair", "part"]
    arms: list[str]
    what: dict[str, object]
    exact: bool
    truncated: float
    """Upper bound of the mean share of a sampled distribution beyond the tokens that the engine reports."""
    acceptance: list[DraftAcceptance]
    """All tasks first, greedy first."""
    cost: float | None
    """c: a draft step over a target step, measured."""
    cost_flops: float | None
    flops_how: str
    perplexity: float | None
    """Perplexity of the target; only where a part of the target drafts."""
    perplexity_removed: float | None
    perplexity_ratio: float | None
    perplexity_verdict: PerplexityVerdict | None
    """Class by the ablation study's limits."""
    payoff: list[Payoff]
    best: Payoff | None
    """The depth with the highest predicted speed-up at the measured cost, greedy."""
    error: str | None = None


def judge_diagnosis(diagnosis: Diagnosis) -> list[DraftDiagnosis]:
    """Return the diagnosis of every way to draft, from the stored readings."""
    return [_judge(draft) for draft in diagnosis.drafts]


def _judge(draft: DiagnosedDraft) -> DraftDiagnosis:
    acceptance = [
        row
        for temperature in sorted({answer.temperature for answer in draft.answers})
        for task in (ALL_TASKS, *dict.fromkeys(answer.task for answer in draft.answers))
        if (row := _acceptance(draft.name, task, temperature, draft.answers)) is not None
    ]
    costs = draft.costs
    cost = _ratio(costs.draft_step_s, costs.target_step_s)
    cost_flops = _ratio(costs.draft_flops, costs.target_flops)
    # Answers without starts are passages of the corpus, in which nothing is drafted.
    corpus = [answer for answer in draft.answers if not answer.starts]
    perplexity, removed = _perplexities(corpus or draft.answers)
    ratio = _ratio(removed, perplexity)
    payoff = [
        predicted
        for row in acceptance
        if row.task == ALL_TASKS
        for predicted in _payoffs(row, draft.answers, cost, cost_flops, checks_of(costs))
    ]
    greedy = [
        predicted for predicted in payoff if predicted.temperature == 0 and predicted.speedup_measured is not None
    ]
    return DraftDiagnosis(
        **draft.model_dump(include={"kind", "arms", "what", "exact", "error"}),
        draft=draft.name,
        truncated=max((answer.truncated for answer in draft.answers), default=0.0),
        acceptance=acceptance,
        cost=cost,
        cost_flops=cost_flops,
        flops_how=costs.flops_how,
        perplexity=perplexity,
        perplexity_removed=removed,
        perplexity_ratio=ratio,
        perplexity_verdict=verdict_of(ratio) if corpus else None,
        payoff=payoff,
        best=max(greedy, key=lambda predicted: (predicted.speedup_measured or 0.0, -predicted.depth), default=None),
    )


def verdict_of(ratio: float | None) -> PerplexityVerdict | None:
    """Return the class of a perplexity ratio by the ablation study's limits."""
    if ratio is None:
        return None
    return "viable" if ratio < VIABLE else "not viable" if ratio > HOPELESS else "between"


def checks_of(costs: DraftCosts) -> dict[int, float]:
    """Return v by depth up to `DEEPEST`, between the timed widths and beyond the last two on a line; {}: not timed.

    A wider pass never costs less: where it seems to, something else was running.
    """
    step = costs.target_step_s
    if not step or len(costs.checks_s) < 2:
        return {}
    widths = np.array([1, *costs.checks_s])
    spent = np.maximum.accumulate(np.array([1.0, *(seconds / step for seconds in costs.checks_s.values())]))
    slope = (spent[-1] - spent[-2]) / (widths[-1] - widths[-2])
    depths = range(1, DEEPEST + 1)
    return {
        depth: float(np.interp(depth + 1, widths, spent) + slope * max(0, depth + 1 - widths[-1])) for depth in depths
    }


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator is not None and denominator else None


def _acceptance(draft: str, task: str, temperature: float, answers: Sequence[ForcedAnswer]) -> DraftAcceptance | None:
    chosen = [answer for answer in _drafted(answers, temperature) if task in (ALL_TASKS, answer.task)]
    if not chosen:
        return None
    by_depth: dict[int, list[Floats]] = {}
    for depth, chances in itertools.product(DEPTHS, map(windows, chosen)):
        if len(rows := read_to(depth, chances)):
            by_depth.setdefault(depth, []).append(rows)
    greedy = chosen if temperature == 0 else []
    return DraftAcceptance(
        draft=draft,
        task=task,
        temperature=temperature,
        prompts=len(chosen),
        starts=sum(len(answer.starts) for answer in chosen),
        per_token=_estimate([np.concatenate([np.asarray(row) for row in answer.overlap]) for answer in chosen]),
        all_tokens={depth: _estimate([rows[:, -1] for rows in arrays]) for depth, arrays in by_depth.items()},
        accepted_share={depth: _estimate([rows.mean(axis=1) for rows in arrays]) for depth, arrays in by_depth.items()},
        distance=_mean([answer.distance for answer in greedy]),
        distance_most=_mean([answer.distance_most for answer in greedy]),
        agreement=_mean([answer.agree for answer in greedy]),
    )


def _drafted(answers: Sequence[ForcedAnswer], temperature: float) -> list[ForcedAnswer]:
    return [answer for answer in answers if answer.temperature == temperature and answer.starts]


def windows(answer: Expectations) -> Floats:
    """Return starts x depths up to `DEEPEST`: the chance that 1, 2, … draft tokens in a row are accepted.

    NaN where a start was not read so far. The rows of a draft with a state of its own hold a single place; they are
    laid end to end.
    """
    rows = list(zip(answer.overlap, answer.accept, strict=True))
    if all(len(overlap) == 1 for overlap, _ in rows):
        overlaps, accepts = ([row[0] for row in part] for part in (answer.overlap, answer.accept))
        rows = [(overlaps[start : start + DEEPEST], accepts[start : start + DEEPEST]) for start in range(len(rows))]
    chances = np.full((len(rows), DEEPEST), np.nan)
    for row, (overlap, accept) in zip(chances, rows, strict=True):
        read = min(len(overlap), DEEPEST)
        row[:read] = np.cumprod([1.0, *accept])[:read] * overlap[:read]
    return chances


def read_to(depth: int, rows: Floats) -> Floats:
    """Return the first columns of the rows of `windows` from which so many places were read.

    The last column estimates α(k); the mean of a row is the expected share of k draft tokens that is accepted.
    """
    return rows[np.isfinite(rows[:, depth - 1]), :depth]


def _estimate(by_prompt: Sequence[Floats]) -> Estimate:
    """Return the mean over all values with a bootstrap over the prompts that they belong to."""
    sums = np.array([[values.sum(), len(values)] for values in by_prompt], dtype=float)
    value = float(sums[:, 0].sum() / sums[:, 1].sum())
    if len(sums) < 2:
        return Estimate(value=value, interval=None)
    rng = np.random.default_rng(SEED)
    drawn = rng.multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size=RESAMPLES) @ sums
    low, high = np.quantile(drawn[:, 0] / drawn[:, 1], [0.025, 0.975])
    return Estimate(value=value, interval=Interval(low=float(low), high=float(high), method=METHOD))


def _mean(rows: Sequence[Sequence[float]]) -> float | None:
    values = [value for row in rows for value in row]
    return float(np.mean(values)) if values else None


def _perplexities(answers: Sequence[ForcedAnswer]) -> tuple[float | None, float | None]:
    """Return the perplexity of the whole target, and without the part."""
    losses = [
        (answer.loss_target, answer.loss_draft, answer.scored)
        for answer in answers
        if answer.loss_target is not None and answer.loss_draft is not None and answer.scored
    ]
    if not losses:
        return None, None
    target_loss, draft_loss, scored = map(sum, zip(*losses, strict=True))
    return math.exp(min(target_loss / scored, 700.0)), math.exp(min(draft_loss / scored, 700.0))


def _payoffs(
    row: DraftAcceptance,
    answers: Sequence[ForcedAnswer],
    cost: float | None,
    cost_flops: float | None,
    checks: Mapping[int, float],
) -> list[Payoff]:
    """Predict for every depth from 1 to `DEEPEST`; `checks`: v by depth."""
    alpha = row.per_token.value
    read = np.concatenate([windows(answer) for answer in _drafted(answers, row.temperature)])
    chances = [float(reached[:, -1].mean()) for depth in range(1, DEEPEST + 1) if len(reached := read_to(depth, read))]
    payoffs = []
    for depth in range(1, DEEPEST + 1):
        tokens, check = expected_tokens(alpha, depth), checks.get(depth)
        payoffs.append(
            Payoff(
                depth=depth,
                temperature=row.temperature,
                tokens=tokens,
                measured_tokens=1 + sum(chances[:depth]) if depth <= len(chances) else None,
                check=check,
                speedup_measured=None if cost is None else tokens / ((check or 1.0) + depth * cost),
                speedup_flops=None if cost_flops is None else tokens / (1 + depth * cost_flops),
            )
        )
    return payoffs


class Predicted(Result):
    """An arm of the run: predicted and measured. `None`: not predicted, or not measured."""

    draft: str
    arm: str
    depth: int
    temperature: float
    tokens: float | None
    """Predicted tokens of a round: 1 + α(1) + … + α(k)."""
    tokens_measured: float | None
    speedup: float | None
    speedup_measured: float | None


class Agreement(Result):
    """A diagnosis compared with a run."""

    run: str
    arms: list[Predicted]
    tokens_r: float | None
    """Pearson's r of predicted and measured, over the arms."""
    speedup_r: float | None


def agreement_of(folder: Path, diagnosis: Diagnosis, drafts: Sequence[DraftDiagnosis]) -> Agreement | None:
    """Return the diagnosis beside the newest run of its recipe that measured any of its drafts; `None`: there is none.

    `folder`: the diagnosis's own, `<out>/<recipe>/diagnosis/<id>`.
    """
    identities, recipe_arms = _identities(diagnosis.manifest), {arm.name: arm.of for arm in diagnosis.manifest.arms}
    named = {
        identity: draft
        for draft in drafts
        for name, identity in identities.items()
        if name in draft.arms or recipe_arms[name] in draft.arms
    }
    for file in sorted(folder.resolve().parent.parent.glob(f"*/{MANIFEST}"), reverse=True):
        try:
            if named.keys() & set(_identities(read_manifest(file.parent)).values()):
                run = open_run(file.parent)
                return _beside(run.manifest or diagnosis.manifest, analyse_run(run), named)
        except BenchctlError:
            continue  # skip a run that cannot be read
    return None


def _identities(manifest: Manifest) -> dict[str, str]:
    """Return what decides how an arm drafts, by the arm's name; of the arms that speculate one request at a time."""
    compared = manifest.compared()
    return {
        arm.name: json.dumps(
            [arm.speculation, row.engine, *(model and model.identity for model in (row.target, row.draft))]
        )
        for arm in manifest.arms
        if arm.speculation and (row := compared[arm.name]).group.one_at_a_time and row.group.context_length is None
    }


def _beside(manifest: Manifest, analysis: Analysis, named: Mapping[str, DraftDiagnosis]) -> Agreement:
    arms = list(_predicted(manifest, analysis, named))
    tokens = [(arm.tokens, arm.tokens_measured) for arm in arms]
    speedups = [(arm.speedup, arm.speedup_measured) for arm in arms]
    return Agreement(run=analysis.run, arms=arms, tokens_r=_r(tokens), speedup_r=_r(speedups))


def _r(points: Sequence[tuple[float | None, float | None]]) -> float | None:
    return pearson([(x, y) for x, y in points if x is not None and y is not None])


def _predicted(manifest: Manifest, analysis: Analysis, named: Mapping[str, DraftDiagnosis]) -> Iterator[Predicted]:
    lengths = {row.arm: row.acceptance_length for row in analysis.acceptance if row.task == ALL_TASKS}
    speedups = {row.arm: row.pooled for row in analysis.speedups if row.task == ALL_TASKS}
    speculation = {arm.name: arm.speculation or {} for arm in manifest.arms}
    for name, identity in _identities(manifest).items():
        draft, temperature = named.get(identity), analysis.compared[name].group.temperature
        for payoff in draft.payoff if draft else ():
            if draft and (payoff.depth, payoff.temperature) == (speculation[name].get("max"), temperature):
                yield Predicted(
                    draft=draft.draft,
                    arm=name,
                    depth=payoff.depth,
                    temperature=temperature,
                    tokens=payoff.measured_tokens,
                    tokens_measured=lengths.get(name),
                    speedup=payoff.speedup_measured,
                    speedup_measured=speedups.get(name),
                )
