"""The costs of rounds, timed in runs of their own and kept in `costs.json` beside the measured run's records."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from benchctl.data.versions import Part, StoredFormat

COSTS = "costs.json"
FORMAT = StoredFormat("costs file", version=1, fix="Remove the file; benchctl explain then measures again.")


class PassTime(Part):
    """Work of a kind and width, all of it together: `benchctl.engines.base.Pass`, as it is stored."""

    kind: Literal["plain", "draft", "verify", "draft-read", "checkpoint", "restore", "re-evaluate"]
    width: int
    count: int
    seconds: float
    median_s: float


class TracedArm(Part):
    """An arm whose engine ran once more, with a log that times every pass."""

    arm: str
    command: list[str]
    answers: int
    tokens: int
    """After the first of each answer."""
    seconds: float
    """Decoding them, by the client's clock: longer than in the run, since the log is written."""
    passes: list[PassTime]


class DraftAlone(Part):
    """The draft model as a target of its own, without speculation."""

    command: list[str]
    tokens: int
    seconds: float


class CostTraces(Part):
    """Everything that was timed for a run beside its measurement."""

    schema_version: int = Field(default=FORMAT.version, alias="schema")
    run: str
    benchctl_version: str
    made_at: str
    prompts: list[str]
    """`task/prompt_idx` of those that were answered."""
    max_tokens: int
    arms: list[TracedArm] = Field(default_factory=list)
    draft_alone: DraftAlone | None = None
    lacking: list[str] = Field(default_factory=list)
    """A sentence for everything that could not be timed, with the reason."""


def read_costs(folder: Path) -> CostTraces | None:
    """Read the costs file of the run in `folder`; `None` when there is none. Raises StorageError for a damaged file."""
    try:
        return FORMAT.read(folder / COSTS, CostTraces)
    except FileNotFoundError:
        return None
