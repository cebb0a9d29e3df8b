"""Train a Kangaroo adapter for the bundled transformer, as the folder that `self-kangaroo` reads.

    python -m training.kangaroo [FOLDER]

The adapter (`benchctl/engines/transformers/serving/drafters/kangaroo.py`) learns the target's own distribution, within
answers, from what the target's first layer hands on. Text as in `training/flash.py`. `--steps 0` writes the
untrained adapter, which the trained adapter must beat.
"""

from __future__ import annotations

import argparse
import json
from itertools import islice
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import Qwen3ForCausalLM

from benchctl.engines.transformers.serving.decoder import Decoder
from benchctl.engines.transformers.serving.drafters.kangaroo import Adapter
from benchctl.models.huggingface.folder import huggingface_folder
from benchctl.paths import cache_folder
from training.flash import TARGET, batches
from training.objective import weights

EXIT_LAYER = 1
"""Of four; the study's are 2 of 32 and 3 of 40."""
RATE = 2e-3
"""The highest learning rate."""


def loss_of(adapter: Adapter, target: Qwen3ForCausalLM, rows: Tensor, weight: Tensor) -> tuple[Tensor, float]:
    """Return the cross-entropy with the target's distribution in nats, and the share of its choices; `rows` as ids."""
    with torch.no_grad():
        heard = target.model(rows, output_hidden_states=True, use_cache=False)
        wanted = target.lm_head(heard.last_hidden_state).softmax(-1)
    hidden = heard.hidden_states[EXIT_LAYER]
    rotations = target.model.rotary_emb(hidden, torch.arange(rows.shape[1])[None])
    logits = target.lm_head(adapter(hidden, rotations))
    losses = -(wanted * logits.log_softmax(-1)).sum(-1)
    right = (logits.argmax(-1) == wanted.argmax(-1)).float()
    whole = weight.sum()
    return (losses * weight).sum() / whole, float((right * weight).sum() / whole)


def train(adapter: Adapter, target: Qwen3ForCausalLM, folder: Path, steps: int, seed: int) -> None:
    """Train for so many steps; the learning rate falls to 0. Prints loss and share of right tokens."""
    optimizer = torch.optim.AdamW(adapter.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.01)
    assistant = json.loads((folder / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]["assistant"]
    for step, rows in enumerate(islice(batches(folder, 193, 4, seed), steps)):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 50) * (1 - step / steps)
        loss, right = loss_of(adapter, target, rows[:, :-1], weights(rows, 0.0, assistant))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(adapter.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step}: {loss.item():.3f} nats, {right:.0%} right", flush=True)


def write(adapter: Adapter, target: Qwen3ForCausalLM, folder: Path) -> None:
    """Write the adapter's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {name: getattr(target.config, name) for name in ("vocab_size", "hidden_size", "num_attention_heads")}
    config = {"architectures": ["KangarooAdapter"], "model_type": "kangaroo", "exit_layer": EXIT_LAYER, **sizes}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")
    save_file(adapter.state_dict(), folder / "model.safetensors")


def main() -> None:
    """Read the options, train and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    help_of_folder = "gets the folder `kangaroo`; default: heads in benchctl's cache"
    parser.add_argument("folder", type=Path, nargs="?", default=cache_folder() / "heads", help=help_of_folder)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    folder = huggingface_folder(TARGET)
    target = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).requires_grad_(False)
    adapter = Adapter(Decoder(target))
    adapter.norm.load_state_dict(target.model.norm.state_dict())
    train(adapter, target, folder, options.steps, options.seed)
    write(adapter, target, options.folder / "kangaroo")
    print(f"benchctl run tiny-kangaroo --models-dir {options.folder}")


if __name__ == "__main__":
    main()
