"""`self-knapspec`: attention and MLP are items of a knapsack, their measured latencies the weights.

KnapSpec (Cha et al. 2026, https://arxiv.org/abs/2602.20217). Every `interval` rounds a dynamic programme
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
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchctl.engines.transformers.serving.decode import Draft, Round, synchronized_now
from benchctl.engines.transformers.serving.decoder import Decoder, Part, Parts, State
from benchctl.engines.transformers.serving.drafters.self_drafter import Options, SelfDrafter, UnsuitableError, Window
from benchctl.engines.transformers.serving.variants import Choice, Item, Variants, inner_items, items_of, search

_SHORT, _LONG = 32, 1024
_REPEATS = 3
"""The fastest counts: what disturbs a measurement makes it longer."""


@dataclass(frozen=True)
class Latencies:
    """Seconds."""

    parts: Mapping[Part, tuple[float, float]]
    """Of a part in a layer, mean over the layers: without context, and more for every token of it."""
    rest: float
    """Of a decode step beside its parts: embedding, norms, output."""
    passes: Sequence[tuple[int, float]]
    """Tokens read at once, and how long that takes at a short context; ascending."""
    attentions: int
    """How many layers attend."""

    def part(self, part: Part, context: int) -> float:
        """Return what a part costs a step that follows `context` tokens."""
        fixed, growing = self.parts[part]
        return fixed + growing * context

    def verify(self, tokens: int, context: int) -> float:
        """Return what a pass over so many tokens costs: interpolated, beyond the widest in proportion to the last two.

        Keys and values are read once a pass, however many tokens attend to them.
        """
        widths = [width for width, _ in self.passes]
        at = min(max(bisect_left(widths, tokens), 1), len(widths) - 1)
        (low, fast), (high, slow) = self.passes[at - 1], self.passes[at]
        short = fast + (slow - fast) * (tokens - low) / (high - low)
        return short + self.attentions * self.parts["attention"][1] * max(0, context - _SHORT)

    def to_json(self) -> dict[str, Any]:
        """Return milliseconds by part (fixed, and for every 1,000 tokens of context) and by width, as plain data."""
        return {
            "parts_ms": {
                part: [round(1e3 * fixed, 4), round(1e6 * more, 4)] for part, (fixed, more) in self.parts.items()
            },
            "rest_ms": round(1e3 * self.rest, 4),
            "passes_ms": {str(width): round(1e3 * seconds, 3) for width, seconds in self.passes},
        }


def measure_latencies(decoder: Decoder, widest: int) -> Latencies:
    """Time steps at a short and a long context, and passes of up to `widest` tokens."""
    with torch.inference_mode():
        state = State(decoder)
        state.advance([1] * _SHORT)
        widths = sorted({1, 2, *(width for width in (4, 8, 16) if width < widest), max(2, widest)})
        passes = [(width, _fastest_pass(state, width)) for width in widths]
        short, whole = _parts(state)
        _lengthen(state, _LONG)
        long, _ = _parts(state)
    parts: dict[Part, tuple[float, float]] = {}
    counts = {part: sum(bool(layer.modules(part)) for layer in decoder.layers) for part in short}
    for part, seconds in short.items():
        growing = max(0.0, long[part] - seconds) / (_LONG - _SHORT) if part == "attention" else 0.0
        parts[part] = ((seconds - growing * _SHORT) / counts[part], growing / counts[part])
    monotonic = [passes[0]]
    for width, seconds in passes[1:]:
        monotonic.append((width, max(seconds, monotonic[-1][1])))
    return Latencies(parts, max(0.0, whole - sum(short.values())), monotonic, counts["attention"])


def _fastest_pass(state: State, width: int) -> float:
    before, fastest = state.snapshot(), float("inf")
    for _ in range(_REPEATS):
        began = synchronized_now(state.decoder.device)
        state.advance([1] * width, keep=width)
        fastest = min(fastest, synchronized_now(state.decoder.device) - began)
        state.restore(before)
    return fastest


def _parts(state: State) -> tuple[dict[Part, float], float]:
    """Return the seconds of a step by part, all layers together, and of the whole step: of the fastest step."""
    decoder, before = state.decoder, state.snapshot()
    spent: dict[Part, float] = defaultdict(float)
    began = 0.0

    def start(*_: object) -> None:
        nonlocal began
        began = synchronized_now(decoder.device)

    def stop(part: Part) -> Callable[..., None]:
        def stopped(*_: object) -> None:
            spent[part] += synchronized_now(decoder.device) - began

        return stopped

    handles = []
    kinds: tuple[Part, ...] = ("attention", "recurrent", "mlp")
    for layer in decoder.layers:
        for part in kinds:
            for module in layer.modules(part):
                handles += [module.register_forward_pre_hook(start), module.register_forward_hook(stop(part))]
    found: list[tuple[float, dict[Part, float]]] = []
    try:
        for _ in range(_REPEATS + 1):
            spent.clear()
            first = synchronized_now(decoder.device)
            state.advance([1])
            found.append((synchronized_now(decoder.device) - first, dict(spent)))
            state.restore(before)
    finally:
        for handle in handles:
            handle.remove()
    whole, parts = min(found[1:], key=lambda step: step[0])
    return parts, whole


def _lengthen(state: State, length: int) -> None:
    """Have the state hold so many tokens."""
    for layer in state.cache.layers:
        if getattr(layer, "keys", None) is not None:
            times = -(-length // layer.keys.shape[-2])
            layer.keys = layer.keys.repeat(1, 1, times, 1)[..., :length, :]
            layer.values = layer.values.repeat(1, 1, times, 1)[..., :length, :]
    state.read = length


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


class SelfKnapspec(SelfDrafter):
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
            variants = Variants(self.decoder, current.state, *window)
            self._choose(variants, current.state.read, current.deepest)
            self._until_search = self._interval
            current.clock.passed("search")
        self._until_search -= 1
        if self._depth == 0:
            return Draft((), ())
        return super().draft(dataclasses.replace(current, depth=min(current.depth, self._depth)))

    def _choose(self, variants: Variants, context: int, deepest: int) -> None:
        costs = {item: self.latencies.part(item[1], context) for item in self._items}
        weights, limit = weights_of(list(costs.values()), self._budgets)
        weight = dict(zip(costs, weights, strict=True))
        every: list[Item] = [
            item for number in range(len(self.decoder.layers)) for item in items_of(self.decoder, number)
        ]
        found = search(
            variants, [Choice((item,), weight.get(item, 0)) for item in every], limit=limit, least=self._cosine
        )
        predicted = variants.likeliest(found.hidden)
        hits = (predicted == predicted[:1]).sum(-1).tolist()
        acceptances = [(count + 0.5) / (predicted.shape[1] + 1) for count in hits]
        step = self.latencies.rest + sum(self.latencies.part(part, context) for _, part in every)
        steps = [step - sum(costs[item] for item in left_out) for left_out in found.left_out]
        passes = [self.latencies.verify(depth + 1, context) for depth in range(1, deepest + 1)]
        # The set that leaves out nothing is no draft.
        drafts = slice(1, None) if len(steps) > 1 else slice(None)
        number, self._depth, rate = best_pair(acceptances[drafts], steps[drafts], passes)
        number += drafts.start or 0
        self.left_out: Parts = found.left_out[number]
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
