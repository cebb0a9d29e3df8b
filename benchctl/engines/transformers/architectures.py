"""The architectures whose parts self-speculation knows, by `model_type` of their configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["parallel", "sequential", "attention"]
"""parallel: attention and recurrence side by side in every layer; sequential: each layer has one of them; attention:
every layer has attention alone."""


@dataclass(frozen=True)
class Architecture:
    """How the parts of a layer are called in transformers."""

    kind: Kind
    attention: str = "self_attn"
    recurrent: str | None = None
    mlp: str = "mlp"
    in_tuple: bool = False
    """Whether a layer returns its hidden states in a tuple."""


ARCHITECTURES: Mapping[str, Architecture] = {
    "falcon_h1": Architecture("parallel", recurrent="mamba", mlp="feed_forward", in_tuple=True),
    "qwen3_5_text": Architecture("sequential", recurrent="linear_attn"),
    "qwen2": Architecture("attention"),
    "qwen3": Architecture("attention"),
    "llama": Architecture("attention"),
    "jamba": Architecture("sequential", recurrent="mamba", mlp="feed_forward"),
}
"""Those that the tests run; the self-test at load says of each whether its state survives (Jamba's does not). A further
one is a line here."""
