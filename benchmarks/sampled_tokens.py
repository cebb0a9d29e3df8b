"""How often token-level tests detect wrong samplers, and how often a right one, on a pair's own distributions.

    python -m benchmarks.sampled_tokens                                                     # the bundled pair
    python -m benchmarks.sampled_tokens --target T.gguf --draft D.gguf --suite short.json   # another one

Answers are sampled token by token from what the real target and the real draft expect at each place (llama-server, the
`MOST_LIKELY` likeliest tokens), by rules that are right or wrong in a known way, and judged as `verify-lossless` would.
Runs of so many tokens are drawn from the answers with replacement; every test counts at 0.01 over the tests of one arm.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchctl.analysis.sampling.tokens import TERMS, Sampler, terms, token_tests, weights
from benchctl.data.sampling import TermSum, TokenScores
from benchctl.engines.base import Scorer
from benchctl.engines.llama_cpp.engine import LlamaCppEngine
from benchctl.measure.prepare import prepare
from benchctl.models.resolved import ResolvedPair
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
Rule = Callable[[Mapping[int, float], Shares, Shares, np.random.Generator], int]


def main() -> None:
    """Sample with every rule, judge, and keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="bundled:tiny-hybrid")
    parser.add_argument("--draft", default="bundled:tiny-hybrid-draft")
    parser.add_argument("--suite", default="tiny.json", help="prompts; the first of each of three tasks")
    parser.add_argument("--threads", type=int, default=1, help="of the engine")
    parser.add_argument("--answers", type=int, default=60, help="of each rule")
    parser.add_argument("--draws", type=int, default=200, help="runs of each size that are drawn from them")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        answers = _sampled(Path(scratch), options)
    rng = np.random.default_rng(1)
    found = {
        rule: {str(size): _found(own, answers["right"], size, options.draws, rng) for size in SIZES}
        for rule, own in answers.items()
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
    keep(name, {**settings, "draws": options.draws, "found_share_by_tokens": found})


def _sampled(folder: Path, options: argparse.Namespace) -> dict[str, list[TokenScores]]:
    recipe = bundled_recipe(
        [plain("baseline"), drafting("spec")],
        engine=engine_spec(threads=options.threads),
        models=ModelPair(target=ModelSpec(source=options.target), draft=ModelSpec(source=options.draft)),
        prompts=PromptsSpec(suite=options.suite, tasks=TASKS, limit=1),
        sampling=Sampling(),
    )
    prepared = prepare(recipe, recipe_folder=folder)
    engine = prepared.engine
    assert isinstance(engine, LlamaCppEngine)
    arm = prepared.recipe.arm("baseline")
    assert prepared.models.draft is not None
    pairs = (prepared.models, ResolvedPair(prepared.models.draft, None))
    scorers = [engine.start_scorer(engine.launch(arm, pair), folder / f"{n}.log") for n, pair in enumerate(pairs)]
    try:
        prompts = [tuple(scorers[0].render(item.prompt).token_ids) for item in prepared.prompts]
        return {
            name: [_answer(scorers, prompts[n % len(prompts)], rule, n, name) for n in range(options.answers)]
            for name, rule in RULES.items()
        }
    finally:
        for scorer in scorers:
            scorer.stop()


def _answer(scorers: list[Any], prompt: tuple[int, ...], rule: Rule, number: int, name: str) -> TokenScores:
    rng = np.random.default_rng([number, len(name)])
    answer: list[int] = []
    sums: dict[str, TermSum] = {}
    for _ in range(LENGTH):
        p, q = (_expected(scorer, prompt, answer) for scorer in scorers)
        token = rule(p, weights(p, SAMPLER)[0], weights(q, SAMPLER)[0], rng)
        for kind, one in terms(token, p, q, SAMPLER).items():
            sums[kind] = sums[kind].plus(one) if kind in sums else one
        answer.append(token)
    return TokenScores(arm=name, task="code", prompt_idx=0, seed=number, tokens=LENGTH, far=0, sums=sums)


def _expected(scorer: Scorer, prompt: tuple[int, ...], answer: list[int]) -> Mapping[int, float]:
    reading = scorer.read_on([*prompt, *answer], MOST_LIKELY) if answer else scorer.read_prompt(prompt, MOST_LIKELY)
    return reading.logprobs


def _found(
    own: list[TokenScores], right: list[TokenScores], tokens: int, draws: int, rng: np.random.Generator
) -> dict[str, float]:
    """Return in which share of runs any test found something, and each of them."""
    size, tests = tokens // LENGTH, len(TERMS) + 1
    runs = [token_tests([own[i] for i in rng.integers(len(own), size=size)], [right[0]]) for _ in range(draws)]
    every = {name: sum(one[name] <= LEVEL / tests for one in runs) / draws for name in runs[0]}
    return {"any": sum(min(one.values()) <= LEVEL / tests for one in runs) / draws, **every}


def _of(shares: Shares, rng: np.random.Generator) -> int:
    ids, values = list(shares), np.array(list(shares.values()))
    return int(ids[rng.choice(len(ids), p=values / values.sum())])


def _right(p: Mapping[int, float], w: Shares, q: Shares, rng: np.random.Generator) -> int:
    del p, q
    return _of(w, rng)


def _at(heat: float) -> Rule:
    def rule(p: Mapping[int, float], w: Shares, q: Shares, rng: np.random.Generator) -> int:
        del w, q
        return _of(weights(p, Sampler(heat, 0, 1.0, truncates_first=True))[0], rng)

    return rule


def _nucleus(p: Mapping[int, float], w: Shares, q: Shares, rng: np.random.Generator) -> int:
    del p, q
    kept, before = {}, 0.0
    for token, share in w.items():
        if before < 0.9:
            kept[token] = share
        before += share
    return _of(kept, rng)


def _rejection(*, often: float = 1.0, from_target: bool = False) -> Rule:
    def rule(p: Mapping[int, float], w: Shares, q: Shares, rng: np.random.Generator) -> int:
        del p
        token = _of(q, rng)
        if rng.random() * q[token] < often * w.get(token, 0.0):
            return token
        rest = {one: share - (0.0 if from_target else q.get(one, 0.0)) for one, share in w.items()}
        return _of({one: max(0.0, share) for one, share in rest.items()}, rng)

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
