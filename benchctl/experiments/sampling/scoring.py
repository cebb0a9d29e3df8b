"""Scoring sampled answers on the target alone, and on the draft: the part that runs engines."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path

from benchctl.data.writer import write_scores
from benchctl.engines.scoring import PrefillScorer, Scorer, ScoringEngine
from benchctl.errors import BenchctlError
from benchctl.experiments.sampling.stored import CHECK, SCORES, OfAnswer, SampledAnswer, TokenScores, open_check
from benchctl.experiments.sampling.tokens import TERMS, Sampler, summed, terms, weights
from benchctl.lossless.score.reading import scores_of
from benchctl.measurement.cell import fresh_log, scoring
from benchctl.measurement.prepare import Prepared
from benchctl.models.files import ResolvedModel, ResolvedPair
from benchctl.recipes.adapters import registered

TOKENS = 4_000
"""Of each arm that are scored, about; the first answers to every prompt in turn."""
TOP, TOP_OF_PREFILL = 40, 20
"""Likeliest tokens that are read; vLLM reports at most 20 of a prompt's by default."""
BUDGET_S = 600.0
"""Scoring may take so long."""

Advance = Callable[[str, int, int], None]
"""Called with whose answer comes next, how many are scored, and of how many."""


def score_check(folder: Path, prepared: Prepared, advance: Advance = lambda arm, done, total: None) -> str | None:
    """Score what a check drew, as far as that is not done, and keep it beside the answers.

    Returns why nothing, or nothing more, could be scored, as the end of a sentence. Raises StorageError, and
    KeyboardInterrupt.
    """
    setup, data = prepared.of_baseline, open_check(folder)
    if not isinstance(setup.engine, ScoringEngine):
        return f"benchctl cannot read logits of the engine {setup.capabilities.kind}"
    scored_seeds = {(score.arm, score.seed) for score in data.scores}
    chosen = [answer for answer in _chosen(data.answers) if (answer.arm, answer.seed) not in scored_seeds]
    if not chosen:
        return None
    token_scores = list(data.scores)
    try:
        with closing(_scored(setup.engine, prepared, folder, chosen)) as scored:
            for done, score in enumerate(scored, start=1):
                token_scores.append(score)
                advance(score.arm, done, len(chosen))
    except BenchctlError as error:
        return error.what
    finally:
        text = "\n".join(score.model_dump_json() for score in token_scores)
        write_scores(folder / CHECK, SCORES, text)
    return None


def sampler_of(prepared: Prepared) -> Sampler:
    """Return how the engine turns probabilities into choices; of an endpoint, as the server behind it does."""
    capabilities = prepared.of_baseline.capabilities
    adapter = registered().adapters.get(str(capabilities.details.get("server") or capabilities.kind))
    sampling = prepared.recipe.sampling
    first = adapter is not None and adapter.truncates_first
    return Sampler(sampling.temperature, sampling.top_k, sampling.top_p, first)


def _chosen(answers: Sequence[SampledAnswer]) -> Iterator[SampledAnswer]:
    """Yield answers of every arm in the order in which they were drawn, the prompts in turn, up to `TOKENS`."""
    for arm in dict.fromkeys(answer.arm for answer in answers):
        tokens = 0
        for answer in answers:
            if answer.arm == arm and answer.token_ids and tokens < TOKENS:
                tokens += len(answer.token_ids)
                yield answer


def _scored(
    engine: ScoringEngine, prepared: Prepared, folder: Path, chosen: Sequence[SampledAnswer]
) -> Generator[TokenScores, None, None]:
    """Yield the scores of answers, those of arms with the same draft together, as long as their time lasts.

    Answers to a prompt with a constraint are left out: the target's probabilities are without it. Raises EngineError.
    """
    prompts = {(item.task, item.prompt_idx): item.prompt for item in prepared.prompts if item.constrained is None}
    free = [answer for answer in chosen if (answer.task, answer.prompt_idx) in prompts]
    by_draft: dict[ResolvedModel | None, list[SampledAnswer]] = {}
    for answer in free:
        by_draft.setdefault(prepared.setup_of(answer.arm).models.draft, []).append(answer)
    launch, sampler = prepared.launches[prepared.recipe.baseline], sampler_of(prepared)
    with scoring(engine, launch, fresh_log(folder, "scored-target")[1]) as target:
        for number, (model, answers) in enumerate(by_draft.items()):
            with _draft(engine, prepared, model, fresh_log(folder, f"scored-draft-{number}")[1]) as draft:
                until = time.monotonic() + BUDGET_S * len(answers) / len(free)
                for answer in answers:
                    if time.monotonic() > until:
                        break
                    prompt = target.render(prompts[answer.task, answer.prompt_idx]).token_ids
                    yield _scores_of(answer, prompt, target, draft, sampler)


def _draft(
    engine: ScoringEngine, prepared: Prepared, model: ResolvedModel | None, log: Path
) -> AbstractContextManager[Scorer | None]:
    """Have a draft running as a target of its own; `None` where there is none, or only its name is known."""
    if model is None or not model.files:
        return nullcontext()
    baseline = prepared.recipe.arm(prepared.recipe.baseline)
    return scoring(engine, prepared.of_baseline.engine.launch(baseline, ResolvedPair(model, None)), log)


def _scores_of(
    answer: SampledAnswer, prompt: Sequence[int], target: Scorer, draft: Scorer | None, sampler: Sampler
) -> TokenScores:
    """Score every token of an answer. Raises EngineError."""
    tokens = answer.token_ids or []
    expected = _logprobs(target, prompt, tokens)
    drafted = [None] * len(tokens) if draft is None else _logprobs(draft, prompt, tokens)
    far, added = 0, []
    for token, p, q in zip(tokens, expected, drafted, strict=True):
        weight_of, dropped = weights(p, sampler)
        if token in dropped or token not in p:
            far += 1
        elif token in weight_of:
            added.append(terms(token, p, q, sampler))
    sums = {
        name: total
        for name in TERMS
        if (total := summed(sums_of_token[name] for sums_of_token in added if name in sums_of_token))
    }
    return TokenScores(**answer.model_dump(include={*OfAnswer.model_fields}), tokens=len(tokens), far=far, sums=sums)


def _logprobs(scorer: Scorer, prompt: Sequence[int], tokens: Sequence[int]) -> list[dict[int, float]]:
    top = TOP_OF_PREFILL if isinstance(scorer, PrefillScorer) else TOP
    return [dict(scores.logprobs) for scores in scores_of(scorer, prompt, tokens, top)]
