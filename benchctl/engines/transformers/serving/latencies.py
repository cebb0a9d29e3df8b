"""What a decode step costs by part, attention's share growing with the context, and a pass by its width: measured.

Parts are timed where they run, inside whole steps, so that weights come from memory as they do in decoding; the device
is synchronized at their borders. A longer context is made of the keys and values of a short one, repeated: how long
attention takes does not depend on their values.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchctl.engines.transformers.serving.clock import synchronized_now
from benchctl.engines.transformers.serving.decoder import Decoder, Part
from benchctl.engines.transformers.serving.state import State

_SHORT, _LONG = 32, 1024
_REPEATS = 3
"""The fastest counts: what disturbs a measurement makes it longer."""


@dataclass(frozen=True)
class Latencies:
    """Seconds."""

    parts: Mapping[Part, tuple[float, float]]
    """Of one part in one layer, mean over the layers: without context, and more for every token of it."""
    rest: float
    """Of a decode step beside its parts: embedding, norms, output."""
    passes: Sequence[tuple[int, float]]
    """Tokens read at once, and how long that takes at a short context; ascending."""
    attentions: int
    """How many layers attend."""

    def part(self, part: Part, context: int) -> float:
        """Return what one part costs a step that follows `context` tokens."""
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
    whole, parts = min(found[1:], key=lambda one: one[0])
    return parts, whole


def _lengthen(state: State, length: int) -> None:
    """Have the state hold so many tokens."""
    for layer in state.cache.layers:
        if getattr(layer, "keys", None) is not None:
            times = -(-length // layer.keys.shape[-2])
            layer.keys = layer.keys.repeat(1, 1, times, 1)[..., :length, :]
            layer.values = layer.values.repeat(1, 1, times, 1)[..., :length, :]
    state.read = length
