"""A diagnosis as stored: the predictions of drafts and target at the places of the target's own answers.

    <out>/<recipe>/diagnosis/<id>/diagnosis.json    everything below; rewritten whole after every draft
    <out>/<recipe>/diagnosis/<id>/logs/             engine logs

Every figure of a diagnosis is computed from this file, so that it can be computed again without an engine.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from benchctl.data.chain import read_sealed, sealed
from benchctl.data.manifest import MANIFEST_FORMAT, Manifest
from benchctl.data.versions import Part, StoredFormat
from benchctl.data.writer import write_whole

DOCUMENT = "diagnosis.json"
FOLDER = "diagnosis"
FORMAT = StoredFormat(
    "diagnosis", version=2, steps={1: lambda old: old}, fix="Make a new one: benchctl diagnose RECIPE"
)
"""From version 2 on with a digest."""
_NUMBERS = re.compile(r"\[\n(?:[\s\d.,eE+\-\[\]]|true|false|null)*\]")
"""A list of numbers, or of such lists, in indented JSON: no string has a line end, so none is matched."""


class Expectations(Part):
    """The predictions of a draft along an answer of the target, beside the target's own.

    A draft begins at some places of the answer and is given the answer's own tokens, not those that it drafts. A draft
    with a state of its own predicts the same wherever it began: its rows have one place each, and every place begins
    one. A part of the target drafts from the target's state, so that its row has as many places as it drafted.
    """

    starts: list[int]
    """Places in the answer, from 0, at which the draft begins; the first token is prefill's and begins none."""
    overlap: list[list[float]]
    """For every start and depth: the chance that one draft token is accepted there. Greedy: whether the draft's
    likeliest token is the answer's. Sampled: Σ min(p, q)."""
    accept: list[list[float]]
    """The chance that the answer's own token is accepted where the draft has drawn it: min(1, q / p). Greedy: as
    `overlap`."""
    agree: list[bool] = Field(default_factory=list)
    """At every start: whether the likeliest tokens of draft and target are the same."""
    distance: list[float] = Field(default_factory=list)
    """At every start: total variation distance at temperature 1 over the target's likeliest tokens, all others as one
    outcome; where the draft does not report all of these, a lower limit."""
    distance_most: list[float] = Field(default_factory=list)
    """An upper limit of it."""
    truncated: float = 0.0
    """The most of a sampled distribution that lies beyond the tokens that the engine reports, on average; a share."""
    steps_target: list[float] = Field(default_factory=list)
    """Seconds of each step of the target alone, where both were timed in one process."""
    steps_draft: list[float] = Field(default_factory=list)
    """Seconds of each step of the draft."""
    loss_target: float | None = None
    """Nats that the target loses on prompt and answer, summed over `scored` tokens; for a part of the target alone."""
    loss_draft: float | None = None
    """The same with the part removed all along."""
    scored: int = 0


class ForcedAnswer(Expectations):
    """The same of one prompt's answer."""

    task: str
    prompt_idx: int
    temperature: float
    tokens: int


class DraftCosts(Part):
    """What a step of draft and target costs. `None`: not known."""

    target_step_s: float | None = None
    draft_step_s: float | None = None
    target_flops: float | None = None
    """Floating-point operations of one decode step."""
    draft_flops: float | None = None
    flops_how: str = ""
    """How they were counted."""


class DiagnosedDraft(Part):
    """One way to draft, whatever its depth."""

    name: str
    arms: list[str]
    """The recipe's arms that draft in this way; none where the pair itself was requested."""
    kind: Literal["pair", "part"]
    """pair: a model of its own; part: the target with something left out."""
    what: dict[str, object] = Field(default_factory=dict)
    """The engine's description, such as the parts that are left out."""
    exact: bool
    """Whether all logits were read; else the likeliest tokens alone."""
    answers: list[ForcedAnswer] = Field(default_factory=list)
    costs: DraftCosts = Field(default_factory=DraftCosts)
    error: str | None = None
    """Why nothing, or nothing more, was read."""


class DiagnosisSettings(Part):
    """The settings of a diagnosis."""

    tokens: int
    """Longest answer."""
    temperature: float
    """Of the sampled answers; there is a greedy one of every prompt, too."""
    depth: int
    """Deepest draft that is read."""
    stride: int
    """A part of the target begins to draft at every so many places."""
    top: int
    """Likeliest tokens that are compared."""


class Diagnosis(Part):
    """A whole diagnosis."""

    schema_version: int = Field(default=FORMAT.version, alias="schema")
    status: Literal["started", "finished", "interrupted", "failed"] = "started"
    settings: DiagnosisSettings
    manifest: Manifest
    """As of a run: engine, models, arms, prompts, machine, command."""
    drafts: list[DiagnosedDraft] = Field(default_factory=list)
    not_reached: dict[str, str] = Field(default_factory=dict)
    """Arms that cannot be diagnosed, and why."""

    @field_validator("manifest", mode="before")
    @classmethod
    def _migrated(cls, manifest: object) -> object:
        """The manifest within has versions of its own."""
        return MANIFEST_FORMAT.current(manifest, f"manifest in {DOCUMENT}") if isinstance(manifest, dict) else manifest


def write_diagnosis(folder: Path, found: Diagnosis) -> None:
    """Replace a diagnosis atomically, each list of numbers on one line. Raises StorageError."""
    text = found.model_dump_json(by_alias=True, indent=1)
    write_whole(folder / DOCUMENT, sealed(_NUMBERS.sub(lambda match: _on_one_line(match[0]), text)))


def _on_one_line(numbers: str) -> str:
    return re.sub(r",\s+", ", ", re.sub(r"\s+\]", "]", re.sub(r"\[\s+", "[", numbers)))


def read_diagnosis(folder: Path) -> Diagnosis:
    """Read a diagnosis. Raises FileNotFoundError, and StorageError for a file that is damaged or of a newer version."""
    return read_sealed(FORMAT, folder / DOCUMENT, Diagnosis, since=2)
