"""bfloat16 as the upper half of float32, in numpy, which has no such type; held as uint16."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchctl.models.huggingface.transforms import Array


def to_bfloat16(numbers: Array) -> Array:
    """Round float32 numbers to the nearest bfloat16, ties to even; a NaN stays one."""
    import numpy as np

    bits = np.ascontiguousarray(numbers, dtype=np.float32).view(np.uint32)
    nearest = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(bits.view(np.float32)), quiet, nearest).astype(np.uint16).reshape(numbers.shape)


def from_bfloat16(bits: Array) -> Array:
    """Return the float32 numbers, exactly."""
    import numpy as np

    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
