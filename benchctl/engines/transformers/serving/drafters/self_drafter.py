"""Drafting with the target itself, parts of it left out: its weights and its caches, nothing of its own.

Its subclasses here leave out a fixed set, attention or some of the layers.

`self-ssm`, `self-linear`: the recurrent part of a hybrid. In a parallel hybrid every layer keeps its recurrent branch;
in a sequential hybrid the attention layers pass their input on. Not specified by the ablation study that proposes this:
the MLP of such a layer stays, unless `mlp: false` has it left out as well. `self-layerskip`, `self-early-exit`: a share
of the layers skipped evenly, or the first alone, as in LayerSkip (Elhoushi et al. 2024,
https://arxiv.org/abs/2404.16710) but without its training: the final norm and the output projection read whatever the
last layer that runs hands on. `self-skip`: what the recipe lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import torch

from benchctl.engines.transformers.serving import UnsuitableError
from benchctl.engines.transformers.serving.decode import Draft, Round
from benchctl.engines.transformers.serving.decoder import Decoder, Part, Parts, Snapshot, named, without

Options = Mapping[str, Any]
NO_OPTIONS: Options = MappingProxyType({})


class SelfDrafter:
    """Drafts token by token without `left_out`; a method chooses what that is, once or as it goes on."""

    defaults: ClassVar[Options] = NO_OPTIONS
    """Defaults of its options, used where the recipe has none."""
    depth = 0
    left_out: Parts = frozenset()
    confidence = 0.0
    """A token that the draft gave less than this probability is the last of its draft. It stays in the draft: to
    leave it out because of what was drawn would change the distribution of sampled answers."""

    def __init__(self, decoder: Decoder, options: Options = NO_OPTIONS) -> None:
        self.decoder = decoder
        self.options = {**self.defaults, **options}
        self.confidence = float(self.options.get("confidence", 0.0))

    def start(self, decoder: Decoder) -> None:
        """Begin a request; forget the last one."""

    def draft(self, current: Round) -> Draft:
        """Guess `current.depth` tokens, fewer where a token ends the answer or is not likely enough."""
        tokens: list[int] = []
        distributions: list[torch.Tensor | None] = []
        token = current.tokens[-1]
        with without(self.decoder, self.left_out):
            while len(tokens) < current.depth:
                logits = current.state.advance([token])
                token, distribution = current.chooser.draft(logits, tokens)
                tokens.append(token)
                distributions.append(distribution)
                if token in current.ends or (
                    self.confidence and _likelihood(token, distribution, logits) < self.confidence
                ):
                    break
        return Draft(tokens, distributions, self.left_out)

    def verified(self, current: Round, draft: Draft, accepted: int, logits: torch.Tensor) -> None:
        """Do nothing: a fixed set does not adapt."""

    def describe(self) -> dict[str, object]:
        """Return what is left out, for the attestation."""
        return {"left_out": named(self.left_out), "layers": len(self.decoder.layers)}


def _likelihood(token: int, distribution: torch.Tensor | None, logits: torch.Tensor) -> float:
    return float(logits[-1].float().softmax(-1)[token] if distribution is None else distribution[token])


class Window:
    """The last tokens of an answer, and a state from before them. A search reads these tokens again."""

    def __init__(self, length: int) -> None:
        self.length = length
        self._anchor: Snapshot | None = None
        self._next: Snapshot | None = None

    def tokens(self, current: Round) -> tuple[Snapshot, list[int]] | None:
        """Return a state, and `length` tokens that followed it; `None` while there are too few.

        To be called between two rounds: it takes note of the state, with a snapshot every `length` tokens.
        """
        state = current.state
        if self._next is None or state.read - self._next.read >= self.length:
            self._anchor, self._next = self._next, state.snapshot()
        if (anchor := self._anchor) is None:
            return None
        return anchor, list(current.tokens[anchor.read : anchor.read + self.length])


def evenly_skipped(layers: int, share: float) -> list[int]:
    """Return which of so many layers to skip, evenly spaced; the first and the last are kept while others are left."""
    count = min(max(1, round(share * layers)), layers - 1)
    inner = list(range(1, layers - 1))
    if count >= len(inner):
        return sorted([*inner, *([layers - 1] if count > len(inner) else [])])
    step = len(inner) / count
    return [inner[int((number + 0.5) * step)] for number in range(count)]


class SelfLayerSkip(SelfDrafter):
    """`skip`: the share of layers that is left out, half of them by default."""

    defaults: ClassVar[Options] = {"skip": 0.5}

    def __init__(self, decoder: Decoder, options: Options) -> None:
        super().__init__(decoder, options)
        skipped = evenly_skipped(len(decoder.layers), self.options["skip"])
        if not skipped:
            raise UnsuitableError("the model has one layer, which stays")
        self.left_out = frozenset((number, "layer") for number in skipped)


LISTS: dict[str, Part] = {"layers": "layer", "attention": "attention", "recurrent": "recurrent", "mlp": "mlp"}


class SelfSkip(SelfDrafter):
    """`layers`, `attention`, `recurrent`, `mlp`: numbers, from 0, of layers that are skipped, or lose that part."""

    def __init__(self, decoder: Decoder, options: Options) -> None:
        super().__init__(decoder, options)
        listed = [(name, number) for name in LISTS for number in options.get(name, ())]
        if not listed:
            raise UnsuitableError(f"it needs a list of layers in its options: {', '.join(LISTS)}")
        count = len(decoder.layers)
        for name, number in listed:
            if number >= count:
                raise UnsuitableError(f"{name} has {number}, and the model has layers 0 to {count - 1}")
            if not decoder.layers[number].modules(LISTS[name]):
                raise UnsuitableError(f"{name} has {number}, a layer without that part")
        self.left_out = frozenset((number, LISTS[name]) for name, number in listed)
        if all((number, "layer") in self.left_out for number in range(count)):
            raise UnsuitableError("layers lists all of them, and skipping them would leave nothing")


class SelfEarlyExit(SelfDrafter):
    """`exit_layer`: how many of the first layers draft; half of them by default."""

    def __init__(self, decoder: Decoder, options: Options) -> None:
        super().__init__(decoder, options)
        self.exit_after(int(self.options.get("exit_layer", max(1, len(decoder.layers) // 2))))

    def exit_after(self, layers: int) -> None:
        """Draft with so many of the first layers. Raises UnsuitableError where there are no others."""
        count = len(self.decoder.layers)
        if not 0 < layers < count:
            raise UnsuitableError(f"exit_layer is {layers}, and the model has {count} layers: it must be less")
        self.left_out = frozenset((number, "layer") for number in range(layers, count))


class SelfRecurrent(SelfDrafter):
    """Hybrids: attention is silent, beside a recurrent branch or in layers of its own; `mlp`: whether its MLP runs."""

    def __init__(self, decoder: Decoder, options: Options) -> None:
        super().__init__(decoder, options)
        part: Part = "attention" if options.get("mlp", True) else "layer"
        layers = enumerate(decoder.layers)
        self.left_out = frozenset((number, part) for number, layer in layers if layer.modules("attention"))
