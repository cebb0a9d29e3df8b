"""`self-knapspec`: attention and MLP are items of a knapsack, their measured latencies the weights.

KnapSpec (Cha et al. 2026, https://arxiv.org/abs/2602.20217). Every `interval` rounds a dynamic programme
(`layer_sets`) finds for all budgets of saved time at once the set that keeps the hidden states of the last `window`
tokens most like the whole model's; ways below `cosine` are pruned. Of the sets that are left, and of the draft lengths
1 to `max`, the pair is taken with the most tokens per time,

    E(a, k) / (k c(S) + v(k + 1)),    E(a, k) = (1 - a^(k + 1)) / (1 - a)

with a the share of the window's tokens at which the set's token is the whole model's. A draft ends early after a
token below `confidence`. Where the paper does not specify it, or where this differs:

- c and v are measured seconds (`latencies`): at a short context when the model is loaded, at a longer context as soon
  as a search finds the answer there. v is the pass over k + 1 tokens; the paper takes that of 1 token, on a CPU several
  times too cheap. c holds the output layer, too.
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
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

import torch

from benchctl.engines.transformers.serving.decode import Draft, Round, synchronized_now, timed
from benchctl.engines.transformers.serving.decoder import Decoder, Part, Parts, State
from benchctl.engines.transformers.serving.drafters.self_drafter import Options, SelfDrafter, Window
from benchctl.engines.transformers.serving.variants import Choice, Variants, inner_items, items_of, search

_SHORT = 32
_REPEATS = 3
"""Each time is measured so often; the fastest counts, because a disturbance makes it longer."""
_BEYOND = 1.25
"""Latencies are extrapolated to at most so many times the longest measured context."""


@dataclass(frozen=True)
class Timed:
    """Seconds at one context length."""

    context: int
    parts: Mapping[Part, float]
    """Seconds of a part in one layer, the mean over all layers."""
    overhead: float
    """Seconds of a decode step outside its parts: embedding, norms, output."""
    passes: Mapping[int, float]
    """Seconds of a pass, by the number of tokens that it reads."""


@dataclass(frozen=True)
class Latencies:
    """Seconds at any context, interpolated between measured contexts."""

    points: list[Timed]
    """Ascending by context; the first has a pass of every width that another has."""

    def cover(self, state: State) -> None:
        """Measure at a state's context, where that is far beyond the longest so far; the state stays as it is."""
        if state.read > _BEYOND * self.points[-1].context:
            widths = self.points[0].passes
            self.points.append(_timed(state, {min(widths), max(widths)}))

    @property
    def overhead(self) -> float:
        """Seconds of a decode step outside its parts."""
        return min(point.overhead for point in self.points)

    def part(self, part: Part, context: int) -> float:
        """Return what a part costs a step that follows `context` tokens; only attention depends on them."""
        seconds = [(point.context, point.parts[part]) for point in self.points]
        return _along(seconds, context) if part == "attention" else min(second for _, second in seconds)

    def verify(self, tokens: int, context: int) -> float:
        """Return what a pass over so many tokens costs; beyond the widest in proportion to the last two."""
        short = self.points[0].passes
        growth = [
            (point.context, _along([(width, spent - short[width]) for width, spent in point.passes.items()], tokens))
            for point in self.points
        ]
        return _along(list(short.items()), tokens) + _along(growth, context)


def _along(points: Sequence[tuple[int, float]], position: int) -> float:
    """Return the value at a place between points, or beyond the last two; none is less than at a place before.

    More context and more tokens never cost less: where they seem to, something else was running.
    """
    if len(points) == 1:
        return points[0][1]
    positions = [start for start, _ in points]
    values = list(accumulate((value for _, value in points), max))
    after = min(max(bisect_left(positions, position), 1), len(positions) - 1)
    slope = (values[after] - values[after - 1]) / (positions[after] - positions[after - 1])
    return values[after] + slope * (max(position, positions[0]) - positions[after])


def measure_latencies(decoder: Decoder, widest: int) -> Latencies:
    """Time steps and passes of up to `widest` tokens at a short context."""
    with torch.inference_mode():
        state = State(decoder, [1] * _SHORT)
        return Latencies([_timed(state, {1, 2, *(width for width in (4, 8, 16) if width < widest), max(2, widest)})])


def _timed(state: State, widths: Collection[int]) -> Timed:
    passes = {width: _fastest_pass(state, width) for width in sorted(widths)}
    parts, step = _parts(state)
    layers = state.decoder.layers
    counts = {part: sum(bool(layer.modules(part)) for layer in layers) for part in parts}
    outside_parts = max(0.0, step - sum(parts.values()))
    return Timed(state.read, {part: seconds / counts[part] for part, seconds in parts.items()}, outside_parts, passes)


