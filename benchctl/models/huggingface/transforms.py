"""What a tensor's numbers go through between Hugging Face and GGUF, each with its inverse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[Any]]


@dataclass(frozen=True)
class Transform:
    """A function of an array (float32, or integers as the file holds them) and its inverse."""

    forward: Callable[[Array], Array]
    """From Hugging Face to GGUF."""
    backward: Callable[[Array], Array]
    """From GGUF to Hugging Face."""
    tolerance: float = 0.0
    """Relative error of `forward`: above 0 only where it calls a function that differs between libraries."""


def _same(array: Array) -> Array:
    return array


def _negative_exponential(logarithms: Array) -> Array:
    import numpy as np

    return np.asarray(-np.exp(logarithms))


def _logarithm_of_negative(values: Array) -> Array:
    import numpy as np

    return np.asarray(np.log(-values.astype(np.float64)).astype(np.float32))


SAME = Transform(_same, _same)

ONE_ADDED = Transform(lambda weight: weight + weight.dtype.type(1), lambda stored: stored - stored.dtype.type(1))
"""A norm whose weight counts from zero. A bfloat16 weight smaller than 2^-16 comes back rounded to a multiple of 2^-24
or 2^-23, and is stored the same again."""

COLUMN = Transform(lambda vector: vector.reshape(-1, 1), lambda column: column.reshape(-1))
"""(n,) to (n, 1)."""

CONVOLUTION = Transform(lambda kernel: kernel.reshape(kernel.shape[0], -1), lambda rows: rows[:, None, :])
"""A depthwise convolution's kernel, (channels, 1, width) to (channels, width)."""

NEGATIVE_EXPONENTIAL = Transform(_negative_exponential, _logarithm_of_negative, tolerance=1e-6)
"""The state decay, `A = -exp(A_log)`. Exponential functions of two libraries differ by some units in the last place of
float32, about 2e-7; a bfloat16 `A_log` above 2^-12 in size is farther from its neighbours and is found exactly."""


def one_after_other(first: Transform, second: Transform) -> Transform:
    """Return `first`, then `second`; the inverse undoes `second` first."""
    return Transform(
        lambda array: second.forward(first.forward(array)),
        lambda array: first.backward(second.backward(array)),
        max(first.tolerance, second.tolerance),
    )
