"""A search for the tensors that break, as stored: every measurement is saved as soon as it was made.

    results/<recipe>/isolate-<type>-<key>/isolation.json   the request and the measurements; rewritten whole
    results/<recipe>/isolate-<type>-<key>/text.txt         the text that was read
    results/<recipe>/isolate-<type>-<key>/logs/            logs, for each program and measurement

The key is a hash of everything that a measurement depends on, so a repeated request finds its own measurements.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field

from benchctl.data.chain import read_sealed, sealed
from benchctl.data.manifest import ModelIdentity, PreflightFinding, PreflightProbe
from benchctl.data.versions import Part, StoredFormat
from benchctl.data.writer import write_whole

ISOLATION = "isolation.json"
TEXT = "text.txt"
FORMAT = StoredFormat("isolation", version=2, steps={1: lambda old: old}, fix="Remove the folder to measure again.")
"""From version 2 on with a digest."""

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


class Severity(Part):
    """How far a model is from its source; see `benchctl.engines.quantizing.Divergence`."""

    model_config = ConfigDict(extra="ignore", from_attributes=True, allow_inf_nan=True)  # logits may be no numbers

    divergence: float | None
    divergence_error: float | None
    worst: float | None
    same_top: float | None
    same_top_error: float | None
    perplexity: float | None
    perplexity_error: float | None


class Measurement(Part):
    """A way to quantize the model, and what came of it."""

    kept: list[str] | None
    """As `Kept`, sorted."""
    severity: Severity | None
    """`None` for a source that is broken itself: nothing was compared with it."""
    findings: list[PreflightFinding]
    """What the health probes found; empty for a healthy model."""
    probes: list[PreflightProbe]
    bytes: int
    """Size of the model's files."""
    wall_s: float

    @property
    def spoken_divergence(self) -> str:
        """The divergence in nats with its error; a dash where nothing was compared."""
        severity = self.severity
        return "–" if severity is None else with_error(severity.divergence, severity.divergence_error, 1, 5)


def with_error(value: float | None, error: float | None, scale: float, digits: int) -> str:
    """Return a value with its standard error, both times `scale`; logits that are not numbers give none."""
    if value is None:
        return "no number"
    spread = "" if error is None else f" ± {scale * error:.{digits}f}"
    return f"{round(scale * value, digits) + 0.0:.{digits}f}{spread}"  # + 0.0: no minus before a zero


class TextRead(Part):
    """The text that every model read."""

    origin: str
    """Where it came from."""
    sha256: str
    context: int
    """Tokens of a piece; the second half of each is scored."""
    places: int
    """Scored tokens."""


class Isolation(Part):
    """A whole search."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)

    schema_version: int = Field(default=FORMAT.version, alias="schema")
    benchctl_version: str
    created_at: str
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

    def measured(self, kept: Kept) -> Measurement | None:
        """Return the measurement of a configuration, if it was made."""
        patterns = None if kept is None else sorted(kept)
        return next((measurement for measurement in self.measurements if measurement.kept == patterns), None)


def write_isolation(folder: Path, isolation: Isolation) -> None:
    """Replace `isolation.json` atomically. Raises StorageError."""
    write_whole(folder / ISOLATION, sealed(isolation.model_dump_json(by_alias=True, indent=1)))


def read_isolation(folder: Path) -> Isolation | None:
    """Read what is there; `None` when nothing is. Raises StorageError for a file that cannot be read."""
    try:
        return read_sealed(FORMAT, folder / ISOLATION, Isolation, since=2)
    except FileNotFoundError:
        return None
