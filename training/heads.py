"""What training any head for the bundled transformer takes: the options, the frozen target, its text, the descent."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from random import Random

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, Qwen3ForCausalLM

import benchctl.models
from benchctl.models.huggingface.folder import huggingface_folder
from benchctl.paths import cache_folder
from training import heldout
from training.generators import GENERATORS
from training.tokenizer import chat

TARGET = Path(benchctl.models.__file__).parent / "bundled" / "tiny-transformer.gguf"
RATE = 2e-3
"""The highest learning rate."""


def read_options(description: str | None, gets: str, steps: int, kinds: Sequence[str] = ()) -> argparse.Namespace:
    """Return the command line's `folder`, which `gets` something, `steps` and `seed`; first one of `kinds`, if any."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if kinds:
        parser.add_argument("kind", choices=kinds)
    help_of_folder = f"gets {gets}; default: heads in benchctl's cache"
    parser.add_argument("folder", type=Path, nargs="?", default=cache_folder() / "heads", help=help_of_folder)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def frozen_target(seed: int) -> tuple[Path, Qwen3ForCausalLM]:
    """Seed torch, and return the target's folder with the model in float32, which is not trained."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    folder = huggingface_folder(TARGET)
    return folder, Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).requires_grad_(False)


def batches(tokenizer: Path, length: int, rows: int, seed: int) -> Iterator[Tensor]:
    """Windows of exchanges of all tasks, one after the other, (rows, length)."""
    encode = AutoTokenizer.from_pretrained(tokenizer)
    examples = {task: heldout.draw(task, Random(f"{seed}/{task}"), held_out=False) for task in GENERATORS}
    stream: list[int] = []
    for number in count():
        example = next(examples[list(examples)[number % len(examples)]])
        stream += encode(chat(example.user, example.assistant), add_special_tokens=False).input_ids
        if len(stream) >= rows * length:
            yield torch.tensor(stream[: rows * length]).view(rows, length)
            stream = stream[rows * length :]


def descend(
    heads: Sequence[nn.Module],
    windows: Iterable[Tensor],
    steps: int,
    loss_of: Callable[[Tensor], tuple[Tensor, Callable[[], str]]],
    *,
    warm_up: int = 50,
    report_every: int = 100,
) -> None:
    """Train heads for so many steps, the gradient of each clipped on its own; the learning rate falls to 0.

    `loss_of`: returns the loss of a batch, and the text that is printed every `report_every` steps.
    """
    parameters = [parameter for head in heads for parameter in head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=RATE, betas=(0.9, 0.95), weight_decay=0.01)
    for step, rows in enumerate(islice(windows, steps)):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / warm_up) * (1 - step / steps)
        loss, report = loss_of(rows)
        optimizer.zero_grad()
        loss.backward()
        for head in heads:
            nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        if step % report_every == 0 or step == steps - 1:
            print(f"step {step}: {report()}", flush=True)
