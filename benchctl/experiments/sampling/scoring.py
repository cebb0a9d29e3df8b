"""Scoring sampled answers on the target alone, and on the draft: the part that runs engines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchctl.engines.base import PrefillScorer, Scorer, ScoringEngine
from benchctl.errors import BenchctlError
from benchctl.experiments.sampling.stored import SampledAnswer, TermSum, TokenScores, open_check, write_token_scores
from benchctl.experiments.sampling.tokens import Sampler, terms, weights
from benchctl.lossless.reading import scores_of
from benchctl.measure.cell import fresh_log, scoring
from benchctl.measure.prepare import Prepared
from benchctl.models.files import ResolvedModel, ResolvedPair
from benchctl.recipes.adapters import registered

TOKENS = 4_000
"""Of each arm that are scored, about; the first answers to every prompt in turn."""
TOP, TOP_OF_PREFILL = 40, 20
"""Likeliest tokens that are read; vLLM reports at most 20 of a prompt's by default."""
BUDGET_S = 600.0
"""Scoring may take so long."""

Advance = Callable[[int, int, str], None]
"""Called with how many answers of how many are scored, and whose comes next."""


@dataclass(frozen=True)
class _Job:
    answer: SampledAnswer
    prompt: tuple[int, ...]
    token_ids: tuple[int, ...]


def score_check(
    folder: Path, prepared: Prepared, *, budget_s: float = BUDGET_S, advance: Advance | None = None
) -> str | None:
    """Score what a check drew, as far as that is not done, and keep it beside the answers.

    Returns why nothing, or nothing more, could be scored, as the end of a sentence. Raises StorageError, and
    KeyboardInterrupt.
    """
    own, data = prepared.of_baseline, open_check(folder)
    engine = own.engine
    if not isinstance(engine, ScoringEngine):
        return f"benchctl cannot read logits of the engine {own.capabilities.kind}"
    known = {(score.arm, score.seed) for score in data.scores}
    chosen = [answer for answer in _chosen(data.answers) if (answer.arm, answer.seed) not in known]
    if not chosen:
        return None
    found = list(data.scores)
    try:
        with _target(engine, prepared, folder, "scored-target") as target:
            jobs, done = _jobs(target, prepared, chosen), 0
            for number, (model, beside) in enumerate(_by_draft(prepared, jobs)):
                with _draft(engine, prepared, model, folder, f"scored-draft-{number}") as draft:
                    until = time.monotonic() + budget_s * len(beside) / len(jobs)
                    for job in beside:
                        if time.monotonic() > until:
                            break
                        if advance is not None:
                            advance(done, len(jobs), job.answer.arm)
                        found.append(_scored(job, target, draft, sampler_of(prepared)))
                        done += 1
            if advance is not None:
                advance(len(jobs), len(jobs), "done")
    except BenchctlError as error:
        return error.what
    finally:
        write_token_scores(data, found)
    return None


def sampler_of(prepared: Prepared) -> Sampler:
    """Return how the engine turns probabilities into choices; of an endpoint, as the server behind it does."""
    found = prepared.of_baseline.capabilities
    adapter = registered().adapters.get(str(found.details.get("server") or found.kind))
    sampling = prepared.recipe.sampling
    first = adapter is not None and adapter.truncates_first
    return Sampler(sampling.temperature, sampling.top_k, sampling.top_p, first)


def _chosen(answers: Sequence[SampledAnswer]) -> Iterator[SampledAnswer]:
    """Yield answers of every arm in the order in which they were drawn, the prompts in turn, up to `TOKENS`."""
    for arm in dict.fromkeys(answer.arm for answer in answers):
        tokens = 0
        for answer in (answer for answer in answers if answer.arm == arm and answer.token_ids):
            if tokens >= TOKENS:
                break
            tokens += len(answer.token_ids or ())
            yield answer


@contextmanager
def _target(engine: ScoringEngine, prepared: Prepared, folder: Path, name: str) -> Iterator[Scorer]:
    with scoring(engine, prepared.launches[prepared.recipe.baseline], fresh_log(folder, name)[1]) as scorer:
        yield scorer


def _by_draft(prepared: Prepared, jobs: Sequence[_Job]) -> list[tuple[ResolvedModel | None, list[_Job]]]:
    """Return the jobs by the draft model of their arm's own setup."""
    found: dict[ResolvedModel | None, list[_Job]] = {}
    for job in jobs:
        found.setdefault(prepared.setup_of(job.answer.arm).models.draft, []).append(job)
    return list(found.items())


@contextmanager
def _draft(
    engine: ScoringEngine, prepared: Prepared, model: ResolvedModel | None, folder: Path, name: str
) -> Iterator[Scorer | None]:
    """Have a draft running as a target of its own; `None` where there is none, or only its name is known."""
    if model is None or not model.files:
        yield None
        return
    baseline = prepared.recipe.arm(prepared.recipe.baseline)
    launch = prepared.of_baseline.engine.launch(baseline, ResolvedPair(model, None))
    with scoring(engine, launch, fresh_log(folder, name)[1]) as scorer:
        yield scorer


def _jobs(scorer: Scorer, prepared: Prepared, chosen: Sequence[SampledAnswer]) -> list[_Job]:
    asked_prompts = {
        (asked.task, asked.prompt_idx): asked.prompt for asked in prepared.prompts if asked.constrained is None
    }
    rendered: dict[tuple[str, int], tuple[int, ...]] = {}
    jobs = []
    for answer in chosen:
        key = (answer.task, answer.prompt_idx)
        if key not in asked_prompts:
            continue  # the target's probabilities are without its constraint
        if key not in rendered:
            rendered[key] = tuple(scorer.render(asked_prompts[key]).token_ids)
        jobs.append(_Job(answer, rendered[key], tuple(answer.token_ids or ())))
    return jobs


def _scored(job: _Job, target: Scorer, draft: Scorer | None, sampler: Sampler) -> TokenScores:
    """Score every token of an answer. Raises EngineError."""
    scores = scores_of(target, job.prompt, job.token_ids, _top(target))
    theirs = scores_of(draft, job.prompt, job.token_ids, _top(draft)) if draft is not None else [None] * len(scores)
    far = 0
    sums: dict[str, TermSum] = {}
    for token, p, q in zip(job.token_ids, scores, theirs, strict=True):
        kept, out = weights(p.logprobs, sampler)
        if token in out or token not in p.logprobs:
            far += 1
        elif token in kept:
            for name, term in terms(token, p.logprobs, q.logprobs if q is not None else None, sampler).items():
                sums[name] = sums[name].plus(term) if name in sums else term
    answer = job.answer
    return TokenScores(
        arm=answer.arm,
        task=answer.task,
        prompt_idx=answer.prompt_idx,
        seed=answer.seed,
        tokens=len(job.token_ids),
        far=far,
        sums=sums,
    )


def _top(scorer: Scorer) -> int:
    return TOP_OF_PREFILL if isinstance(scorer, PrefillScorer) else TOP
