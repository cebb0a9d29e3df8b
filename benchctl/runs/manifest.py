"""The manifest: everything about a run that is not a request, kept in `manifest.json` beside the records.

It is rewritten whole and atomically after every cell. Paths below the user's home are written with `~`, so that a run
can be shared. No secret is ever written: of the environment only the names that benchctl itself set.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from benchctl.records import SCHEMA_VERSION

RunStatus = Literal["started", "finished", "interrupted", "failed"]
CellStatus = Literal["finished", "failed", "interrupted"]


class Part(BaseModel):
    """Base of every part: a newer benchctl may have added keys, which are ignored on reading."""

    model_config = ConfigDict(extra="ignore")


class FileIdentity(Part):
    """A file by name and content."""

    name: str
    size: int
    sha256: str


class ModelIdentity(Part):
    """A model of the pair."""

    source: str
    path: str
    files: list[FileIdentity]
    facts: dict[str, Any] = Field(default_factory=dict)
    """From the GGUF header: architecture, parameters, quantization, vocabulary size, context, hybrid or not."""


class EngineIdentity(Part):
    """The engine that ran, and what probing it found."""

    kind: str
    binary: str
    found_in: str
    version: str | None
    build: str | None
    commit: str | None
    speculation_types: list[str]
    details: dict[str, Any] = Field(default_factory=dict)
    """The adapter's own facts: flag dialect, devices, SHA-256 of the binary and its sibling libraries."""


class ArmIdentity(Part):
    """An arm as it was run."""

    name: str
    baseline: bool
    speculation: dict[str, Any] | None
    """The recipe's words: type, max, min, …; `None` for the target alone."""
    argv: list[str]
    """The exact command line; `{port}` stands for the free port that each cell was given."""
    env: list[str]
    """`NAME=value` of the settings that benchctl added to the scrubbed environment."""


class PromptIdentity(Part):
    """A prompt of the workload."""

    task: str
    prompt_idx: int
    sha256: str
    """Of the prompt as it stands in the suite (the rendered text's hash is in the records)."""


class CellError(Part):
    """Why a cell failed; `log_tail` is untrusted text."""

    kind: str
    message: str
    remedy: str | None = None
    log_tail: list[str] = Field(default_factory=list)


class AttestationRecord(Part):
    """`benchctl.engines.base.Attestation` as it is stored."""

    state: Literal["off", "active", "idle", "failed"]
    evidence: list[str]
    reason: str | None = None
    remedy: str | None = None


class Cell(Part):
    """One process: an arm in a block. A resumed cell has several entries with rising `attempt`; the last counts."""

    block: int
    arm: str
    order: int
    attempt: int = 0
    status: CellStatus
    started_at: str
    wall_s: float
    """From launch to the end of stopping."""
    startup_s: float | None = None
    """From launch to healthy."""
    load_before: float | None = None
    """One-minute load average before the launch."""
    exit_status: int | None = None
    log: str
    """File name below the run folder."""
    attestation: AttestationRecord | None = None
    error: CellError | None = None


class Manifest(Part):
    """A whole run."""

    schema_version: int = Field(default=SCHEMA_VERSION, alias="schema")
    run: str
    """The run's folder name: time stamp and a few hex digits, such as `20261121-110500-3fa9`."""
    benchctl_version: str
    status: RunStatus
    created_at: str
    finished_at: str | None = None
    recipe_name: str
    recipe: dict[str, Any]
    """The recipe as run: expanded arms, defaults filled in, overrides of the command line applied."""
    recipe_folder: str | None = None
    """Where the recipe's relative paths start; `--resume` may be called from anywhere."""
    recipe_sha256: str
    workload_sha256: str
    """Of prompts, sampling and model files: what must be equal before two runs are compared."""
    baseline: str
    blocks: int
    engine: EngineIdentity
    target: ModelIdentity
    draft: ModelIdentity | None
    arms: list[ArmIdentity]
    suite: dict[str, Any] = Field(default_factory=dict)
    """name, kind, licence and SHA-256 of the prompts file."""
    prompts: list[PromptIdentity]
    machine: dict[str, Any] = Field(default_factory=dict)
    """CPU, cores, memory, accelerators, driver, OS, governor: see `benchctl.runs.machine`."""
    command: list[str] = Field(default_factory=list)
    """The benchctl command line."""
    cells: list[Cell] = Field(default_factory=list)
    warnings: list[str] = Field(default_factory=list)

    model_config = ConfigDict(extra="ignore", populate_by_name=True)
