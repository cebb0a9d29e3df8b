"""A stored search for the tensors that break a model. Every measurement is saved as soon as it is made.

    results/<recipe>/isolate-<type>-<key>/isolation.json   the request and the measurements; rewritten whole
    results/<recipe>/isolate-<type>-<key>/text.txt         the text that was read
    results/<recipe>/isolate-<type>-<key>/logs/            logs, for each program and measurement

The key is a hash of everything that a measurement depends on, so a repeated request finds its own measurements.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field

from benchctl import __version__
from benchctl.data.digests import read_sealed, write_sealed
from benchctl.data.manifest import ModelIdentity, PreflightFinding, PreflightProbe
from benchctl.data.versions import Part, StoredFormat
from benchctl.engines.quantizing import Divergence
from benchctl.measurement.recording import now

ISOLATION = "isolation.json"
TEXT = "text.txt"
FORMAT = StoredFormat("isolation", version=2, fix="Remove the folder to measure again.")

Kept = frozenset[str] | None
"""The patterns of the tensors that keep the source's type; `None`: the source itself, nothing quantized."""


class Family(Part):
    """A family of tensors that the quantization changes: their name without block number and `.weight`."""

    name: str
    tensors: int
    parameters: int
    keep: str
    """The type that its tensors have in the source, the widest where they differ."""
    layers: list[str]
    """A pattern for each of its tensors that belongs to a block; empty where they belong to none."""


class Measurement(Part):
    """A way to quantize the model, and what came of it."""

    kept: list[str] | None
    """The patterns of `Kept`, sorted."""
    severity: Divergence | None
    """Divergence from the source; `None` if the source itself is broken."""
    findings: list[PreflightFinding]
    """What the health probes found; empty for a healthy model."""
    probes: list[PreflightProbe]
    bytes: int
    """Size of the model's files."""
    wall_s: float

    @property
    def divergence(self) -> float:
        """Divergence from the source in nats; infinity if it is not a number."""
        nats = None if self.severity is None else self.severity.divergence
        return float("inf") if nats is None else nats


class TextRead(Part):
    """The text that every model read."""

    origin: str
    """Origin of the text."""
    sha256: str
    context: int
    """Tokens of a piece; the second half of each is scored."""
    places: int
    """Scored tokens."""


class Isolation(Part):
    """A search with all of its measurements."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)

    schema_version: int = Field(default=FORMAT.version, alias="schema")
    benchctl_version: str = __version__
    created_at: str = Field(default_factory=now)
    recipe_name: str
    key: str
    asked: dict[str, Any]
    """The request, of which `key` is the hash."""
    source: ModelIdentity
    type: str
    """The base type, such as `q8_0`."""
    families: list[Family]
    """Largest first."""
    text: TextRead | None = None
    measurements: list[Measurement] = Field(default_factory=list)
    wall_s: float = 0.0

    def measured(self, keep: Kept) -> Measurement | None:
        """Return the measurement of a configuration, if it was made."""
        patterns = None if keep is None else sorted(keep)
        return next((measurement for measurement in self.measurements if measurement.kept == patterns), None)


def write_isolation(folder: Path, isolation: Isolation) -> None:
    """Replace `isolation.json` atomically. Raises StorageError."""
    write_sealed(folder / ISOLATION, isolation, indent=1)


def read_isolation(folder: Path) -> Isolation | None:
    """Read a stored search; `None` if there is none. Raises StorageError if the file cannot be read."""
    try:
        return read_sealed(FORMAT, folder / ISOLATION, Isolation)
    except FileNotFoundError:
        return None
