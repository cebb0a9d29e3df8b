"""What relates a model's GGUF file to its Hugging Face folder: names, transforms and configuration, both ways.

One `Layout` an architecture. Forward is from Hugging Face to GGUF (`training.export`), backward from GGUF to a Hugging
Face folder (`folder.huggingface_folder`); both read the same list of tensors, so that neither can drift.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from benchctl.errors import UsageError
from benchctl.models.gguf_header import GgufHeader
from benchctl.models.huggingface.transforms import SAME, Transform
from benchctl.text import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence


_Found = TypeVar("_Found")

LAYOUT_VERSION = 1
"""Raised when a derived folder would come out differently for the same source; folders of other versions are unused."""

Config = dict[str, Any]
"""`config.json` as plain JSON data."""

Metadata = Mapping[str, "int | float | bool | str | Sequence[int] | Sequence[bool]"]
"""GGUF metadata of one architecture, its name left out: `attention.head_count`, not `qwen3.attention.head_count`.

An int is written as u32, a float as f32, sequences as arrays, in the order of the mapping.
"""


@dataclass(frozen=True)
class TensorPair:
    """One tensor under its two names.

    Backward, a float32 result is written as bfloat16 where that keeps every number, else as float32; int64 and bool
    results are written as they are. Forward, matrices are written as bfloat16, vectors as float32, int64 as int64.
    """

    huggingface: str
    gguf: str
    transform: Transform = SAME
    full_precision: bool = False
    """A matrix that llama.cpp expects in float32."""


@dataclass(frozen=True)
class Layout:
    """One architecture. `config` and `metadata` are each other's inverse in what decides the model's output."""

    architecture: str
    """`general.architecture` of the GGUF file."""
    model_class: str
    """The first of `architectures` in `config.json`."""
    config: Callable[[ModelHeader], Config]
    """`config.json` without `architectures`, `dtype` and the special tokens, which are the same for every architecture.

    Raises UsageError for a model that this layout cannot express.
    """
    metadata: Callable[[Config], Metadata]
    """The hyperparameters as GGUF metadata, of a complete `config.json`. Raises UsageError likewise."""
    tensors: Callable[[Config], Iterable[TensorPair]]
    """Every tensor of the model that this `config.json` describes."""


class ModelHeader:
    """The hyperparameters of a GGUF file, by keys without the architecture's name.

    What is absent raises UsageError unless a default is given.
    """

    def __init__(self, header: GgufHeader) -> None:
        """`header`: of a file that `general.architecture` names the layout of."""
        self.header = header
        self.architecture = header.text("general.architecture") or ""

    def integer(self, key: str, default: int | None = None) -> int:
        """Return an integer."""
        return self._required(self._full(key), self.header.integer(self._full(key)), default)

    def number(self, key: str, default: float | None = None) -> float:
        """Return a float32 as the shortest decimal number that rounds to it: 1e-05, not 9.999999747378752e-06."""
        import numpy as np

        found = self.header.metadata.get(self._full(key))
        short = float(str(np.float32(found))) if isinstance(found, float) else None
        return self._required(self._full(key), short, default)

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Return a boolean."""
        found = self.header.metadata.get(self._full(key))
        return self._required(self._full(key), found if isinstance(found, bool) else None, default)

    def integers(self, key: str, default: list[int] | None = None) -> list[int]:
        """Return an array of integers or booleans (as 0 and 1)."""
        found = self.header.numbers(self._full(key))
        return self._required(self._full(key), None if found is None else [int(item) for item in found], default)

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Return a tensor's shape in the order of numpy and torch, which is the reverse of GGUF's."""
        return self._required(tensor, self._shapes.get(tensor), None)

    def has(self, tensor: str) -> bool:
        """Return whether the file has a tensor of this name."""
        return tensor in self._shapes

    def _full(self, key: str) -> str:
        return f"{self.architecture}.{key}"

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {tensor.name: tensor.shape[::-1] for tensor in self.header.tensors}

    def _required(self, key: str, found: _Found | None, default: _Found | None) -> _Found:
        value = default if found is None else found
        if value is None:
            raise UsageError(
                f"the model file lacks {key}, without which its configuration cannot be rebuilt",
                where=one_line(str(self.header.path)),
            )
        return value


def with_rope_theta(theta: float) -> Config:
    """Return the keys that name an unscaled rotary embedding of this base to either generation."""
    return {"rope_theta": theta, "rope_parameters": {"rope_type": "default", "rope_theta": theta}}


def rope_theta(config: Config) -> float:
    """Return the base. Raises UsageError for a scaled embedding, which the layouts do not write."""
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind != "default":
        raise UsageError(f"a rotary embedding of type {kind} cannot be written", where="config.json")
    theta = parameters.get("rope_theta") or config.get("rope_theta") or 10000.0
    return float(theta)
