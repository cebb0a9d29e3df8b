"""`self-draft-verify`: a set of parts that was found beforehand is skipped, and how far a draft goes adapts.

Draft & Verify (Zhang et al. 2024, https://arxiv.org/abs/2309.08168): a draft ends after a token below a threshold,
which is moved after every verification, so that the share of accepted tokens stays near `acceptance`:

    share = 0.5 share + 0.5 accepted / drafted;  threshold = 0.9 threshold + 0.1 (threshold ± step)

+ where the share is below `acceptance`; - where it is not, unless the draft had its full length. Where the paper does
not specify it, or where this differs:

- the numbers, and a share that begins at 0 with every request, are those of the study's code.
- the study finds the set by Bayesian optimization on training text, by the time that answers take. That is not part of
  it: the recipe lists the set. `self-swift` searches by the same optimization while it answers, and reports its set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchctl.engines.transformers.serving.decode import Draft, Round
from benchctl.engines.transformers.serving.decoder import Decoder
from benchctl.engines.transformers.serving.drafters.fixed import SelfSkip
from benchctl.engines.transformers.serving.drafters.self_drafter import Options

if TYPE_CHECKING:
    import torch

CONFIDENCE, ACCEPTANCE, STEP = 0.6, 0.9, 0.01
_KEPT_SHARE, _KEPT_THRESHOLD = 0.5, 0.9


class SelfDraftVerify(SelfSkip):
    """`confidence`: the first threshold; `acceptance`, `step`: see above; and the lists of `self-skip`."""

    def __init__(self, decoder: Decoder, options: Options) -> None:
        super().__init__(decoder, options)
        self._first = float(options.get("confidence", CONFIDENCE))
        self._acceptance = float(options.get("acceptance", ACCEPTANCE))
        self._step = float(options.get("step", STEP))
        self.start(decoder)

    def start(self, decoder: Decoder) -> None:
        """Begin a request: from the first threshold."""
        self.confidence, self._share = self._first, 0.0

    def verified(self, current: Round, draft: Draft, accepted: int, logits: torch.Tensor) -> None:
        """Move the threshold."""
        drafted = len(draft.tokens)
        if not drafted:
            return
        self._share = _KEPT_SHARE * self._share + (1 - _KEPT_SHARE) * accepted / drafted
        if self._share < self._acceptance:
            moved = self.confidence + self._step
        else:
            moved = self.confidence - (0 if drafted >= current.depth else self._step)
        self.confidence = _KEPT_THRESHOLD * self.confidence + (1 - _KEPT_THRESHOLD) * moved

    def describe(self) -> dict[str, object]:
        """Return what is left out, and where the threshold is now."""
        return {**super().describe(), "threshold": round(self.confidence, 4)}
