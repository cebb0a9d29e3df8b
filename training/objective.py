"""What a model learns from: windows of the corpus, the weight of every token, the loss."""

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Ids of the tokens that delimit turns; see training/tokenizer.py.
DOCUMENT_END, TURN, TURN_END = 0, 1, 2

Tokens = np.ndarray[tuple[int], np.dtype[np.uint16]]


def windows(tokens: Tokens, length: int, batch: int, seed: int) -> Iterator[Tensor]:
    """Batches of `length + 1` tokens in random order, shifted anew every epoch; shape (batch, length + 1)."""
    rng = np.random.default_rng(seed)
    while True:
        first = int(rng.integers(length))
        starts = rng.permutation(np.arange(first, len(tokens) - length - 1, length))
        for index in range(0, len(starts) - batch + 1, batch):
            rows = [tokens[start : start + length + 1] for start in starts[index : index + batch]]
            yield torch.from_numpy(np.stack(rows).astype(np.int64))


def weights(rows: Tensor, prompt_weight: float, assistant: int) -> Tensor:
    """The weight of every predicted token: `prompt_weight` within user turns, 1 elsewhere; shape (batch, length)."""
    position = torch.arange(rows.shape[1]).expand_as(rows)
    opened = torch.where((rows == TURN) & (rows.roll(-1, 1) != assistant), position, -1).cummax(1).values
    closed = torch.where((rows == TURN_END) | (rows == DOCUMENT_END), position, -1).cummax(1).values
    return torch.where(opened > closed, prompt_weight, 1.0)[:, 1:]


def loss_of(model: nn.Module, rows: Tensor, weight: Tensor, teacher: nn.Module | None = None) -> Tensor:
    """Weighted mean next-token loss in nats; with a teacher, the mean of that and the loss against its distribution."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(input_ids=rows[:, :-1], use_cache=False).logits.float().flatten(0, 1)
        if teacher is not None:
            with torch.no_grad():
                wanted = teacher(input_ids=rows[:, :-1], use_cache=False).logits.float().flatten(0, 1).softmax(-1)
    losses = F.cross_entropy(logits, rows[:, 1:].flatten(), reduction="none")
    if teacher is not None:
        losses = 0.5 * losses + 0.5 * F.cross_entropy(logits, wanted, reduction="none")
    return (losses * weight.flatten()).sum() / weight.sum()


@torch.no_grad()
def validate(model: nn.Module, tokens: Tokens, length: int) -> float:
    """Mean next-token loss over the validation tokens, in nats."""
    model.train(False)
    starts = range(0, len(tokens) - length - 1, length)
    losses = []
    for start in starts:
        rows = torch.from_numpy(tokens[start : start + length + 1].astype(np.int64))[None]
        losses.append(loss_of(model, rows, torch.ones(1, length)).item())
    model.train()
    return sum(losses) / len(losses)
