"""Attention of a one-layer draft that is trained on what it sees when it drafts several tokens in a row.

A draft reads a token and a state of the position before it. In step 0 all states are the target's. In step k it reads
its own output of step k - 1, as it must when it drafts its k-th token more; it then attends to the keys of step 0 up to
k positions back, and to its own keys of steps 1 to k after that (EAGLE-3's "training-time test",
https://arxiv.org/abs/2503.01840, section 3.2).
"""

from torch import Tensor, cat, ones
from torch import bool as torch_bool
from torch.nn.functional import pad


class DraftKeys:
    """Keys and values of the steps so far; each (batch, heads, length, width)."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention of the next step, (batch, heads, length, width); `key` and `value` may have fewer heads."""
        groups = query.shape[1] // key.shape[1]
        self.keys.append(key.repeat_interleave(groups, 1))
        self.values.append(value.repeat_interleave(groups, 1))
        step, length = len(self.keys) - 1, query.shape[2]
        scaled = query * query.shape[-1] ** -0.5
        unseen = ones(length, length, dtype=torch_bool).triu(1 - step)
        scores = [(scaled @ self.keys[0].transpose(-1, -2)).float().masked_fill(unseen, float("-inf"))]
        # Keys of step j stand step - j positions back. The first positions have none there and see zeros.
        for back in range(step):
            scores.append((scaled * later(self.keys[step - back], back)).sum(-1, keepdim=True).float())
        shares = cat(scores, -1).softmax(-1).to(value.dtype)
        result = shares[..., :length] @ self.values[0]
        for back in range(step):
            result = result + shares[..., length + back, None] * later(self.values[step - back], back)
        return result


def later(rows: Tensor, positions: int = 1) -> Tensor:
    """Rows moved so many positions later in the last dimension but one, zeros before them."""
    return pad(rows, (0, 0, positions, 0))[..., : rows.shape[-2], :]
