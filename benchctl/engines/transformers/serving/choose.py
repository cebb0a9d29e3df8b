"""Choosing tokens: greedily, or by sampling whose drafts are accepted so that the target's distribution is kept.

Rejection sampling after Leviathan et al. 2023 (https://arxiv.org/abs/2211.17192) and Chen et al. 2023
(https://arxiv.org/abs/2302.01318): a draft token x that was drawn from the draft's distribution q is accepted with
probability min(1, p(x) / q(x)); at the first rejection the token is drawn from norm(max(0, p - q)).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Sampler:
    """How a request chooses; temperature 0 is greedy. `top_k` 0 and `top_p` 1 leave the distribution whole."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1

    def chooser(self, never: Collection[int] = ()) -> Chooser:
        """Return what chooses for a request, from its seed on; tokens of `never` are not chosen."""
        return Chooser(self, never)


class Chooser:
    """Chooses the tokens of a request."""

    def __init__(self, sampler: Sampler, never: Collection[int] = ()) -> None:
        self.sampler = sampler
        self.greedy = sampler.temperature == 0
        self.never = frozenset(never)
        self._never = torch.tensor(sorted(never))
        # On the CPU whatever the device: the same seed then draws the same numbers everywhere.
        self._generator = torch.Generator().manual_seed(sampler.seed)

    def first(self, logits: torch.Tensor) -> int:
        """Choose after the last of `logits`."""
        if self.greedy:
            return self._likeliest(logits[-1:])[-1]
        return self._draw(self.probabilities(logits[-1]))

    def draft(self, logits: torch.Tensor) -> tuple[int, torch.Tensor | None]:
        """Choose a draft token after the last of `logits`; also the distribution it was drawn from, unless greedy."""
        if self.greedy:
            return self._likeliest(logits[-1:])[-1], None
        q = self.probabilities(logits[-1])
        return self._draw(q), q

    def verify(
        self, tokens: Sequence[int], distributions: Sequence[torch.Tensor | None], logits: torch.Tensor
    ) -> tuple[int, int]:
        """Return how many draft tokens are accepted, and the token that follows them.

        `logits` are the target's after the token before the draft and after each of the draft's, `[draft + 1,
        vocabulary]`. A distribution of `None` is that of a token that was certain: q is 1 there.
        """
        if self.greedy:
            likeliest = self._likeliest(logits)
            accepted = 0
            while accepted < len(tokens) and tokens[accepted] == likeliest[accepted]:
                accepted += 1
            return accepted, likeliest[accepted]
        for place, token in enumerate(tokens):
            p = self.probabilities(logits[place])
            q = distributions[place]
            if q is None:
                q = torch.zeros_like(p)
                q[token] = 1.0
            if self._uniform() * float(q[token]) < float(p[token]):
                continue
            residual = (p - q).clamp_(min=0)
            # Nothing is left only where p equals q up to rounding, and there p is what remains to draw from.
            return place, self._draw(residual if float(residual.sum()) > 0 else p)
        return len(tokens), self._draw(self.probabilities(logits[len(tokens)]))

    def probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the distribution that is sampled from: temperature, then top-k, then top-p; float64, on the CPU."""
        scaled = logits.detach().to("cpu", torch.float64) / self.sampler.temperature
        if len(self._never):
            scaled[self._never] = -torch.inf
        if 0 < self.sampler.top_k < scaled.shape[-1]:
            least = scaled.topk(self.sampler.top_k).values[-1]
            scaled = scaled.masked_fill(scaled < least, -torch.inf)
        probabilities = scaled.softmax(-1)
        if self.sampler.top_p < 1:
            ordered, places = probabilities.sort(descending=True)
            beyond = ordered.cumsum(-1) - ordered >= self.sampler.top_p
            probabilities[places[beyond]] = 0.0
            probabilities /= probabilities.sum()
        return probabilities

    def _likeliest(self, logits: torch.Tensor) -> list[int]:
        if len(self._never):
            logits = logits.index_fill(-1, self._never.to(logits.device), -torch.inf)
        likeliest: list[int] = logits.argmax(-1).tolist()
        return likeliest

    def _draw(self, weights: torch.Tensor) -> int:
        return int(torch.multinomial(weights, 1, generator=self._generator))

    def _uniform(self) -> float:
        return float(torch.rand((), dtype=torch.float64, generator=self._generator))
