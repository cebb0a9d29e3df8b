"""What the sequential model and its drafts learn, and how often the drafts agree with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.draft_attention import DraftKeys, later
from training.objective import Tokens

if TYPE_CHECKING:
    from training.architectures.qwen3_5 import SequentialModel


class Draft(Protocol):
    """A one-layer draft that reads tokens and states."""

    def first(self, inputs: Tensor) -> Tensor:
        """The states of the first step, from what was read of the target."""
        ...

    def __call__(
        self, embedded: Tensor, states: Tensor, turned: tuple[Tensor, Tensor], keys: DraftKeys
    ) -> tuple[Tensor, Tensor]:
        """The states to read in the next step and those to project, (batch, length, hidden) like the arguments."""
        ...


@dataclass(frozen=True)
class Heard:
    """What the target makes of its text."""

    logits: Tensor
    """(batch, length, vocabulary)."""
    embedded: Tensor
    """The tokens, (batch, length, hidden)."""
    states: tuple[Tensor, ...]
    """The input of every layer, then the last state after the final norm; each like `embedded`."""

    def rows(self, number: int) -> Heard:
        """The first rows of the batch."""
        return Heard(self.logits[:number], self.embedded[:number], tuple(state[:number] for state in self.states))


@dataclass(frozen=True)
class Reading:
    """What a draft reads of its target's text, and what the target says there."""

    logits: Tensor
    """The target's at the draft's positions, (batch, length, vocabulary)."""
    embedded: Tensor
    """The draft's tokens, (batch, length, hidden)."""
    inputs: Tensor
    """What the draft makes its first states of: the target's at the position before each token."""
    turned: tuple[Tensor, Tensor]
    """Rotary cosine and sine of the draft's positions."""

    def drafted(self, draft: Draft, steps: int) -> Iterator[Tensor]:
        """What the draft projects on the vocabulary as its 1st to `steps`-th token in a row."""
        keys, states = DraftKeys(), draft.first(self.inputs)
        for _ in range(steps):
            states, ahead = draft(self.embedded, states, self.turned, keys)
            yield ahead
            states = later(states)


Read = Callable[["SequentialModel", Heard], Reading]


def hear(model: SequentialModel, rows: Tensor) -> Heard:
    """Run the target over `rows` (batch, length)."""
    embedded = model.model.embed_tokens(rows)
    output = model.model(inputs_embeds=embedded, use_cache=False, output_hidden_states=True)
    last = output.last_hidden_state
    return Heard(model.lm_head(last), embedded, (*output.hidden_states[: len(model.model.layers)], last))


def rotation(module: nn.Module, states: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary cosine and sine for positions 0 to length - 1 of `states` (batch, length, any)."""
    cosine, sine = module(states, torch.arange(states.shape[1])[None])
    return cosine, sine


def read_last(model: SequentialModel, heard: Heard) -> Reading:
    """For the multi-token head: the target's state after its final norm, zeros before the first token."""
    turned = rotation(model.model.rotary_emb, heard.embedded)
    return Reading(heard.logits, heard.embedded, later(heard.states[-1]), turned)


def joint_loss(model: SequentialModel, rows: Tensor, weight: Tensor, share: float) -> Tensor:
    """Weighted next-token loss of the model in nats, and `share` times that of its head on the first row."""
    labels = rows[:, 1:]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        heard = hear(model, rows[:, :-1])
        (ahead,) = read_last(model, heard.rows(1)).drafted(model.mtp, 1)
        logits = torch.cat([heard.logits, model.lm_head(ahead)])
    losses = F.cross_entropy(logits.float().flatten(0, 1), torch.cat([labels, labels[:1]]).flatten(), reduction="none")
    trunk, head = losses[: weight.numel()], losses[weight.numel() :]
    return (trunk * weight.flatten()).sum() / weight.sum() + share * (head * weight[0]).sum() / weight[0].sum()


def distilled(model: SequentialModel, draft: Draft, reading: Reading, weight: Tensor, steps: int) -> Tensor:
    """Cross-entropy in nats between the target's distribution and the draft's, mean over 1 to `steps` tokens in a row.

    `weight` is (batch, length) of the predicted tokens. The k-th token in a row has no sound input at the first k - 1
    positions, which are left out.
    """
    wanted = reading.logits.float().softmax(-1)
    weight = weight[:, -wanted.shape[1] :]
    total = torch.zeros(())
    for step, ahead in enumerate(reading.drafted(draft, steps)):
        guess = model.lm_head(ahead[:, step:]).float()
        losses = F.cross_entropy(guess.flatten(0, 1), wanted[:, step:].flatten(0, 1), reduction="none")
        counted = weight[:, step:].flatten()
        total = total + (losses * counted).sum() / counted.sum()
    return total / steps


@torch.no_grad()
def agreement(
    model: SequentialModel, draft: Draft, read: Read, tokens: Tokens, length: int, steps: int = 3
) -> list[float]:
    """How often the draft's choice for the 1st to `steps`-th token in a row is the target's, on given text."""
    hits, total = [0] * steps, 0
    for start in range(0, len(tokens) - length, length):
        reading = read(model, hear(model, torch.from_numpy(tokens[start : start + length].astype("int64"))[None]))
        choice = reading.logits.argmax(-1)[:, steps:]
        total += choice.numel()
        for step, ahead in enumerate(reading.drafted(draft, steps)):
            hits[step] += int((model.lm_head(ahead).argmax(-1)[:, steps:] == choice).sum())
    return [round(hit / total, 4) for hit in hits]
