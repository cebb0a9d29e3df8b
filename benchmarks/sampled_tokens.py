"""How often token-level tests detect wrong samplers, and how often a right one, on a pair's own distributions.

    python -m benchmarks.sampled_tokens                                                     # the bundled pair
    python -m benchmarks.sampled_tokens --target T.gguf --draft D.gguf --suite short.json   # another one

Answers are sampled token by token from what the real target expects at each place (llama-server, the `MOST_LIKELY`
likeliest tokens), and what target and draft expect there is kept. A run of so many tokens draws places of these answers
with replacement, and at each a new token, by a rule that is right or wrong in a known way: no token is counted twice.
Runs are judged as `verify-lossless` would; every test counts at 0.01 over the tests of one arm.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchctl.engines.llama_cpp.engine import LlamaCppEngine
from benchctl.engines.scoring import Scorer
from benchctl.experiments.sampling.stored import TermSum, TokenScores
from benchctl.experiments.sampling.tokens import TERMS, Sampler, terms, token_tests, weights
from benchctl.measurement.prepare import prepare
from benchctl.models.files import ResolvedPair
from benchctl.recipes.schema import ModelPair, ModelSpec, PromptsSpec, Sampling
from benchmarks.bundled_runs import TASKS, bundled_recipe, drafting, engine_spec, plain
from benchmarks.keep import keep

MOST_LIKELY = 40
HEAT = 0.8
LENGTH = 40
SIZES = (200, 500, 1_000, 2_000)
LEVEL = 0.01
SAMPLER = Sampler(HEAT, 0, 1.0, truncates_first=True)
Shares = Mapping[int, float]
Rule = Callable[["Place", np.random.Generator], int]


def main() -> None:
    """Sample with every rule, judge, and keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="bundled:tiny-hybrid")
    parser.add_argument("--draft", default="bundled:tiny-hybrid-draft")
    parser.add_argument("--suite", default="tiny.json", help="prompts; the first of each of three tasks")
    parser.add_argument("--threads", type=int, default=1, help="of the engine")
    parser.add_argument(
        "--answers", type=int, default=60, help="that are sampled of the target, in turn of each prompt"
    )
    parser.add_argument("--draws", type=int, default=200, help="runs of each size that are drawn from them")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        places = _sampled(Path(scratch), options)
    results = {
        name: {str(size): _found(places, rule, size, options.draws, np.random.default_rng(size)) for size in SIZES}
        for name, rule in RULES.items()
    }
    settings = {
        "target": Path(options.target).name,
        "temperature": HEAT,
        "told": MOST_LIKELY,
        "answers": options.answers,
        "tokens_an_answer": LENGTH,
        "level": LEVEL,
    }
    name = "sampled_tokens" if options.target.startswith("bundled:") else "sampled_tokens_real_pair"
    keep(name, {**settings, "draws": options.draws, "found_share_by_tokens": results})


@dataclass(frozen=True)
class Place:
    """Of an answer: what the target expects there (nats by token), and the sampler's weights of target and draft."""

    target: Mapping[int, float]
    weights: Shares
    draft: Shares
    scores: Mapping[int, TokenScores]
    """Of each token that might stand there."""


def _sampled(folder: Path, options: argparse.Namespace) -> list[Place]:
    recipe = bundled_recipe(
        [plain("baseline"), drafting("spec")],
        engine=engine_spec(threads=options.threads),
        models=ModelPair(target=ModelSpec(source=options.target), draft=ModelSpec(source=options.draft)),
        prompts=PromptsSpec(suite=options.suite, tasks=TASKS, limit=1),
        sampling=Sampling(),
    )
    prepared = prepare(recipe, recipe_folder=folder)
    engine, models = prepared.of_baseline.engine, prepared.of_baseline.models
    assert isinstance(engine, LlamaCppEngine)
    arm = prepared.recipe.arm("baseline")
    assert models.draft is not None
    pairs = (models, ResolvedPair(models.draft, None))
    scorers = [engine.start_scorer(engine.launch(arm, pair), folder / f"{n}.log") for n, pair in enumerate(pairs)]
    try:
        prompts = [tuple(scorers[0].render(item.prompt).token_ids) for item in prepared.prompts]
        answers = (_answer(scorers, prompts[n % len(prompts)], n) for n in range(options.answers))
        return [position for answer in answers for position in answer]
    finally:
        for scorer in scorers:
            scorer.stop()


