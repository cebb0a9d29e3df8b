"""Reading an answer again in the steps in which it was made, by the target alone.

Every step is a pass of the same start and width: the token before the draft, the drafted tokens that were accepted, and
fillers in place of those that were not. After a rejection the cache is made anew from a copy of the one before the
step: `State.keep`, with which decoding goes back, has no part in it, so that a fault of it is not repeated here.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch

from benchctl.engines.transformers.serving.decode import Chooser
from benchctl.engines.transformers.serving.decoder import Decoder, State, Tokens

_FILLERS = (1, 7919, 104729)
"""Strides, by which three sets of filler tokens differ."""

Deviation = tuple[int, int, float]
"""A token of an answer that its row of logits does not rank first: its index, the likeliest token, the nats between."""


def replay(
    decoder: Decoder, prompt: Sequence[int], answer: Sequence[int], steps: Sequence[Sequence[int]], chooser: Chooser
) -> list[Deviation]:
    """Return the tokens of `answer` that are not the likeliest of their rows; one as likely as the likeliest is.

    `steps`: pairs (drafted, accepted), of which the first is the pass that read the prompt. Raises ValueError where
    they do not make the answer, or where what stands in place of rejected tokens changes the rows before it.
    """
    deviations, context, unread, index = list[Deviation](), list[int](), list(prompt), 0
    with torch.inference_mode():
        state = State(decoder)
        for drafted, accepted in steps:
            brought = answer[index : index + accepted + 1]
            if not 0 <= accepted <= drafted or len(brought) < max(accepted, 1):
                raise ValueError("the steps do not make the answer")
            context += unread
            read, start = [*unread, *brought[:accepted]], state.read
            before = copy.deepcopy(state.cache) if drafted > accepted else None
            logits = state.verify(read + _fillers(decoder, read, drafted - accepted, _FILLERS[0]), keep=drafted + 1)
            deviating = _deviations(chooser, logits[: len(brought)], context, brought, index)
            if deviating and before is not None:
                _check_fillers(decoder, before, start, read, logits[: accepted + 1], width=drafted + 1)
            deviations += deviating
            if before is not None:
                state.rebuild(before, start + len(read))
            context += brought[:-1]
            unread = list(brought[-1:])
            index += len(brought)
    if index != len(answer):
        raise ValueError("the steps do not make the answer")
    return deviations


def _fillers(decoder: Decoder, read: Sequence[int], count: int, stride: int) -> list[int]:
    return [(read[-1] + stride * (place + 1)) % decoder.vocabulary for place in range(count)]


def _deviations(
    chooser: Chooser, logits: torch.Tensor, context: Sequence[int], tokens: Sequence[int], index: int
) -> list[Deviation]:
    """Compare rows of logits with the tokens that followed, of which the first is the answer's at `index`."""
    processed = chooser.processed(logits, context, tokens[:-1])
    allowed = chooser.allowed(processed)
    likeliest = allowed.argmax(-1).tolist()
    deviations = []
    for row, (token, best) in enumerate(zip(tokens, likeliest, strict=True)):
        if not allowed[row, token] >= allowed[row, best]:  # also where there is no number
            gap = float(processed[row, best].float() - processed[row, token].float())
            deviations.append((index + row, best, max(0.0, gap)))
    return deviations


def _check_fillers(
    decoder: Decoder, before: Tokens, start: int, read: Sequence[int], logits: torch.Tensor, *, width: int
) -> None:
    """Raise ValueError if other fillers change the rows before them, as where experts share a batch.

    `logits`: of those rows, the first of the `width` that were kept.
    """
    for stride in _FILLERS[1:]:
        tokens = [*read, *_fillers(decoder, read, width - len(logits), stride)]
        rows = decoder.forward(tokens, start, copy.deepcopy(before), keep=width)
        if not torch.equal(rows[: len(logits)], logits):
            raise ValueError("this model computes a token otherwise where other tokens stand behind it in the pass")
