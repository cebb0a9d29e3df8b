"""What relates a model's GGUF file to its Hugging Face folder: names of tensors, transforms of numbers, configuration.

One `Layout` an architecture. Forward is from Hugging Face to GGUF (`training.export`), backward from GGUF to a Hugging
Face folder (`folder.huggingface_folder`); both read the same list of tensors, so that neither can drift.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from benchctl.errors import UsageError
from benchctl.models.gguf_header import GgufHeader
from benchctl.text import one_line

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[Any]]

_Found = TypeVar("_Found")

LAYOUT_VERSION = 1
"""Raised when a derived folder would come out differently for the same source; folders of other versions are unused."""

Config = dict[str, Any]
"""`config.json` as plain JSON data."""


@dataclass(frozen=True)
class Transform:
    """A function of an array (float32, or integers as the file holds them) and its inverse."""

    forward: Callable[[Array], Array]
    """From Hugging Face to GGUF."""
    backward: Callable[[Array], Array]
    """From GGUF to Hugging Face."""
    tolerance: float = 0.0
    """Relative error of `forward`: above 0 only where it calls a function that differs between libraries."""


def _negative_exponential(logarithms: Array) -> Array:
    import numpy as np

    return np.asarray(-np.exp(logarithms))


def _logarithm_of_negative(values: Array) -> Array:
    import numpy as np

    return np.asarray(np.log(-values.astype(np.float64)).astype(np.float32))


SAME = Transform(lambda array: array, lambda array: array)

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


def in_turn(first: Transform, second: Transform) -> Transform:
    """Return `first`, then `second`; the inverse undoes `second` first."""
    return Transform(
        lambda array: second.forward(first.forward(array)),
        lambda array: first.backward(second.backward(array)),
        max(first.tolerance, second.tolerance),
    )


@dataclass(frozen=True)
class TensorPair:
    """One tensor under its two names.

    Backward, a float32 result is written as bfloat16 where that keeps every number, else as float32; int64 and bool
    results are written as they are.
    """

    huggingface: str
    gguf: str
    transform: Transform = SAME


@dataclass(frozen=True)
class Layout:
    """One architecture."""

    architecture: str
    """`general.architecture` of the GGUF file."""
    model_class: str
    """The first of `architectures` in `config.json`."""
    config: Callable[[ModelHeader], Config]
    """`config.json` without `architectures`, `dtype` and the special tokens, which are the same for every architecture.

    Raises UsageError for a model that this layout cannot express.
    """
    tensors: Callable[[Config], Iterable[TensorPair]]
    """Every tensor of the model that this `config.json` describes."""


class ModelHeader:
    """The hyperparameters of a GGUF file, by keys without the architecture's name.

    What is absent raises UsageError unless a default is given.
    """

    def __init__(self, header: GgufHeader) -> None:
        """`header`: of a file that `general.architecture` names the layout of."""
        self.header = header
        self._prefix = header.text("general.architecture") or ""

    def integer(self, key: str, default: int | None = None) -> int:
        """Return an integer."""
        return self._required(self._full(key), self.header.integer(self._full(key)), default)

    def number(self, key: str) -> float:
        """Return a float32 as the shortest decimal number that rounds to it: 1e-05, not 9.999999747378752e-06."""
        import numpy as np

        found = self.header.metadata.get(self._full(key))
        return self._required(self._full(key), float(str(np.float32(found))) if isinstance(found, float) else None)

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a boolean."""
        found = self.header.metadata.get(self._full(key))
        return found if isinstance(found, bool) else default

    def integers(self, key: str, default: list[int] | None = None) -> list[int]:
        """Return an array of integers or booleans (as 0 and 1)."""
        found = self.header.numbers(self._full(key))
        return self._required(self._full(key), None if found is None else [int(number) for number in found], default)

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Return a tensor's shape in the order of numpy and torch, which is the reverse of GGUF's."""
        return self._required(tensor, self._shapes.get(tensor))

    def has(self, tensor: str) -> bool:
        """Return whether the file has a tensor of this name."""
        return tensor in self._shapes

    def _full(self, key: str) -> str:
        return f"{self._prefix}.{key}"

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {tensor.name: tensor.shape[::-1] for tensor in self.header.tensors}

    def _required(self, key: str, found: _Found | None, default: _Found | None = None) -> _Found:
        value = default if found is None else found
        if value is None:
            raise UsageError(
                f"the model file lacks {key}, without which its configuration cannot be rebuilt",
                where=one_line(str(self.header.path)),
            )
        return value
