"""Train one bundled model on the tokenized corpus, one CPU thread a process, for a given time.

    python -m training.train --model tiny-hybrid --data FOLDER --output FOLDER --minutes 65

Hidden matrices learn with Muon, everything else with AdamW; the learning rate rises linearly, then falls to 0 along a
cosine of the *time* spent, so that the run ends when it should at any speed. With `--teacher`, half of the loss is the
divergence from another trained model's next-token distribution.
"""

import argparse
import json
import math
import os
import shutil
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from training import fast_scan
from training.architecture import BUILDERS
from training.objective import loss_of, validate, weights, windows


def optimizers(model: nn.Module, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for embeddings, convolutions, norms and biases."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=rate, weight_decay=0.0, betas=(0.9, 0.95), fused=True),
    ]


def average(model: nn.Module, elapsed: float) -> float:
    """Replace the weights by the mean over all workers; returns the mean elapsed time, the same for every worker."""
    workers = dist.get_world_size()
    clock = torch.tensor([elapsed])
    for values in [clock, *(parameter.data for parameter in model.parameters())]:
        dist.all_reduce(values)
        values.div_(workers)
    return clock.item()


def save(model: PreTrainedModel, folder: Path) -> None:
    """Save a checkpoint so that a reader never sees half of one."""
    fresh, stale = folder.with_suffix(".new"), folder.with_suffix(".old")
    model.save_pretrained(fresh)
    shutil.rmtree(stale, ignore_errors=True)
    if folder.exists():
        folder.rename(stale)
    fresh.rename(folder)


def prepare(options: argparse.Namespace, vocabulary: int) -> tuple[PreTrainedModel, PreTrainedModel | None]:
    """The model to train, fresh or from a checkpoint, and its teacher if there is one."""
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    fast_scan.install()
    teacher: PreTrainedModel | None = None
    if options.teacher:
        teacher = AutoModelForCausalLM.from_pretrained(options.teacher, dtype=torch.float32)
    model: PreTrainedModel
    if options.start_from:
        model = AutoModelForCausalLM.from_pretrained(options.start_from, dtype=torch.float32)
    else:
        model = BUILDERS[options.model](vocabulary)
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


def train(options: argparse.Namespace) -> None:
    """Train and write `checkpoint/` and `log.jsonl` under the output folder."""
    tokens = np.load(options.data / "train.npy", mmap_mode="r")
    validation = np.load(options.data / "validation.npy")[: 40 * options.length + 1]
    vocabulary = json.loads((options.data / "tokenizer" / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    model, teacher = prepare(options, len(vocabulary))
    optims = optimizers(model, options.rate)
    options.output.mkdir(parents=True, exist_ok=True)
    if options.workers > 1:
        meeting = (options.output / "meeting").resolve()
        dist.init_process_group("gloo", f"file://{meeting}", rank=options.worker, world_size=options.workers)
    log = options.output / ("log.jsonl" if options.worker == 0 else f"log-{options.worker}.jsonl")
    began = saved = time.monotonic()
    total, seen, smooth, agreed = 60 * options.minutes, 0, 0.0, 0.0
    for step, rows in enumerate(windows(tokens, options.length, options.batch, options.seed + 1000 * options.worker)):
        elapsed = time.monotonic() - began
        if options.workers > 1:
            if step % options.average_every == 0:
                agreed = average(model, elapsed)
            elapsed = agreed
        done = elapsed >= total
        if options.worker == 0 and (done or time.monotonic() - saved > 60 * options.save_every):
            save(model, options.output / "checkpoint")
            saved = time.monotonic()
        if done or step % options.log_every == 0:
            entry = {"step": step, "tokens": seen, "seconds": round(elapsed), "train_loss": round(smooth, 4)}
            if done or (step and step % (5 * options.log_every) == 0):
                entry["validation_loss"] = round(validate(model, validation, options.length), 4)
            with log.open("a", encoding="utf-8") as lines:
                print(json.dumps(entry), file=lines)
        if done:
            break
        loss = loss_of(model, rows, weights(rows, options.prompt_weight, vocabulary["assistant"]), teacher)
        risen = min(1.0, (step + 1) / options.warm_up)
        update(model, optims, loss, options.rate * risen * 0.5 * (1 + math.cos(math.pi * elapsed / total)))
        seen += rows[:, 1:].numel()
        smooth = loss.item() if step == 0 else 0.98 * smooth + 0.02 * loss.item()


def main() -> None:
    """Read the options and train."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(BUILDERS), required=True)
    parser.add_argument("--data", type=Path, required=True, help="what training.corpus wrote")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True, help="wall time; the learning rate ends at 0")
    parser.add_argument("--start-from", type=Path, help="a checkpoint to go on from instead of fresh weights")
    parser.add_argument("--teacher", type=Path, help="a checkpoint whose distribution to learn")
    parser.add_argument("--prompt-weight", type=float, default=1.0, help="weight of the loss within user turns")
    parser.add_argument("--rate", type=float, default=6e-3, help="highest learning rate")
    parser.add_argument("--warm-up", type=int, default=60, help="steps of rising learning rate")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1, help="processes that train together, started one by one")
    parser.add_argument("--worker", type=int, default=0, help="which of them this is, from 0")
    parser.add_argument("--average-every", type=int, default=20, help="steps between averages of the workers' weights")
    parser.add_argument("--save-every", type=float, default=5.0, help="minutes between checkpoints")
    parser.add_argument("--log-every", type=int, default=50, help="steps between log lines")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
