"""Train the sequential model together with its multi-token head, one CPU thread, for a given time.

    python -m training.train_sequential --data FOLDER --output FOLDER --minutes 58 --embeddings CHECKPOINT

The embeddings start from another trained model of the same tokenizer and width, the rest is fresh.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import torch

from training.architectures.qwen3_5 import SequentialModel, sequential
from training.objective import validate, weights, windows
from training.schedule import Clock, assistant_token
from training.sequential import agreement, joint_loss, read_last
from training.tokenizer import VOCABULARY
from training.train import optimizers, save, update, with_embeddings


def prepare(options: argparse.Namespace) -> SequentialModel:
    """The model to train: fresh with given embeddings, or a checkpoint."""
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    if options.start_from:
        checkpoint: SequentialModel = SequentialModel.from_pretrained(options.start_from, dtype=torch.float32)
        return checkpoint
    model = sequential(VOCABULARY, hidden=256, feed_forward=512, layers=4, heads=4, kv_heads=2)
    if options.embeddings:
        with_embeddings(model, options.embeddings)
        with torch.no_grad():
            # Scaled down: a fresh model repeats its input, the more surely the longer the embeddings are.
            model.model.embed_tokens.weight.mul_(0.05 / model.model.embed_tokens.weight.std())
    return model


def train(options: argparse.Namespace) -> None:
    """Train and write `checkpoint/` and `log.jsonl` under the output folder."""
    tokens = np.load(options.data / "train.npy", mmap_mode="r")
    validation = np.load(options.data / "validation.npy")[: 20 * options.length + 1]
    assistant = assistant_token(options.data / "tokenizer")
    model = prepare(options)
    model.train()
    optims = optimizers(model, options.rate)
    clock = Clock(options.output, options.minutes, options.warm_up)
    for rows in windows(tokens, options.length, options.batch, options.seed):
        if clock.due_to_save():
            save(model, options.output / "checkpoint")
        if clock.due_to_validate():
            clock.note(
                validation_loss=round(validate(model, validation, options.length), 4),
                mtp=agreement(model, model.mtp, read_last, validation, options.length),
            )
        if clock.done():
            break
        loss = joint_loss(model, rows, weights(rows, options.prompt_weight, assistant), options.share)
        update(model, optims, loss, options.rate * clock.share_of_rate())
        clock.step(loss.item(), rows[:, 1:].numel())


def main() -> None:
    """Read the options and train."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="what training.corpus wrote")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True, help="wall time; the learning rate ends at 0")
    parser.add_argument("--start-from", type=Path, help="a checkpoint to go on from instead of fresh weights")
    parser.add_argument("--embeddings", type=Path, help="a checkpoint whose embeddings a fresh model begins with")
    parser.add_argument("--share", type=float, default=0.3, help="weight of the multi-token head's loss")
    parser.add_argument("--prompt-weight", type=float, default=0.1, help="weight of the loss within user turns")
    parser.add_argument("--rate", type=float, default=8e-3, help="highest learning rate")
    parser.add_argument("--warm-up", type=int, default=60, help="steps of rising learning rate")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
