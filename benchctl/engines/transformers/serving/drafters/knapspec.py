"""`self-knapspec`: attention and MLP are items of a knapsack, their measured latencies the weights.

KnapSpec (Cha et al. 2026, https://arxiv.org/abs/2602.20217). Every `interval` rounds one dynamic programme
(`layer_sets`) finds for all budgets of saved time at once the set that keeps the hidden states of the last `window`
tokens most like the whole model's; ways below `cosine` are pruned. Of the sets that are left, and of the draft lengths
1 to `max`, the pair is taken with the most tokens per time,

    E(a, k) / (k c(S) + v(k + 1)),    E(a, k) = (1 - a^(k + 1)) / (1 - a)

with a the share of the window's tokens at which the set's token is the whole model's. A draft ends early after a
token below `confidence`. Where the paper does not specify it, or where this differs:

- c and v are seconds measured when the model is loaded (`latencies`). v is the pass over k + 1 tokens; the paper takes
  that of one, which on a CPU is several times too cheap. c holds the output layer, too.
- weights are whole numbers of the cheapest item's time, at least 1, and so coarse that there are at most `budgets`; the
  tokens per time are those of the exact latencies. Budgets end at half of the time that all items take.
- a is (hits + 1/2) / (window + 1): eight hits of eight do not prove that it never fails.
- a hybrid's recurrent branch or layer is a third kind of item. The first and the last layer always run.
- until `window` tokens are decoded there is nothing to search in: plain steps, where the paper drafts with all layers.
- `may_pause`: where no draft promises more than plain decoding, none is made until the next search.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from benchctl.engines.transformers.serving.decode import Draft, Round
from benchctl.engines.transformers.serving.decoder import Decoder
from benchctl.engines.transformers.serving.drafters.silencing import Options, SilencingDrafter, UnsuitableError, Window
from benchctl.engines.transformers.serving.lanes import Item, Lanes, inner_items, items_of
from benchctl.engines.transformers.serving.latencies import Latencies, measure_latencies
from benchctl.engines.transformers.serving.layer_sets import Choice, search
from benchctl.engines.transformers.serving.silence import Silenced

INTERVAL, WINDOW, BUDGETS, COSINE, CONFIDENCE = 64, 8, 16, 0.5, 0.7
_WIDEST = 8
"""Draft tokens in the widest pass that is measured; wider ones are extrapolated."""


def expected_tokens(acceptance: float, depth: int) -> float:
    """Return E(a, k): tokens that a round brings, the target's own included (Leviathan et al. 2023)."""
    return float(depth + 1) if acceptance >= 1 else (1 - acceptance ** (depth + 1)) / (1 - acceptance)


def best_pair(acceptances: Sequence[float], steps: Sequence[float], passes: Sequence[float]) -> tuple[int, int, float]:
    """Return the set, the draft length and their tokens per second.

    `acceptances`, `steps`: of each set, its acceptance a token and the seconds of its draft step; `passes`: seconds of
    a pass over 2, 3, … tokens.
    """
    rated = (
        (expected_tokens(a, depth) / (depth * step + passed), -depth, number)
        for number, (a, step) in enumerate(zip(acceptances, steps, strict=True))
        for depth, passed in enumerate(passes, 1)
    )
    rate, depth, number = max(rated)
    return number, -depth, rate


def weights_of(costs: Sequence[float], budgets: int) -> tuple[list[int], int]:
    """Return each item's weight, at least 1, and the budget, at most `budgets`: half of what all items cost."""
    unit = max(min(costs), sum(costs) / 2 / budgets)
    weights = [max(1, round(cost / unit)) for cost in costs]
    return weights, min(budgets, max(1, sum(weights) // 2))


class SelfKnapspec(SilencingDrafter):
    """`interval`, `window`, `budgets`, `cosine`, `confidence`, `may_pause`: see above."""

    def __init__(self, decoder: Decoder, options: Options) -> None:
        super().__init__(decoder)
        self._items = inner_items(decoder)
        if not self._items:
            raise UnsuitableError("the model has one layer, which stays")
        self._interval = int(options.get("interval", INTERVAL))
        self._budgets = int(options.get("budgets", BUDGETS))
        self._cosine = float(options.get("cosine", COSINE))
        self._length = int(options.get("window", WINDOW))
        self._may_pause = bool(options.get("may_pause", False))
        self.confidence = float(options.get("confidence", CONFIDENCE))
        self.latencies: Latencies = measure_latencies(decoder, _WIDEST + 1)
        self._searches = 0
        self._found: dict[str, object] = {}
        self.start(decoder)

    def start(self, decoder: Decoder) -> None:
        """Begin a request: nothing is chosen yet."""
        self._window = Window(self._length)
        self._until_search = 0
        self._depth = 0
        self.left_out = frozenset()

    def draft(self, current: Round) -> Draft:
        """Search, where that is due, and draft."""
        self._window.follow(current.state)
        if self._until_search <= 0 and (window := self._window.tokens(current)) is not None:
            lanes = Lanes(self.decoder, current.state, *window)
            self._choose(lanes, current.state.read, current.deepest)
            self._until_search = self._interval
            current.clock.passed("search")
        self._until_search -= 1
        if self._depth == 0:
            return Draft((), ())
        return super().draft(dataclasses.replace(current, depth=min(current.depth, self._depth)))

    def _choose(self, lanes: Lanes, context: int, deepest: int) -> None:
        costs = {item: self.latencies.part(item[1], context) for item in self._items}
        weights, limit = weights_of(list(costs.values()), self._budgets)
        weight = dict(zip(costs, weights, strict=True))
        every: list[Item] = [
            item for number in range(len(self.decoder.layers)) for item in items_of(self.decoder, number)
        ]
        found = search(lanes, [Choice((item,), weight.get(item, 0)) for item in every], limit=limit, least=self._cosine)
        predicted = lanes.likeliest(found.hidden)
        hits = (predicted == predicted[:1]).sum(-1).tolist()
        acceptances = [(count + 0.5) / (predicted.shape[1] + 1) for count in hits]
        step = self.latencies.rest + sum(self.latencies.part(part, context) for _, part in every)
        steps = [step - sum(costs[item] for item in left_out) for left_out in found.left_out]
        passes = [self.latencies.verify(depth + 1, context) for depth in range(1, deepest + 1)]
        # The set that leaves out nothing is no draft.
        drafts = slice(1, None) if len(steps) > 1 else slice(None)
        number, self._depth, rate = best_pair(acceptances[drafts], steps[drafts], passes)
        number += drafts.start or 0
        self.left_out: Silenced = found.left_out[number]
        plain = 1 / self.latencies.verify(1, context)
        if self._may_pause and rate <= plain:
            self._depth = 0
        self._searches += 1
        self._found = {
            "context": context,
            "sets": len(found.spent),
            "depth": self._depth,
            "acceptance": round(acceptances[number], 4),
            "cosine": round(found.cosine[number], 4),
            "tokens_per_s": round(rate, 3),
            "plain_tokens_per_s": round(plain, 3),
        }

    def describe(self) -> dict[str, object]:
        """Return what is left out now, what the last search found, and the latencies."""
        return {
            **super().describe(),
            "searches": self._searches,
            "last_search": self._found,
            "latencies": self.latencies.to_json(),
            "may_find_nothing": self._may_pause,
        }
