"""A faster CPU path for transformers' Falcon-H1 mixer, equal to it up to rounding.

transformers computes the state-space scan with the scores of every head apart, although all heads of a group share
them, and the depthwise convolution with a general kernel. `install` replaces both functions in the module.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def chunk_scan(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor,
    dt_bias: Tensor,
    **_: object,
) -> Tensor:
    """The Mamba-2 scan of one group in chunks, without initial or final states.

    Shapes: `hidden_states` (batch, length, heads, width), `dt` (batch, length, heads), `A`, `D`, `dt_bias` (heads),
    `B` and `C` (batch, length, 1, state); the result is like `hidden_states`. `length` is a multiple of `chunk_size`.
    """
    batch, length, heads, width = hidden_states.shape
    state = B.shape[-1]
    chunks = length // chunk_size
    step = F.softplus(dt.float() + dt_bias.float())
    x = (hidden_states.float() * step[..., None]).view(batch, chunks, chunk_size, heads, width).permute(0, 1, 3, 2, 4)
    total = (A.float() * step).view(batch, chunks, chunk_size, heads).permute(0, 1, 3, 2).cumsum(-1)
    keys = B.reshape(batch, chunks, chunk_size, state)
    queries = C.reshape(batch, chunks, chunk_size, state)

    scores = torch.matmul(queries, keys.transpose(-1, -2))
    above = torch.ones(chunk_size, chunk_size, dtype=torch.bool, device=dt.device).triu(1)
    decay = (total[..., :, None] - total[..., None, :]).masked_fill(above, float("-inf")).exp()
    inside = torch.matmul(scores[:, :, None].float() * decay, x)

    end = total[..., -1:]
    weighted = (x * (end - total).exp()[..., None]).transpose(-1, -2)
    states = torch.matmul(weighted, keys[:, :, None].to(weighted.dtype)).float()
    carried = torch.zeros_like(states[:, 0])
    before = []
    for chunk in range(chunks):
        before.append(carried)
        carried = carried * end[:, chunk, :, :, None].exp() + states[:, chunk]
    across = (
        torch.matmul(queries[:, :, None].float(), torch.stack(before, 1).transpose(-1, -2)) * total.exp()[..., None]
    )

    output = (inside + across).permute(0, 1, 3, 2, 4).reshape(batch, length, heads, width)
    return output + D[:, None] * hidden_states


def causal_convolution(hidden_states: Tensor, weight: Tensor, bias: Tensor, activation: str, **_: object) -> Tensor:
    """The depthwise causal convolution as a sum of shifted products, then SiLU; shape (batch, channels, length)."""
    length, taps = hidden_states.shape[-1], weight.shape[-1]
    padded = F.pad(hidden_states, (taps - 1, 0))
    total = bias[:, None] + sum(weight[:, tap, None] * padded[..., tap : tap + length] for tap in range(taps))
    return F.silu(total).to(hidden_states.dtype)


def install() -> None:
    """Put both functions in the place of transformers' own; only for training without a cache."""
    from transformers.models.falcon_h1 import modeling_falcon_h1

    modeling_falcon_h1.mamba2_chunk_scan = chunk_scan
    modeling_falcon_h1.causal_conv1d_fn = causal_convolution