def _answer(scorers: list[Any], prompt: tuple[int, ...], number: int) -> Iterator[Place]:
    """Yield the places of an answer that is sampled as the target would."""
    rng = np.random.default_rng(number)
    answer: list[int] = []
    for _ in range(LENGTH):
        p, q = (_expected(scorer, prompt, answer) for scorer in scorers)
        scores = {token: _scores(terms(token, p, q, SAMPLER)) for token in p}
        position = Place(p, weights(p, SAMPLER)[0], weights(q, SAMPLER)[0], scores)
        answer.append(_right(position, rng))
        yield position


def _expected(scorer: Scorer, prompt: tuple[int, ...], answer: list[int]) -> Mapping[int, float]:
    reading = scorer.read_on([*prompt, *answer], MOST_LIKELY) if answer else scorer.read_prompt(prompt, MOST_LIKELY)
    return reading.logprobs


def _found(places: list[Place], rule: Rule, tokens: int, draws: int, rng: np.random.Generator) -> dict[str, float]:
    """Return in which share of runs any test found something, and each of them."""
    tests = len(TERMS) + 1
    drawn = (_run(places, rule, tokens, rng) for _ in range(draws))
    # No token is far, as none of a baseline's would be.
    runs = [token_tests(sampled, sampled) for sampled in drawn]
    by_test = {name: sum(p_values[name] <= LEVEL / tests for p_values in runs) / draws for name in runs[0]}
    return {"any": sum(min(p_values.values()) <= LEVEL / tests for p_values in runs) / draws, **by_test}


def _run(places: list[Place], rule: Rule, tokens: int, rng: np.random.Generator) -> list[TokenScores]:
    drawn = (places[number] for number in rng.integers(len(places), size=tokens).tolist())
    return [position.scores[rule(position, rng)] for position in drawn]


def _scores(sums: dict[str, TermSum]) -> TokenScores:
    return TokenScores(arm="arm", task="code", prompt_idx=0, seed=0, tokens=1, far=0, sums=sums)


def _of(shares: Shares, rng: np.random.Generator) -> int:
    ids = list(shares)
    heights = np.cumsum(list(shares.values()))
    return ids[min(int(np.searchsorted(heights, rng.random() * heights[-1], side="right")), len(ids) - 1)]


def _right(position: Place, rng: np.random.Generator) -> int:
    return _of(position.weights, rng)


def _at(heat: float) -> Rule:
    sampler = Sampler(heat, 0, 1.0, truncates_first=True)
    return lambda place, rng: _of(weights(place.target, sampler)[0], rng)


def _nucleus(position: Place, rng: np.random.Generator) -> int:
    nucleus, before = {}, 0.0
    for token, share in position.weights.items():
        if before < 0.9:
            nucleus[token] = share
        before += share
    return _of(nucleus, rng)


def _rejection(*, often: float = 1.0, from_target: bool = False) -> Rule:
    def rule(position: Place, rng: np.random.Generator) -> int:
        w, q = position.weights, position.draft
        token = _of(q, rng)
        if rng.random() * q[token] < often * w.get(token, 0.0):
            return token
        residual = {one: share - (0.0 if from_target else q.get(one, 0.0)) for one, share in w.items()}
        return _of({one: max(0.0, share) for one, share in residual.items()}, rng)

    return rule


RULES: dict[str, Rule] = {
    "right": _right,
    "right, by rejection": _rejection(),
    "temperature 0.9 for 0.8": _at(0.9),
    "temperature 0.7 for 0.8": _at(0.7),
    "top-p 0.9": _nucleus,
    "rejected tokens from p": _rejection(from_target=True),
    "accepted with 1.25 p/q": _rejection(often=1.25),
}


if __name__ == "__main__":
    main()