def _fastest_pass(state: State, width: int) -> float:
    before, spent = state.snapshot(), []
    for _ in range(_REPEATS):
        spent.append(timed(state, [1] * width)[1])
        state.restore(before)
    return min(spent)


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

    steps: list[tuple[float, dict[Part, float]]] = []
    with ExitStack() as hooks:
        for number, layer in enumerate(decoder.layers):
            for _, part in items_of(decoder, number):
                for module in layer.modules(part):
                    hooks.enter_context(module.register_forward_pre_hook(start))
                    hooks.enter_context(module.register_forward_hook(stop(part)))
        for _ in range(_REPEATS + 1):
            spent.clear()
            steps.append((timed(state, [1])[1], dict(spent)))
            state.restore(before)
    step_seconds, parts = min(steps[1:], key=lambda step: step[0])
    return parts, step_seconds


_WIDEST = 8
"""Number of draft tokens in the widest measured pass; wider passes are extrapolated."""


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

    defaults: ClassVar[Options] = {"interval": 64, "window": 8, "budgets": 16, "cosine": 0.5, "confidence": 0.7}

    def __init__(self, decoder: Decoder, options: Options) -> None:
        super().__init__(decoder, options)
        self._items = inner_items(decoder)
        self.latencies: Latencies = measure_latencies(decoder, _WIDEST + 1)
        self._may_pause = bool(self.options.get("may_pause"))
        self._searches = 0
        self._found: dict[str, object] = {}
        self.start(decoder)

    def start(self, decoder: Decoder) -> None:
        """Begin a request without a chosen set."""
        self._window = Window(self.options["window"])
        self._until_search = 0
        self._depth = 0
        self.left_out = frozenset()

    def draft(self, current: Round) -> Draft:
        """Search, where that is due, and draft."""
        window = self._window.tokens(current)
        if self._until_search <= 0 and window is not None:
            self.latencies.cover(current.state)
            variants = Variants(self.decoder, current.state, *window)
            self._choose(variants, current.state.read)
            self._until_search = self.options["interval"]
            current.clock.passed("search")
        self._until_search -= 1
        if self._depth == 0:
            return Draft((), ())
        return super().draft(dataclasses.replace(current, depth=min(current.depth, self._depth)))

    def _choose(self, variants: Variants, context: int) -> None:
        costs = {item: self.latencies.part(item[1], context) for item in self._items}
        weights, limit = weights_of(list(costs.values()), self.options["budgets"])
        weight = dict(zip(costs, weights, strict=True))
        items = [item for number in range(len(self.decoder.layers)) for item in items_of(self.decoder, number)]
        choices = [Choice((item,), weight.get(item, 0)) for item in items]
        layer_sets = search(variants, choices, limit=limit, min_cosine=self.options["cosine"])
        predicted = variants.likeliest(layer_sets.hidden)
        hits = (predicted == predicted[:1]).sum(-1).tolist()
        acceptances = [(count + 0.5) / (predicted.shape[1] + 1) for count in hits]
        step = self.latencies.overhead + sum(self.latencies.part(part, context) for _, part in items)
        steps = [step - sum(costs[item] for item in left_out) for left_out in layer_sets.left_out]
        passes = [self.latencies.verify(depth + 1, context) for depth in range(1, self.depth + 1)]
        # The first set leaves out nothing, so it is no draft.
        drafts = slice(1, None) if len(steps) > 1 else slice(None)
        number, self._depth, rate = best_pair(acceptances[drafts], steps[drafts], passes)
        number += drafts.start or 0
        self.left_out: Parts = layer_sets.left_out[number]
        plain = 1 / self.latencies.verify(1, context)
        if self._may_pause and rate <= plain:
            self._depth = 0
        self._searches += 1
        self._found = {
            "context": context,
            "sets": len(layer_sets.spent),
            "depth": self._depth,
            "acceptance": round(acceptances[number], 4),
            "cosine": round(layer_sets.cosine[number], 4),
            "tokens_per_s": round(rate, 3),
            "plain_tokens_per_s": round(plain, 3),
        }

    def describe(self) -> dict[str, object]:
        """Return what is left out now, what the last search found, and the latencies."""
        return {
            **super().describe(),
            "searches": self._searches,
            "last_search": self._found,
            "latencies": [dataclasses.asdict(point) for point in self.latencies.points],
            "may_find_nothing": self._may_pause,
        }
