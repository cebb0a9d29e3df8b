"""The weights of a GGUF file as Hugging Face names and stores them, exactly."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from benchctl.errors import UsageError
from benchctl.models.gguf_header import TENSOR_TYPES, GgufHeader, Tensor
from benchctl.models.huggingface.layout import TensorPair
from benchctl.models.huggingface.weights import from_bfloat16, to_bfloat16
from benchctl.text import one_line

if TYPE_CHECKING:
    from benchctl.models.huggingface.transforms import Array

_NUMPY = {"f32": "<f4", "f16": "<f2", "bf16": "<u2", "f64": "<f8", "i32": "<i4", "i64": "<i8"}


def huggingface_tensors(header: GgufHeader, pairs: Iterable[TensorPair]) -> dict[str, Array]:
    """Return every tensor by its Hugging Face name; uint16 arrays are bfloat16.

    Raises UsageError for a quantized file, and when the file's tensors are not those of the layout.
    """
    listed = {tensor.name: tensor for tensor in header.tensors}
    required = list(pairs)
    where = one_line(str(header.path))
    quantized = sorted({t.type_name for t in header.tensors if t.type_name not in _NUMPY})
    if quantized:
        known = [name for name in quantized if any(kind.name == name for kind in TENSOR_TYPES.values())]
        what = f"it is quantized ({', '.join(known)})" if known else f"its type {quantized[0]} is not known"
        fix = "Name the bf16, f16 or f32 file that it was made from."
        raise UsageError(f"no Hugging Face folder can be derived from this file: {what}", where=where, fix=fix)
    names = {pair.gguf for pair in required}
    for problem, odd in (("lacks", names - listed.keys()), ("has, beyond its architecture,", listed.keys() - names)):
        if odd:
            some = one_line(", ".join(sorted(odd)[:5]), 200)
            raise UsageError(f"the model file {problem} {len(odd)} tensors: {some}", where=where)
    return {pair.huggingface: _converted(_read(header, listed[pair.gguf]), pair) for pair in required}


def _read(header: GgufHeader, tensor: Tensor) -> Array:
    """Return a tensor's numbers: integers as they are, all others as float32."""
    import numpy as np

    raw = np.memmap(
        header.path, dtype=np.uint8, mode="r", offset=header.data_start + tensor.offset, shape=tensor.nbytes
    )
    numbers = raw.view(_NUMPY[tensor.type_name]).reshape(tensor.shape[::-1])
    if tensor.type_name == "bf16":
        return from_bfloat16(numbers)
    return numbers.astype(np.float32) if numbers.dtype.kind == "f" else np.asarray(numbers)


def _converted(stored: Array, pair: TensorPair) -> Array:
    """Undo the transform; as bfloat16 where doing it again gives what is stored."""
    import numpy as np

    numbers = pair.transform.backward(stored)
    if numbers.dtype != np.float32:
        return numbers
    short = to_bfloat16(numbers)
    again = pair.transform.forward(from_bfloat16(short))
    return short if np.allclose(again, stored, rtol=pair.transform.tolerance, atol=0.0) else numbers
