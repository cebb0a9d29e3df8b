"""Train the sequential model's multi-token head and an EAGLE-3 draft on the frozen model, one CPU thread.

    python -m training.train_drafts --target CHECKPOINT --data FOLDER --output FOLDER --minutes 20

Both learn the model's own distribution, for several drafted tokens in a row. Writes `sequential/checkpoint` (the model
with its new head) and `eagle3/checkpoint` under the output folder.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from training.architectures.qwen3_5 import SequentialModel
from training.eagle3 import Eagle3Draft, eagle3
from training.objective import weights, windows
from training.schedule import Clock, assistant_token
from training.sequential import agreement, distilled, hear, read_last
from training.train import optimizers, save, update


def save_draft(draft: Eagle3Draft, folder: Path) -> None:
    """Write the draft's weights and configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(draft.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    draft.config.save_pretrained(folder)


def train(options: argparse.Namespace) -> None:
    """Train, log and save both drafts."""
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    tokens = np.load(options.data / "train.npy", mmap_mode="r")
    validation = np.load(options.data / "validation.npy")[: 20 * options.length + 1]
    assistant = assistant_token(options.data / "tokenizer")
    model: SequentialModel = SequentialModel.from_pretrained(options.target, dtype=torch.float32)
    model.requires_grad_(False)
    model.mtp.requires_grad_(True)
    draft = eagle3(model, feed_forward=options.feed_forward)
    learning = nn.ModuleList([model.mtp, draft])
    optims = optimizers(learning, options.rate)
    clock = Clock(options.output, options.minutes, options.warm_up)
    for rows in windows(tokens, options.length, options.batch, options.seed):
        if clock.due_to_validate():
            clock.note(
                mtp=agreement(model, model.mtp, read_last, validation, options.length),
                eagle3=agreement(model, draft, draft.read, validation, options.length),
            )
        if clock.done():
            break
        weight = weights(rows, options.prompt_weight, assistant)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with torch.no_grad():
                heard = hear(model, rows[:, :-1])
            loss = distilled(model, draft, draft.read(model, heard), weight, options.steps)
            head = read_last(model, heard.rows(1))
            loss = loss + distilled(model, model.mtp, head, weight[:1], options.steps)
        update(learning, optims, loss, options.rate * clock.share_of_rate())
        clock.step(loss.item(), rows[:, 1:].numel())
    save(model, options.output / "sequential" / "checkpoint")
    save_draft(draft, options.output / "eagle3" / "checkpoint")


def main() -> None:
    """Read the options and train."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True, help="a checkpoint of training.train_sequential")
    parser.add_argument("--data", type=Path, required=True, help="what training.corpus wrote")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True, help="wall time; the learning rate ends at 0")
    parser.add_argument("--feed-forward", type=int, default=256, help="width of the EAGLE-3 draft's inner layer")
    parser.add_argument("--steps", type=int, default=3, help="tokens drafted in a row")
    parser.add_argument("--prompt-weight", type=float, default=0.1, help="weight of the loss within user turns")
    parser.add_argument("--rate", type=float, default=6e-3, help="highest learning rate")
    parser.add_argument("--warm-up", type=int, default=30, help="steps of rising learning rate")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--seed", type=int, default=2)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
