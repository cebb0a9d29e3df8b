"""`self-swift`: which attention and MLP parts are skipped is searched while answering, by trial.

SWIFT (Xia et al. 2025, https://arxiv.org/abs/2410.06916): a fixed share of the parts is skipped. Every `interval`
rounds another set of that size is tried on the last `window` tokens in a single pass, and taken where it predicts more
of them. Most sets are random; every `bayes` tries a set is proposed by Bayesian optimization. The search ends at a
score of `enough`, after `tries`, or after `patience` tries in a row without a better set. Where the paper does not
specify it, or where this differs:

- it began with every second layer; so it does here, with as many parts as `skip` says.
- the optimization is a Gaussian process over sets (kernel exp(-distance² / number of parts skipped), noise 0.01), whose
  upper confidence bound (2.5 standard deviations) is compared over 256 random sets; the study's is a library's over
  continuous numbers that are rounded to sets.
- the score of the set in use is measured again at each try: it is compared on the same tokens as its rival.
- a single draft token a step, where the study makes a tree of candidates; a draft ends after a token below
  `confidence`.
- what was found stays for the next requests, as in the study: answers before it depend on nothing but the target, but
  how fast they come depends on the prompts before.
- in a hybrid, recurrent parts are skipped as well. The first and the last layer always run.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from benchctl.engines.transformers.serving.decode import Draft, Round
from benchctl.engines.transformers.serving.decoder import Decoder, Parts, Snapshot, without
from benchctl.engines.transformers.serving.drafters.self_drafter import Options, SelfDrafter, Window
from benchctl.engines.transformers.serving.variants import inner_items

_NOISE, _DEVIATIONS, _PROPOSALS = 1e-2, 2.5, 256
_SEARCH = {"interval": 1, "window": 32, "bayes": 25, "enough": 0.95, "tries": 1000, "patience": 300, "seed": 1}


class SelfSwift(SelfDrafter):
    """`skip`, `interval`, `window`, `bayes`, `enough`, `tries`, `patience`, `confidence`, `seed`: see above."""

    defaults: ClassVar[Options] = {**_SEARCH, "skip": 0.45, "confidence": 0.8}

    def __init__(self, decoder: Decoder, options: Options) -> None:
        super().__init__(decoder, options)
        self._items = inner_items(decoder)
        self._count = min(max(1, round(self.options["skip"] * len(self._items))), max(1, len(self._items) - 1))
        self._generator = torch.Generator().manual_seed(self.options["seed"])
        # Start with the parts of every second layer, then take others until the count is reached.
        order = sorted(range(len(self._items)), key=lambda index: (self._items[index][0] % 2 == 0, index))
        self.left_out = self._parts(order[: self._count])
        self._tried: list[list[float]] = []
        self._scores: list[float] = []
        self._since_better = self._rounds = self._adopted = 0
        self._best: float | None = None
        self.start(decoder)

    def start(self, decoder: Decoder) -> None:
        """Begin a request; the results of earlier tries are kept."""
        self._window = Window(self.options["window"])

    @property
    def searching(self) -> bool:
        """Whether the search goes on."""
        reached = self._best is not None and self._best >= self.options["enough"]
        tried, waited = len(self._scores) >= self.options["tries"], self._since_better >= self.options["patience"]
        return not (reached or tried or waited)

    def draft(self, current: Round) -> Draft:
        """Try another set, where that is due, and draft."""
        if self.searching:
            window = self._window.tokens(current)
            if self._rounds % self.options["interval"] == 0 and window is not None:
                self._try(current, *window)
                current.clock.passed("search")
            self._rounds += 1
        return super().draft(current)

    def _try(self, current: Round, anchor: Snapshot, tokens: list[int]) -> None:
        period = self.options["bayes"]
        indices = self._propose() if period and len(self._scores) % period == period - 1 else self._random()
        rival = self._parts(indices)
        with current.state.rewound(anchor):
            now = self._score(current, anchor, tokens, self.left_out)
            score = self._score(current, anchor, tokens, rival)
        self._tried.append([float(index in indices) for index in range(len(self._items))])
        self._scores.append(score)
        self._since_better = 0 if score > now else self._since_better + 1
        if score > now:
            self.left_out = rival
            self._adopted += 1
        self._best = max(score, now)

    def _score(self, current: Round, anchor: Snapshot, tokens: list[int], left_out: Parts) -> float:
        """Return the share of the tokens that the set predicts, read in a single pass."""
        current.state.restore(anchor)
        with without(self.decoder, left_out):
            predicted: list[int] = current.state.advance(tokens[:-1], keep=len(tokens) - 1).argmax(-1).tolist()
        return sum(guess == token for guess, token in zip(predicted, tokens[1:], strict=True)) / len(predicted)

    def _random(self) -> list[int]:
        indices: list[int] = torch.randperm(len(self._items), generator=self._generator)[: self._count].tolist()
        return indices

    def _propose(self) -> list[int]:
        """Return the set with the highest upper confidence bound of many."""
        proposals = [self._random() for _ in range(_PROPOSALS)]
        tried = torch.tensor(self._tried, dtype=torch.float64)
        scores = torch.tensor(self._scores, dtype=torch.float64)
        candidates = torch.zeros(_PROPOSALS, len(self._items), dtype=torch.float64)
        for row, indices in enumerate(proposals):
            candidates[row, indices] = 1.0
        bound = upper_bound(tried, scores, candidates, scale=self._count)
        return proposals[int(bound.argmax())]

    def _parts(self, indices: list[int]) -> Parts:
        return frozenset(self._items[index] for index in indices)

    def describe(self) -> dict[str, object]:
        """Return what is left out now, and how the search stands."""
        return {
            **super().describe(),
            "searches": len(self._scores),
            "adopted": self._adopted,
            "score": self._best,
            "searching": self.searching,
        }


def upper_bound(tried: torch.Tensor, scores: torch.Tensor, candidates: torch.Tensor, *, scale: float) -> torch.Tensor:
    """Return mean + 2.5 standard deviations of a Gaussian process at `candidates`.

    `tried`: sets, `[tries, parts]` of 0 and 1; `scores`: `[tries]`; `candidates`: `[sets, parts]`.
    """
    mean = scores.mean()
    kernel = (-torch.cdist(tried, tried).square() / scale).exp()
    factor = torch.linalg.cholesky(kernel + _NOISE * torch.eye(len(tried), dtype=tried.dtype))
    across = (-torch.cdist(candidates, tried).square() / scale).exp()
    weights = torch.cholesky_solve((scores - mean)[:, None], factor)[:, 0]
    solved = torch.linalg.solve_triangular(factor, across.T, upper=False)
    spread = (scores.var(correction=0) + 1e-6) ** 0.5
    deviation = spread * (1 - solved.square().sum(0)).clamp_(min=0).sqrt()
    return mean + across @ weights + _DEVIATIONS * deviation
