"""A check of an arm's sampling as stored, so that its verdict can be computed again without an engine.

    <run>/sampling/<check>/check.json       settings, engine and models; rewritten whole
    <run>/sampling/<check>/answers.jsonl    a line per answer
    <run>/sampling/<check>/scores.jsonl     a line per answer that was scored on the target alone, where that was done
    <run>/sampling/<check>/logs/            engine logs, a file per arm

`<run>` is the folder of the run that was checked, or the recipe's folder below results/ where a recipe was.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, field_validator

from benchctl.data.integrity import Integrity, StoredScores, lines_damage, manifest_damage
from benchctl.data.manifest import MANIFEST_FORMAT, Manifest
from benchctl.data.versions import Part, StoredFormat
from benchctl.data.writer import FolderWriter
from benchctl.errors import UsageError
from benchctl.writing import refuse_links

CHECK = "check.json"
ANSWERS = "answers.jsonl"
SCORES = "scores.jsonl"
FOLDER = "sampling"


FORMAT = StoredFormat("sampling check", version=2, fix="Draw another.")


class SamplingSettings(Part):
    """The settings of a check."""

    seeds: int = Field(ge=1)
    """Answers to each prompt from each arm, each with a seed of its own."""
    level: float = Field(gt=0, lt=1)
    """Chance of any false alarm in the whole check."""
    planned: list[str]
    """The arms to be compared, without the baseline: what the level is shared among."""
    seeding: Literal["consecutive", "spread"]
    """How the seeds were made."""


class SamplingCheck(Part):
    """The head of a check."""

    schema_version: int = Field(default=FORMAT.version, alias="schema")
    settings: SamplingSettings
    manifest: Manifest
    """As of a run: engine, models, arms, prompts, the sampling that was used, and a cell for each arm."""

    @field_validator("manifest", mode="before")
    @classmethod
    def _of_this_version(cls, manifest: object) -> object:
        """The manifest within has versions of its own."""
        return MANIFEST_FORMAT.current(manifest, f"manifest in {CHECK}") if isinstance(manifest, dict) else manifest


class OfAnswer(Part):
    """What identifies an answer."""

    arm: str
    task: str
    prompt_idx: int
    seed: int


class SampledAnswer(OfAnswer):
    """An answer; `token_ids` is `None` where the request failed or its ids were not reported."""

    token_ids: list[int] | None = None
    drafted: int | None = None
    accepted: int | None = None
    error: str | None = None


class TermSum(Part):
    """A sum over places: observed less expected by the target, its variance and third moment, the expected value."""

    excess: float
    variance: float
    third: float
    expected: float


class TokenScores(OfAnswer):
    """An answer, scored on the target alone; see `benchctl.experiments.sampling.tokens`."""

    tokens: int = Field(ge=0)
    far: int = Field(ge=0)
    """Tokens that are not among those reported of the target, or that the sampler's settings keep."""
    sums: dict[str, TermSum]


@dataclass(frozen=True)
class SamplingData:
    """A check as it was read."""

    folder: Path
    check: SamplingCheck
    answers: list[SampledAnswer]
    damaged: int
    """Lines that could not be read."""
    scores: list[TokenScores] = field(default_factory=list)
    """Of the answers that were scored on the target alone."""
    integrity: Integrity = field(default_factory=Integrity)
    """Whether the files are as they were written."""


class CheckWriter(FolderWriter):
    """The only writer of a check's folder."""

    document, lines = CHECK, ANSWERS

    def __init__(self, folder: Path, check: SamplingCheck) -> None:
        super().__init__(folder, check.manifest)
        self.check = check

    def append(self, answer: SampledAnswer) -> None:
        """Append an answer."""
        self.append_line(json.dumps(answer.model_dump(), ensure_ascii=True, separators=(",", ":")))

    def _text(self) -> str:
        return self.check.model_dump_json(by_alias=True, indent=1)


def open_check(folder: Path) -> SamplingData:
    """Read a check. Raises UsageError when there is none, StorageError when it cannot be read."""
    refuse_links(folder)
    try:
        check, content = FORMAT.read_with_source(folder / CHECK, SamplingCheck)
        lines = (folder / ANSWERS).read_bytes().splitlines(keepends=True)
    except FileNotFoundError as error:
        raise UsageError(f"There is no sampling check here: {error.filename} is missing.") from None
    except OSError as error:
        raise FORMAT.unreadable(error.strerror or str(error), str(folder / ANSWERS)) from None
    manifest = check.manifest
    damage = [*manifest_damage(content, CHECK), *lines_damage(folder, manifest, ANSWERS)]
    stored = StoredScores(folder, manifest)
    answers, damaged = [], 0
    for line in lines:
        try:
            answers.append(SampledAnswer.model_validate_json(line))
        except ValidationError:
            damaged += 1
    scores = stored.read(SCORES, lambda: _read_scores(folder, stored.findings)) or []
    integrity = Integrity(True, tuple(damage), tuple(stored.findings))
    return SamplingData(folder, check, answers, damaged, scores, integrity)


def _read_scores(folder: Path, findings: list[str]) -> list[TokenScores]:
    """Read what was scored; empty where nothing was, or it cannot be read whole, which `findings` then tell."""
    try:
        lines = (folder / SCORES).read_bytes().splitlines()
        return [TokenScores.model_validate_json(line) for line in lines if line]
    except FileNotFoundError:
        return []
    except (OSError, ValidationError) as error:
        message = error.strerror if isinstance(error, OSError) else "a line is no score"
        findings.append(f"{SCORES} cannot be read ({message}), and is not used.")
        return []


def latest_check(folder: Path) -> Path:
    """Return the newest check below a run's or a recipe's folder, or a check's own folder; raises UsageError."""
    if (folder / CHECK).is_file():
        return folder
    checks = [file.parent for file in (folder / FOLDER).glob(f"*/{CHECK}")]
    if not checks:
        raise UsageError(
            "The sampling of this run was not checked yet.",
            where=str(folder),
            fix="Check it: benchctl verify-sampling RUN",
        )
    return max(checks, key=lambda check_folder: check_folder.name)  # names begin with the time
