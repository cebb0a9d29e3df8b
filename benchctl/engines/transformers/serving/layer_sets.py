"""Which parts to leave out, by dynamic programming on hidden states.

State (i, b): the hidden states after the first i items with b units of budget spent on leaving some out. Each item is
either run or left out; of the ways that lead to the same state the one stays whose hidden states are most like the
whole model's there (cosine, mean over the tokens). All budgets go through an item in one pass. That is CLaSp's
recurrence (Chen et al. 2025, https://arxiv.org/abs/2505.24196) with KnapSpec's weights (Cha et al. 2026,
https://arxiv.org/abs/2602.20217). It keeps one way a state and so is no proof of the best set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchctl.engines.transformers.serving.lanes import Item, Lanes
from benchctl.engines.transformers.serving.silence import Silenced


@dataclass(frozen=True)
class Choice:
    """Items that are run or left out together; `weight` 0: always run."""

    items: tuple[Item, ...]
    weight: int


@dataclass(frozen=True)
class LayerSets:
    """For every budget that was reached the best set; the first one leaves out nothing."""

    spent: tuple[int, ...]
    left_out: tuple[Silenced, ...]
    cosine: tuple[float, ...]
    """How like the whole model's the hidden states at the end are."""
    hidden: torch.Tensor
    """`[sets, tokens, hidden]`, as the last layer hands them on."""


def search(lanes: Lanes, choices: Sequence[Choice], *, limit: int, least: float) -> LayerSets:
    """Return the best set for every budget up to `limit`; ways less like the whole model than `least` are dropped."""
    hidden = entered = lanes.first
    spent, sets, cosines = [0], [Silenced()], [1.0]
    layer = -1
    for choice in choices:
        ran, before = hidden, hidden
        entering = entered
        for item in choice.items:
            if item[0] != layer:
                layer, entering = item[0], ran
            ran = lanes.apply(item, ran, entering)
        whole = ran[:1]
        run_like = _cosine(ran, whole)
        left_like = _cosine(before, whole) if choice.weight else []
        best: dict[int, tuple[float, int, bool]] = {0: (1.0, 0, False)}
        for lane, budget in enumerate(spent):
            ways = [(budget, run_like[lane], False)]
            if choice.weight and budget + choice.weight <= limit:
                ways.append((budget + choice.weight, left_like[lane], True))
            for reached, like, left in ways:
                if reached and like >= least and like > best.get(reached, (-2.0, 0, False))[0]:
                    best[reached] = (like, lane, left)
        spent = sorted(best)
        kept = [best[budget] for budget in spent]
        rows = torch.tensor([lane for _, lane, _ in kept], device=hidden.device)
        left_rows = torch.tensor([left for _, _, left in kept], device=hidden.device)[:, None, None]
        hidden = torch.where(left_rows, before[rows], ran[rows])
        entered = entering[rows]
        sets = [sets[lane] | frozenset(choice.items) if left else sets[lane] for _, lane, left in kept]
        cosines = [like for like, _, _ in kept]
    return LayerSets(tuple(spent), tuple(sets), tuple(cosines), hidden)


def _cosine(hidden: torch.Tensor, whole: torch.Tensor) -> list[float]:
    likes: list[float] = torch.nn.functional.cosine_similarity(hidden.float(), whole.float(), dim=-1).mean(-1).tolist()
    return likes
