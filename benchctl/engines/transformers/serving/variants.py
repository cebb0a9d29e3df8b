"""Compares several drafts at once: the model reads the same few tokens without different parts of it.

Each part is called through its layer, with the layer's other parts silent, so that norms and multipliers are the
model's. Attention and MLP read all variants in one row, and a mask separates the variants. So the keys and values of
the past are stored once, and a second time only while a layer reads. Recurrent parts read the variants as a batch, or
one by one if they mix up a batch. Afterwards the state holds the very same tensors as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from benchctl.engines.transformers.serving import UnsuitableError
from benchctl.engines.transformers.serving.decoder import Decoder, Part, Parts, Snapshot, State, replaced, without

Item = tuple[int, Part]
"""A part of a layer that can be left out alone."""
_PARTS: tuple[Part, ...] = ("attention", "recurrent", "mlp")
_ROW = 64
"""Attention and MLP read at most so many tokens in a row, or one variant. This limits their memory."""
_HEAD_PART = 4096
"""So many tokens of the vocabulary are scored at once. All of them would take more memory than keys and values."""


def items_of(decoder: Decoder, number: int) -> tuple[Item, ...]:
    """Return the parts of a layer in the order in which they add to its hidden states."""
    layer = decoder.layers[number]
    return tuple((number, part) for part in _PARTS if layer.modules(part))


def inner_layers(decoder: Decoder) -> range:
    """Return the layers that a search may leave out: all but the first and the last; of two the second.

    Raises UnsuitableError where there is a single layer.
    """
    layers = len(decoder.layers)
    if layers < 2:
        raise UnsuitableError("the model has one layer, which stays")
    return range(1, max(layers - 1, 2))


def inner_items(decoder: Decoder) -> tuple[Item, ...]:
    """Return the parts of those layers."""
    return tuple(item for number in inner_layers(decoder) for item in items_of(decoder, number))


class Variants:
    """Reads `tokens` from `anchor` on in any number of variants. Hidden states are `[variants, tokens, hidden]`."""

    def __init__(self, decoder: Decoder, state: State, anchor: Snapshot, tokens: Sequence[int]) -> None:
        self._decoder, self._cache, self._anchor = decoder, state.cache, anchor
        self._length = len(tokens)
        self._layers = decoder.layers
        arguments: dict[str, Any] = {}

        def take(hidden_states: torch.Tensor, **keywords: object) -> torch.Tensor | tuple[torch.Tensor]:
            arguments.update(keywords, hidden=hidden_states)
            return (hidden_states,) if decoder.architecture.in_tuple else hidden_states

        with _only(decoder, take), self._placed(range(len(self._layers)), 1):
            decoder.forward(tokens, anchor.read, state.cache, keep=1)
        self.first: torch.Tensor = arguments.pop("hidden")
        """What enters the first layer, as a variant."""
        self._given = arguments
        self._rows: dict[tuple[int, int | None], dict[str, Any]] = {}

    def apply(self, item: Item, hidden: torch.Tensor, entered: torch.Tensor) -> torch.Tensor:
        """Return `hidden` after a part has added to it; `entered` is what entered its layer.

        Only where attention and recurrence stand side by side do the two differ: both read what entered.
        """
        number, part = item
        variants, length, width = hidden.shape
        source = entered if part == "recurrent" else hidden
        silent: Parts = frozenset((number, part_name) for part_name in _PARTS if part_name != part)
        if part == "recurrent":
            arguments = {**self._given, "attention_mask": None}
            batches = [(rows, arguments) for rows in source.split(variants if self._decoder.variants_in_batches else 1)]
        else:
            window = self._decoder.window(number)
            several = source.split(max(1, _ROW // length))
            batches = [(rows.reshape(1, -1, width), self._in_one_row(len(rows), window)) for rows in several]
        answers = []
        for rows, arguments in batches:
            with without(self._decoder, silent), self._placed([number], len(rows)):
                answer = self._layers[number].module(rows, **arguments)
            hidden_states = answer[0] if isinstance(answer, tuple) else answer
            answers.append(hidden_states.reshape(rows.numel() // (length * width), length, width))
        read = torch.cat(answers)
        return read if source is hidden else hidden + (read - source)

    def likeliest(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the likeliest token after each, `[variants, tokens]`, from what the last layer hands on."""
        final_hidden: list[torch.Tensor] = []

        def take(module: torch.nn.Module, inputs: object, answer: Sequence[torch.Tensor]) -> None:
            final_hidden.append(answer[0][0])

        with self._decoder.model.get_decoder().register_forward_hook(take):
            logits_of(self._decoder, hidden.reshape(1, -1, hidden.shape[-1]), keep=1)
        head, best = self._decoder.model.get_output_embeddings(), list[tuple[torch.Tensor, torch.Tensor]]()
        for start in range(0, len(head.weight), _HEAD_PART):
            part = slice(start, start + _HEAD_PART)
            bias = None if head.bias is None else head.bias[part]
            scores, tokens = torch.nn.functional.linear(final_hidden[0], head.weight[part], bias).max(-1)
            best.append((scores, tokens + start))
        of_parts = torch.stack([scores for scores, _ in best]).argmax(0, keepdim=True)
        return torch.stack([tokens for _, tokens in best]).gather(0, of_parts)[0].reshape(hidden.shape[:2])

    def _in_one_row(self, variants: int, window: int | None) -> dict[str, Any]:
        """Return what a layer is given beside hidden states where all variants are a single row; kept between parts."""
        if (variants, window) not in self._rows:
            self._rows[variants, window] = self._make_row(variants, window)
        return self._rows[variants, window]

    def _make_row(self, variants: int, window: int | None) -> dict[str, Any]:
        device, length, past = self._decoder.device, self._length, self._anchor.read
        within_variants = torch.block_diag(*[torch.ones(length, length, device=device).tril()] * variants).bool()
        mask = torch.cat([torch.ones(variants * length, past, dtype=torch.bool, device=device), within_variants], -1)
        if window is not None:
            rows = torch.arange(past, past + length, device=device).repeat(variants)
            mask &= rows[:, None] - torch.cat([torch.arange(past, device=device), rows]) < window
        arguments = {**self._given, "attention_mask": mask[None, None]}
        if (positions := arguments.get("position_ids")) is not None:
            arguments["position_ids"] = torch.cat([positions] * variants, -1)
        if (rotations := arguments.get("position_embeddings")) is not None:
            arguments["position_embeddings"] = tuple(torch.cat([part] * variants, -2) for part in rotations)
        return arguments

    @contextmanager
    def _placed(self, numbers: Sequence[int], variants: int) -> Iterator[None]:
        """Have the caches of some layers hold the anchor, recurrent states once a variant."""
        real_caches = {number: self._cache.layers[number] for number in numbers}
        try:
            for number, layer in real_caches.items():
                self._cache.layers[number] = self._anchor.beside(number, layer, variants)
            yield
        finally:
            for number, layer in real_caches.items():
                self._cache.layers[number] = layer


