"""A diagnosis as stored: the predictions of drafts and target at the places of the target's own answers.

    <out>/<recipe>/diagnosis/<id>/diagnosis.json    everything below; rewritten whole after every draft
    <out>/<recipe>/diagnosis/<id>/logs/             engine logs

Every figure of a diagnosis is computed from this file, so that it can be computed again without an engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from benchctl.data.digests import read_sealed, write_sealed
from benchctl.data.manifest import MANIFEST_FORMAT, Manifest
from benchctl.data.traces import DiagnosisSettings, Expectations
from benchctl.data.versions import Part, StoredFormat

DOCUMENT = "diagnosis.json"
FOLDER = "diagnosis"
FORMAT = StoredFormat("diagnosis", version=2, fix="Make another: benchctl diagnose RECIPE")


Status = Literal["started", "finished", "interrupted", "failed"]


class ForcedAnswer(Expectations):
    """What draft and target predict along the answer to a prompt."""

    task: str
    prompt_idx: int
    temperature: float
    tokens: int


class DraftCosts(Part):
    """The cost of a step of the draft and of the target. `None`: not known."""

    target_step_s: float | None = None
    draft_step_s: float | None = None
    checks_s: dict[int, float] = Field(default_factory=dict)
    """Seconds of a pass of the target, by the number of tokens that it reads."""
    target_flops: float | None = None
    """Floating-point operations of a decode step."""
    draft_flops: float | None = None
    flops_how: str = ""
    """How the operations were counted."""


class DiagnosedDraft(Part):
    """A way to draft, whatever its depth."""

    name: str
    arms: list[str]
    """The recipe's arms that draft in this way."""
    kind: Literal["pair", "part"]
    """pair: a model of its own; part: the target with something left out."""
    what: dict[str, object] = Field(default_factory=dict)
    """The engine's description, such as the parts that are left out."""
    exact: bool
    """Whether all logits were read. If not, only the likeliest tokens were."""
    answers: list[ForcedAnswer] = Field(default_factory=list)
    costs: DraftCosts = Field(default_factory=DraftCosts)
    error: str | None = None
    """Why nothing, or nothing more, was read."""


class Diagnosis(Part):
    """A whole diagnosis."""

    schema_version: int = Field(default=FORMAT.version, alias="schema")
    status: Status = "started"
    settings: DiagnosisSettings
    manifest: Manifest
    """Engine, models, arms, prompts, machine and command, as in the manifest of a run."""
    drafts: list[DiagnosedDraft] = Field(default_factory=list)
    not_reached: dict[str, str] = Field(default_factory=dict)
    """Arms that cannot be diagnosed, and why."""

    @field_validator("manifest", mode="before")
    @classmethod
    def _of_this_version(cls, manifest: object) -> object:
        """Check the manifest's own version."""
        return MANIFEST_FORMAT.current(manifest, f"manifest in {DOCUMENT}") if isinstance(manifest, dict) else manifest


def write_diagnosis(folder: Path, diagnosis: Diagnosis) -> None:
    """Replace a diagnosis atomically. Raises StorageError."""
    write_sealed(folder / DOCUMENT, diagnosis)


def read_diagnosis(folder: Path) -> Diagnosis:
    """Read a diagnosis. Raises FileNotFoundError, and StorageError for a file that is damaged or of a newer version."""
    return read_sealed(FORMAT, folder / DOCUMENT, Diagnosis)
