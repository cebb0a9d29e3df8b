"""safetensors files as numpy arrays; bfloat16, which numpy lacks, is held as uint16: the upper half of float32."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


_NUMPY = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "U8": "|u1",
    "BOOL": "|b1",
}


def write_weights(path: Path, tensors: Mapping[str, Array]) -> None:
    """Write the tensors by name. Raises OSError when the file cannot be written."""
    import numpy as np
    from safetensors import TensorSpec, serialize

    arrays = {name: np.ascontiguousarray(array) for name, array in tensors.items()}  # alive until they are written
    specs = {
        name: TensorSpec(
            dtype="bfloat16" if array.dtype == np.uint16 else array.dtype.name,
            shape=array.shape,
            data_ptr=array.ctypes.data,
            data_len=array.nbytes,
        )
        for name, array in arrays.items()
    }
    path.write_bytes(serialize(specs, metadata={"format": "pt"}))


def read_weights(path: Path) -> dict[str, Array]:
    """Read all tensors, floating point ones as float32. Raises SafetensorError for a damaged file."""
    import numpy as np
    import safetensors

    deserialize: Any = safetensors.deserialize  # the package declares no types for it
    found: dict[str, Array] = {}
    for name, tensor in deserialize(path.read_bytes()):
        array = np.frombuffer(tensor["data"], dtype=_NUMPY[tensor["dtype"]]).reshape(tensor["shape"])
        if tensor["dtype"] == "BF16":
            array = from_bfloat16(array)
        found[name] = array.astype(np.float32) if array.dtype.kind == "f" else array
    return found
