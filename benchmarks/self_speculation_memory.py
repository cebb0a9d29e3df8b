"""How much memory self-speculation keeps beside what plain decoding keeps, at a long context.

    python -m benchmarks.self_speculation_memory MODEL [--context 4000] [--tokens 96] [--types self-swift,self-knapspec]

MODEL is a Hugging Face folder. Counts the bytes of every tensor that is alive, weights apart: between two steps (the
highest), which is what a method keeps, and the peak within the steps after the prompt, which holds what passes and
searches need for a moment. Both over plain decoding by the same loop, and beside the bare size of keys and values.
"""

from __future__ import annotations

import argparse
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchctl.data.identity import home_relative
from benchctl.engines.transformers.serving.answering import Answer, Speculation, make_drafter
from benchctl.engines.transformers.serving.assisted import Assistance
from benchctl.engines.transformers.serving.decode import Drafter, Sampler, Step, Task
from benchctl.engines.transformers.serving.decoder import Decoder
from benchctl.engines.transformers.serving.loading import Loaded, load
from benchmarks.keep import keep


class AliveBytes(TorchDispatchMode):  # type: ignore[misc]
    """Sums the storage of the tensors that operations return for as long as it is there; weights are not counted."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._weights = {tensor.untyped_storage().data_ptr() for tensor in model.state_dict().values()}
        self._known: set[int] = set()

    def __torch_dispatch__(
        self,
        operation: Callable[..., object],
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        answer = operation(*args, **(kwargs or {}))
        for tensor in tree_leaves(answer):
            if isinstance(tensor, torch.Tensor):
                self._note(tensor.untyped_storage())
        return answer

    def _note(self, storage: torch.UntypedStorage) -> None:
        address, size = storage.data_ptr(), storage.nbytes()
        if not size or address in self._weights or address in self._known:
            return
        self._known.add(address)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, address, size)

    def _forget(self, address: int, size: int) -> None:
        self._known.discard(address)
        self.now -= size


def alive(loaded: Loaded, prompt: list[int], tokens: int, way: Drafter | Assistance | None) -> dict[str, int]:
    """Return the highest bytes between steps and within them, while an answer is decoded."""
    task = Task(prompt, tokens, Sampler().chooser(loaded.ends))
    between = 0
    with AliveBytes(loaded.model) as counted:

        def on_step(step: Step) -> None:
            nonlocal between
            if between == 0:
                counted.peak = 0  # the prompt's own needs are no method's
            between = max(between, counted.now)

        Answer(Decoder(loaded.model), task, way).run(on_step)
    return {"between": between, "peak": counted.peak}


def keys_and_values(loaded: Loaded, tokens: int) -> int:
    """Return the bytes of so many tokens' keys and values."""
    config, size = loaded.model.config.get_text_config(), loaded.model.dtype.itemsize
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    attending = sum(bool(layer.modules("attention")) for layer in Decoder(loaded.model).layers)
    return int(2 * attending * config.num_key_value_heads * width * tokens * size)


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--types", default="self-layerskip,self-swift,self-clasp,self-del,self-knapspec")
    parser.add_argument("--context", type=int, default=4000)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/self_speculation_memory.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    loaded = load(options.model, device="cpu", dtype=options.dtype)
    text = loaded.tokenizer("def count_values(items):\n")["input_ids"]
    prompt = (text * (options.context // len(text) + 1))[: options.context]
    plain = alive(loaded, prompt, options.tokens, None)
    results: dict[str, Any] = {
        "model": home_relative(str(options.model)),
        "dtype": options.dtype,
        "context": options.context,
        "tokens": options.tokens,
        "keys_and_values": keys_and_values(loaded, options.context + options.tokens),
        "plain": plain,
        "types": {},
    }
    for name in options.types.split(","):
        options_of = {"window": 16} if name == "self-swift" else {}
        way = make_drafter(Decoder(loaded.model), Speculation(name, options.depth, options_of), loaded)
        bytes_of = alive(loaded, prompt, options.tokens, way)
        over = {f"{key}_over_plain": round(value / plain[key], 3) for key, value in bytes_of.items()}
        results["types"][name] = {**bytes_of, **over, **way.describe()}
        print(name, bytes_of, over, flush=True)
    if options.keep:
        keep("self_speculation_memory", results)
    else:
        print(results)


if __name__ == "__main__":
    main()
