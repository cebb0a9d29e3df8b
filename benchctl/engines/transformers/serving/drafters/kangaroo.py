"""`self-kangaroo`: the first layers draft, through a small adapter that was trained for them, in place of the others.

Kangaroo (Liu et al. 2024, https://arxiv.org/abs/2404.18911): what the first layers hand on goes through the adapter,
one attention between two norms, and then the model's own output layer; a draft ends after a token below a confidence.
Where the paper does not specify it, or where this differs:

- a verification here reads all layers again; the study's goes on from what the draft's layers computed.
- the adapter's attention is of the target's own kind (the study's targets are Llama models, and so is their adapter).
- the adapter is a folder, `models.draft`: tensors are named as in the study's files, and `exit_layer` is a key of its
  config.json. `python -m training.kangaroo` trains one for the bundled transformer.
- 2 layers and a confidence of 0.6 are those of the study's code for a 7B model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import load_file
from torch.utils.hooks import RemovableHandle
from transformers import Cache, DynamicCache

from benchctl.engines.transformers.serving import UnsuitableError
from benchctl.engines.transformers.serving.decode import Draft, Round
from benchctl.engines.transformers.serving.decoder import Decoder, GrowingLayer, replaced
from benchctl.engines.transformers.serving.drafters.self_drafter import Options, SelfEarlyExit
from benchctl.engines.transformers.serving.loading import read_object


class Adapter(torch.nn.Module):  # type: ignore[misc]
    """Attention between two norms; the second stands for the model's final norm."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        config = decoder.model.config.get_text_config()
        (attention,) = decoder.layers[0].modules("attention")
        parts = {
            "input_layernorm": torch.nn.RMSNorm(config.hidden_size, config.rms_norm_eps),
            "self_attn": type(attention)(config, layer_idx=0),
        }
        self.layers = torch.nn.ModuleList([torch.nn.ModuleDict(parts)])
        self.norm = torch.nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self, hidden: torch.Tensor, rotations: tuple[torch.Tensor, torch.Tensor], cache: Cache | None = None
    ) -> torch.Tensor:
        """Return what the output layer reads, `[batch, tokens, hidden]` as `hidden`; `cache`: of the tokens before."""
        parts = self.layers[0]
        mixed, *_ = parts["self_attn"](
            hidden_states=parts["input_layernorm"](hidden),
            position_embeddings=rotations,
            attention_mask=None,
            past_key_values=cache,
        )
        normed: torch.Tensor = self.norm(hidden + mixed)
        return normed


def load_adapter(decoder: Decoder, folder: Path) -> Adapter:
    """Load an adapter's folder. Raises UnsuitableError where it is none for this target."""
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    adapter = Adapter(decoder)
    try:
        adapter.load_state_dict(tensors)
    except RuntimeError as error:
        mismatch = " ".join(str(error).split())[:300]
        raise UnsuitableError(f"models.draft is no adapter for this target: {mismatch}") from error
    adapter.to(device=decoder.device, dtype=decoder.model.dtype).eval()
    return adapter


class SelfKangaroo(SelfEarlyExit):
    """`exit_layer`: how many of the first layers draft, else what the adapter's folder says; `confidence`: 0.6."""

    defaults: ClassVar[Options] = {"confidence": 0.6}

    def __init__(self, decoder: Decoder, options: Options, folder: Path) -> None:
        config = read_object(folder / "config.json")
        super().__init__(decoder, {"exit_layer": config.get("exit_layer", 2), **options})
        self._adapter = load_adapter(decoder, folder)
        self._exit = decoder.layers[self.options["exit_layer"] - 1].module
        self._inner = decoder.model.get_decoder()
        self._listening: RemovableHandle | None = None

    def start(self, decoder: Decoder) -> None:
        """Begin a request: the adapter reads what its layers hand on in every pass that follows."""
        if self._listening is not None:
            self._listening.remove()
        self._cache = DynamicCache()
        self._cache.layers = [GrowingLayer()]
        self._request: Cache | None = None
        self._listening = self._exit.register_forward_hook(self._hear, with_kwargs=True)

    def _hear(self, module: torch.nn.Module, inputs: object, keywords: dict[str, Any], handed_on: torch.Tensor) -> None:
        cache = keywords["past_key_values"]
        if self._request is None:
            self._request = cache
        if cache is not self._request:  # this request does not belong to this drafter
            assert self._listening is not None
            self._listening.remove()
            return
        length = self._cache.get_seq_length()
        positions = torch.arange(length, length + handed_on.shape[1], device=handed_on.device)[None]
        adapted = self._adapter(handed_on, self._inner.rotary_emb(handed_on, positions), self._cache)
        self._adapted = adapted[:, -1:].clone()

    def draft(self, current: Round) -> Draft:
        """Guess tokens with the adapter in place of the later layers and the final norm."""
        before = current.state.read
        self._crop(before)  # keep only what the last verification accepted
        try:
            with replaced({self._inner.norm: lambda _: self._adapted}):
                return super().draft(current)
        finally:
            self._crop(before)

    def _crop(self, read: int) -> None:
        (layer,) = self._cache.layers
        layer.keys, layer.values = layer.keys[..., :read, :], layer.values[..., :read, :]
