"""Models whose full precision is sound and whose quantization is not, because of one family of tensors or several.

A quantization in blocks stores 32 neighbours of a row with one scale, so one large number among them costs the others
their bits: outlier channels are what breaks real models. Here a few input channels are silenced at their source (a
norm's weight, or the rows that make them, set to zero), and the columns of one family that read them are filled with
large numbers. In full precision those are multiplied by zero: the function is that of the model with the channels
silenced, bit for bit. Any block format loses the neighbours of the large numbers.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[Any]

BLOCK = 32
HEAD = 64
HEADS_A_KEY = 2
FAMILIES = ("attn_k", "attn_output", "attn_q", "attn_v", "ffn_down", "ffn_gate", "ffn_up", "ssm_in", "ssm_out")
"""Of bundled:tiny-hybrid, all that a `blk.` has; its token embedding has no input channel to be silenced."""
_NORMS = {"ffn_gate": "ffn_norm", "ffn_up": "ffn_norm"}
_LAYERS = 4
_WIDTH = {"ffn_down": 512}


@dataclass(frozen=True)
class Outliers:
    """Damage to one family."""

    family: str
    layers: tuple[int, ...]
    blocks: int
    """How many blocks of a row hold an outlier, of 8 (16 in ffn_down)."""
    power: int
    """The outliers are 2^power times the family's largest weight."""


def random_outliers(family: str, generator: np.random.Generator, *, severe: bool = False) -> Outliers:
    """Draw how bad the damage is: from what no quantization shows to what ruins every answer, or `severe` alone."""
    fewest_layers, fewest_blocks, least_power = (3, 4, 5) if severe else (2, 2, 2)
    layers = sorted(generator.choice(_LAYERS, size=generator.integers(fewest_layers, _LAYERS + 1), replace=False))
    blocks, power = generator.integers(fewest_blocks, 9), generator.integers(least_power, 9)
    return Outliers(family, tuple(map(int, layers)), int(blocks), int(power))


def write_model(
    source: Path, target: Path, damage: Sequence[Outliers], generator: np.random.Generator, *, loud: bool = True
) -> None:
    """Copy the model and damage it; without `loud` the channels are silenced, and no outlier is written."""
    import gguf
    import numpy as np

    shutil.copy(source, target)
    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(target, "r+").tensors}
    for damaged in damage:
        width = _WIDTH.get(damaged.family, 256)
        for layer in damaged.layers:
            chosen = generator.choice(width // BLOCK, size=min(damaged.blocks, width // BLOCK), replace=False)
            channels = np.array([int(block) * BLOCK + int(generator.integers(BLOCK)) for block in chosen])
            columns = _silence(tensors, damaged.family, layer, channels)
            bits = tensors[f"blk.{layer}.{damaged.family}.weight"].view(np.uint16)
            # Drawn in any case, so that the same channels follow.
            shouted = _shouted(bits, len(columns), damaged.power, generator)
            if loud:
                bits[:, columns] = shouted


def _silence(tensors: dict[str, Array], family: str, layer: int, channels: Array) -> Array:
    """Make input channels of a family zero; return its columns that read them."""
    import numpy as np

    def weights(name: str) -> Array:
        tensor = tensors[f"blk.{layer}.{name}.weight"]
        return tensor if tensor.dtype == np.float32 else tensor.view(np.uint16)  # zero is zero in bf16, too

    if family == "ffn_down":
        weights("ffn_up")[channels] = 0
    elif family == "ssm_out":  # the first rows of ssm_in make the gate z, and silu(0) is 0
        weights("ssm_in")[channels] = 0
    elif family == "attn_output":  # two heads read each value channel
        head, offset = channels // (HEADS_A_KEY * HEAD), channels % HEAD
        weights("attn_v")[head * HEAD + offset] = 0
        return np.concatenate([(HEADS_A_KEY * head + turn) * HEAD + offset for turn in range(HEADS_A_KEY)])
    else:
        name = _NORMS.get(family, "attn_norm")
        norm = tensors.get(f"blk.{layer}.{name}.weight", tensors.get(f"blk.{layer}.{name}"))
        assert norm is not None
        norm[channels] = 0
    return channels


def _shouted(bits: Array, columns: int, power: int, generator: np.random.Generator) -> Array:
    """Return columns of large bf16 numbers of either sign for a bf16 matrix."""
    import numpy as np

    largest = np.abs((bits.astype(np.uint32) << 16).view(np.float32)).max()
    shape = (bits.shape[0], columns)
    values = largest * 2.0**power * generator.uniform(0.5, 1.0, shape) * generator.choice([-1.0, 1.0], shape)
    shouted: Array = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return shouted
