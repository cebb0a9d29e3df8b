"""Train one bundled model on the tokenized corpus, one CPU thread a process, for a given time.

    python -m training.train --model tiny-hybrid --data FOLDER --output FOLDER --minutes 65

Hidden matrices learn with Muon, everything else with AdamW; the learning rate rises linearly, then falls to 0 along a
cosine of the *time* spent, so that the run ends when it should at any speed. With `--teacher`, half of the loss is the
divergence from another trained model's next-token distribution.
"""

import argparse
import os
import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from training import workers
from training.architectures import BUILDERS
from training.objective import loss_of, validate, weights, windows
from training.schedule import Clock, assistant_token
from training.tokenizer import VOCABULARY


def optimizers(model: nn.Module, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for embeddings, convolutions, norms and biases."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    vectors = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(vectors, lr=rate, weight_decay=0.0, betas=(0.9, 0.95), fused=True),
    ]


def save(model: PreTrainedModel, folder: Path) -> None:
    """Save a checkpoint so that a reader never sees half of one."""
    fresh, stale = folder.with_suffix(".new"), folder.with_suffix(".old")
    model.save_pretrained(fresh)
    shutil.rmtree(stale, ignore_errors=True)
    if folder.exists():
        folder.rename(stale)
    fresh.rename(folder)


def with_embeddings(model: PreTrainedModel, checkpoint: Path) -> None:
    """Give a fresh model the embeddings of a trained one of the same tokenizer and width."""
    embeddings = load_file(checkpoint / "model.safetensors")["model.embed_tokens.weight"]
    with torch.no_grad():
        model.get_input_embeddings().weight.copy_(embeddings)


def prepare(options: argparse.Namespace) -> tuple[PreTrainedModel, PreTrainedModel | None]:
    """The model to train, fresh or from a checkpoint, and its teacher if there is one."""
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    model = BUILDERS[options.model](VOCABULARY)
    if options.start_from:
        model = type(model).from_pretrained(options.start_from, dtype=torch.float32)
    elif options.embeddings:
        with_embeddings(model, options.embeddings)
    teacher: PreTrainedModel | None = None
    if options.teacher:
        teacher = AutoModelForCausalLM.from_pretrained(options.teacher, dtype=torch.float32)
    model.train()
    return model, teacher


def update(model: nn.Module, optims: list[torch.optim.Optimizer], loss: Tensor, rate: float) -> None:
    """One step of every optimizer at the given learning rate, gradients clipped to norm 1."""
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optim in optims:
        for group in optim.param_groups:
            group["lr"] = rate
        optim.step()
        optim.zero_grad(set_to_none=True)


def clock_of(options: argparse.Namespace) -> Clock:
    """The run's clock; with several workers, one that they share."""
    kind, log = Clock, "log.jsonl"
    if options.workers > 1:
        workers.join(options.output, options.worker, options.workers)
        kind = workers.SharedClock
        log = f"log-{options.worker}.jsonl" if options.worker else log
    return kind(options.output, options.minutes, options.warm_up, log=log, minutes_between_saves=options.save_every)


def train(options: argparse.Namespace) -> None:
    """Train and write `checkpoint/` and `log.jsonl` under the output folder."""
    tokens = np.load(options.data / "train.npy", mmap_mode="r")
    validation = np.load(options.data / "validation.npy")[: 40 * options.length + 1]
    assistant = assistant_token(options.data / "tokenizer")
    model, teacher = prepare(options)
    optims = optimizers(model, options.rate)
    clock = clock_of(options)
    for step, rows in enumerate(windows(tokens, options.length, options.batch, options.seed + 1000 * options.worker)):
        if options.workers > 1 and step % workers.SharedClock.EVERY == 0:
            workers.average_weights(model)
        if options.worker == 0 and clock.due_to_save():
            save(model, options.output / "checkpoint")
        if clock.due_to_validate():
            clock.note(validation_loss=round(validate(model, validation, options.length), 4))
        if clock.done():
            break
        loss = loss_of(model, rows, weights(rows, options.prompt_weight, assistant), teacher)
        update(model, optims, loss, options.rate * clock.share_of_rate())
        clock.step(loss.item(), rows[:, 1:].numel())


def main() -> None:
    """Read the options and train."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(BUILDERS), required=True)
    parser.add_argument("--data", type=Path, required=True, help="what training.corpus wrote")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True, help="wall time; the learning rate ends at 0")
    parser.add_argument("--start-from", type=Path, help="a checkpoint to go on from instead of fresh weights")
    parser.add_argument("--embeddings", type=Path, help="a checkpoint whose embeddings a fresh model begins with")
    parser.add_argument("--teacher", type=Path, help="a checkpoint whose distribution to learn")
    parser.add_argument("--prompt-weight", type=float, default=1.0, help="weight of the loss within user turns")
    parser.add_argument("--rate", type=float, default=6e-3, help="highest learning rate")
    parser.add_argument("--warm-up", type=int, default=60, help="steps of rising learning rate")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1, help="processes that train together, started one by one")
    parser.add_argument("--worker", type=int, default=0, help="which of them this is, from 0")
    parser.add_argument("--save-every", type=float, default=5.0, help="minutes between checkpoints")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
