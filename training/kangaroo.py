"""Train a Kangaroo adapter for the bundled transformer, as the folder that `self-kangaroo` reads.

    python -m training.kangaroo [FOLDER]

The adapter (`benchctl/engines/transformers/serving/drafters/kangaroo.py`) learns the target's own distribution, within
answers, from what the target's first layer hands on. Text as in `training/heads.py`. `--steps 0` writes the
untrained adapter, which the trained adapter must beat.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import Qwen3ForCausalLM

from benchctl.engines.transformers.serving.decoder import Decoder
from benchctl.engines.transformers.serving.drafters.kangaroo import Adapter
from training.heads import batches, descend, frozen_target, read_options
from training.objective import weights
from training.schedule import assistant_token

EXIT_LAYER = 1
"""Of four; the study's are 2 of 32 and 3 of 40."""


def distance(adapter: Adapter, target: Qwen3ForCausalLM, rows: Tensor, weight: Tensor) -> tuple[Tensor, float]:
    """Return the cross-entropy with the target's distribution in nats, and the share of its choices; `rows` as ids."""
    with torch.no_grad():
        heard = target.model(rows, output_hidden_states=True, use_cache=False)
        wanted = target.lm_head(heard.last_hidden_state).softmax(-1)
    hidden = heard.hidden_states[EXIT_LAYER]
    rotations = target.model.rotary_emb(hidden, torch.arange(rows.shape[1])[None])
    logits = target.lm_head(adapter(hidden, rotations))
    losses = -(wanted * logits.log_softmax(-1)).sum(-1)
    right = (logits.argmax(-1) == wanted.argmax(-1)).float()
    total = weight.sum()
    return (losses * weight).sum() / total, float((right * weight).sum() / total)


def train(adapter: Adapter, target: Qwen3ForCausalLM, folder: Path, steps: int, seed: int) -> None:
    """Train for so many steps. Prints loss and share of right tokens."""
    assistant = assistant_token(folder)

    def loss_of(rows: Tensor) -> tuple[Tensor, Callable[[], str]]:
        loss, right = distance(adapter, target, rows[:, :-1], weights(rows, 0.0, assistant))
        return loss, lambda: f"{loss.item():.3f} nats, {right:.0%} right"

    descend([adapter], batches(folder, 193, 4, seed), steps, loss_of)


def write(adapter: Adapter, target: Qwen3ForCausalLM, folder: Path) -> None:
    """Write the adapter's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {name: getattr(target.config, name) for name in ("vocab_size", "hidden_size", "num_attention_heads")}
    config = {"architectures": ["KangarooAdapter"], "model_type": "kangaroo", "exit_layer": EXIT_LAYER, **sizes}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")
    save_file(adapter.state_dict(), folder / "model.safetensors")


def main() -> None:
    """Read the options, train and write."""
    options = read_options(__doc__, "the folder `kangaroo`", 1200)
    folder, target = frozen_target(options.seed)
    adapter = Adapter(Decoder(target))
    adapter.norm.load_state_dict(target.model.norm.state_dict())
    train(adapter, target, folder, options.steps, options.seed)
    write(adapter, target, options.folder / "kangaroo")
    print(f"benchctl run tiny-kangaroo --models-dir {options.folder}")


if __name__ == "__main__":
    main()
