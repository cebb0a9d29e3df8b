"""`self-draft-verify`: a set of attention and MLP parts is skipped, found once beforehand; how far a draft goes adapts.

Draft & Verify (Zhang et al. 2024, https://arxiv.org/abs/2309.08168): the set is found by Bayesian optimization on
calibration text, and then fixed. A draft ends after a token below a threshold, which is moved after every verification,
so that the share of accepted tokens stays near `acceptance`:

    share = 0.5 share + 0.5 accepted / drafted;  threshold = 0.9 threshold + 0.1 (threshold ± step)

+ where the share is below `acceptance`; - where it is not, unless the draft had its full length. Where the paper does
not specify it, or where this differs:

- the numbers, and a share that begins at 0 with every request, are those of the study's code.
- the search is made when the model is loaded, before any prompt is known, unless the recipe lists the set. Its text is
  `length` tokens that the target itself draws at temperature 1; the study's is training text.
- a set is as good as the most tokens per time, E(a, k) / (k c + 1), of a draft of 1 to 8 tokens: a the share of the
  text at which the set's token is the whole model's, c the share of the model's weights that it reads. The study
  measures the time of answers, which is another at every measurement, and so would the set be.
- the optimization is that of `self-swift`, over sets of any size: 10 at random, then the best bound of 256.
- in a hybrid, recurrent parts are skipped as well. The first and the last layer always run.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from benchctl.engines.transformers.serving.decode import Draft, Round, Sampler
from benchctl.engines.transformers.serving.decoder import Decoder, Parts, State, without
from benchctl.engines.transformers.serving.drafters.knapspec import expected_tokens
from benchctl.engines.transformers.serving.drafters.self_drafter import LISTS, Options, SelfDrafter, SelfSkip
from benchctl.engines.transformers.serving.drafters.swift import upper_bound
from benchctl.engines.transformers.serving.variants import Item, inner_items

_KEPT_SHARE, _KEPT_THRESHOLD = 0.5, 0.9
_RANDOM, _PROPOSALS, _DEPTHS = 10, 256, range(1, 9)
_SEARCH = {"tries": 100, "length": 64, "seed": 1}


class SelfDraftVerify(SelfDrafter):
    """`confidence`: the first threshold; `acceptance`, `step`, `tries`, `length`, `seed`: see above; and the lists of
    `self-skip`."""

    defaults: ClassVar[Options] = {**_SEARCH, "confidence": 0.6, "acceptance": 0.9, "step": 0.01}

    def __init__(self, decoder: Decoder, options: Options) -> None:
        super().__init__(decoder, options)
        if any(options.get(name) for name in LISTS):
            self.left_out = SelfSkip(decoder, options).left_out
        else:
            self.left_out = find_parts(decoder, **{name: self.options[name] for name in _SEARCH})
        self.start(decoder)

    def start(self, decoder: Decoder) -> None:
        """Begin a request: from the first threshold."""
        self.confidence, self._share = float(self.options["confidence"]), 0.0

    def verified(self, current: Round, draft: Draft, accepted: int, logits: torch.Tensor) -> None:
        """Move the threshold."""
        drafted = len(draft.tokens)
        if not drafted:
            return
        self._share = _KEPT_SHARE * self._share + (1 - _KEPT_SHARE) * accepted / drafted
        step = self.options["step"]
        if self._share < self.options["acceptance"]:
            moved = self.confidence + step
        else:
            moved = self.confidence - (0 if drafted >= current.depth else step)
        self.confidence = _KEPT_THRESHOLD * self.confidence + (1 - _KEPT_THRESHOLD) * moved

    def describe(self) -> dict[str, object]:
        """Return what is left out, and the threshold now."""
        return {**super().describe(), "threshold": round(self.confidence, 4)}


def find_parts(decoder: Decoder, tries: int, length: int, seed: int) -> Parts:
    """Return the best of so many sets. Raises UnsuitableError where nothing can be left out."""
    items = inner_items(decoder)
    modules = [torch.nn.ModuleList(decoder.layers[number].modules(part)) for number, part in items]
    weights = [sum(tensor.numel() for tensor in module.parameters()) for module in modules]
    shares = torch.tensor(weights, dtype=torch.float64) / decoder.model.num_parameters()
    generator = torch.Generator().manual_seed(seed)
    tried, scores = torch.zeros(0, len(items), dtype=torch.float64), list[float]()
    with torch.inference_mode():
        text = _own_text(decoder, length, seed)
        target_tokens = _likeliest(decoder, text, frozenset())
        for number in range(tries):
            proposals = torch.rand(_PROPOSALS, len(items), generator=generator)
            candidates = (proposals < torch.rand(_PROPOSALS, 1, generator=generator)).double()
            candidates[candidates.sum(1) == 0, 0] = 1.0  # an empty set would be no draft
            best = 0
            if number >= _RANDOM:
                tried_scores = torch.tensor(scores, dtype=torch.float64)
                best = int(upper_bound(tried, tried_scores, candidates, scale=len(items) / 4).argmax())
            tried = torch.cat([tried, candidates[best : best + 1]])
            right = _likeliest(decoder, text, _parts(items, tried[-1])) == target_tokens
            acceptance, cost = float(right.double().mean()), 1 - float(shares @ tried[-1])
            scores.append(max(expected_tokens(acceptance, depth) / (depth * cost + 1) for depth in _DEPTHS))
    return _parts(items, tried[max(range(tries), key=scores.__getitem__)])


def _parts(items: tuple[Item, ...], chosen: torch.Tensor) -> Parts:
    return frozenset(item for item, left_out in zip(items, chosen.tolist(), strict=True) if left_out)


def _own_text(decoder: Decoder, length: int, seed: int) -> list[int]:
    chooser, state = Sampler(1.0, seed=seed).chooser(), State(decoder)
    text = [seed % decoder.vocabulary]
    while len(text) < length:
        text.append(chooser.first(state.advance(text[-1:])))
    return text


def _likeliest(decoder: Decoder, text: list[int], left_out: Parts) -> torch.Tensor:
    """Return the likeliest token after each of the text without some parts, `[tokens]`."""
    with without(decoder, left_out):
        return State(decoder).advance(text, keep=len(text)).argmax(-1)