def logits_of(decoder: Decoder, hidden: torch.Tensor, keep: int | None = None) -> torch.Tensor:
    """Return the logits after what the last layer would hand on, `[1, tokens, hidden]` to `[keep, vocabulary]`; `keep`:
    after so many of the last tokens, else after all."""

    def put(hidden_states: torch.Tensor, **_: object) -> torch.Tensor | tuple[torch.Tensor]:
        return (hidden,) if decoder.architecture.in_tuple else hidden

    count = hidden.shape[1]
    with _only(decoder, put):
        return decoder.forward([0] * count, 0, State(decoder).cache, keep=keep or count)


@contextmanager
def _only(decoder: Decoder, first: Callable[..., object]) -> Iterator[None]:
    """Run the model without its layers; `first` stands in for the first."""
    later_layers: Parts = frozenset((number, "layer") for number in range(1, len(decoder.layers)))
    with replaced({decoder.layers[0].module: first}), without(decoder, later_layers):
        yield


@dataclass(frozen=True)
class Choice:
    """Items that are left out together or not at all. `weight` 0: they always run."""

    items: tuple[Item, ...]
    weight: int


@dataclass(frozen=True)
class LayerSets:
    """The best set for every budget that was reached. The first set leaves out nothing."""

    spent: tuple[int, ...]
    left_out: tuple[Parts, ...]
    cosine: tuple[float, ...]
    """Cosine similarity of the final hidden states with those of the whole model, by set."""
    hidden: torch.Tensor
    """Final hidden states, `[sets, tokens, hidden]`, before the last norm."""


def search(variants: Variants, choices: Sequence[Choice], *, limit: int, min_cosine: float) -> LayerSets:
    """Return the best set for every budget up to `limit`.

    Sets whose hidden states are less like the whole model's than `min_cosine` are dropped.
    """
    hidden = entered = variants.first
    spent, sets, cosines = [0], [Parts()], [1.0]
    layer = -1
    for choice in choices:
        with_choice, without_choice = hidden, hidden
        entering = entered
        for item in choice.items:
            if item[0] != layer:
                layer, entering = item[0], with_choice
            with_choice = variants.apply(item, with_choice, entering)
        reference = with_choice[:1]
        with_like = _cosine(with_choice, reference)
        without_like = _cosine(without_choice, reference) if choice.weight else []
        best: dict[int, tuple[float, int, bool]] = {0: (1.0, 0, False)}
        for variant, budget in enumerate(spent):
            ways = [(budget, with_like[variant], False)]
            if choice.weight and budget + choice.weight <= limit:
                ways.append((budget + choice.weight, without_like[variant], True))
            for reached, cosine, skips in ways:
                if reached and cosine >= min_cosine and cosine > best.get(reached, (-2.0, 0, False))[0]:
                    best[reached] = (cosine, variant, skips)
        spent = sorted(best)
        chosen = [best[budget] for budget in spent]
        rows = torch.tensor([variant for _, variant, _ in chosen], device=hidden.device)
        skipped = torch.tensor([skips for _, _, skips in chosen], device=hidden.device)[:, None, None]
        hidden = torch.where(skipped, without_choice[rows], with_choice[rows])
        entered = entering[rows]
        added = frozenset(choice.items)
        sets = [sets[variant] | added if skips else sets[variant] for _, variant, skips in chosen]
        cosines = [cosine for cosine, _, _ in chosen]
    return LayerSets(tuple(spent), tuple(sets), tuple(cosines), hidden)


def _cosine(hidden: torch.Tensor, reference: torch.Tensor) -> list[float]:
    cosines = torch.nn.functional.cosine_similarity(hidden.float(), reference.float(), dim=-1)
    means: list[float] = cosines.mean(-1).tolist()
    return means
