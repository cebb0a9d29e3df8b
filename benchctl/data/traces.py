"""What engines tell of how they work: what rounds cost, and what a draft and its target predict along an answer.

Costs are timed in runs of their own and kept in `costs.json` beside the measured run's records; a diagnosis stores
predictions.
"""

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


class WidthTime(Part):
    """A round of the target over so many tokens, a draft that costs nothing all accepted."""

    width: int
    """1 is a step."""
    seconds: float
    """The fastest."""
    count: int


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
    widths: list[WidthTime] = Field(default_factory=list)
    """The width curve of the target, from width 1 on; empty: not timed."""
    lacking: list[str] = Field(default_factory=list)
    """A sentence for everything that could not be timed, with the reason."""


def read_costs(folder: Path) -> CostTraces | None:
    """Read the costs file of the run in `folder`; `None` when there is none. Raises StorageError for a damaged file."""
    try:
        return FORMAT.read(folder / COSTS, CostTraces)
    except FileNotFoundError:
        return None


class Expectations(Part):
    """The predictions of a draft along an answer of the target, beside the target's own.

    A draft begins at some places of the answer and is given the answer's own tokens, not those that it drafts. A draft
    with a state of its own predicts the same wherever it began: its rows have a place each, and every place begins
    a row. A part of the target drafts from the target's state, so that its row has as many places as it drafted.
    """

    starts: list[int]
    """Places in the answer, from 0, at which the draft begins; the first token is prefill's and begins none."""
    overlap: list[list[float]]
    """For every start and depth: the chance that a draft token is accepted there. Greedy: whether the draft's
    likeliest token is the answer's. Sampled: Σ min(p, q)."""
    accept: list[list[float]]
    """The chance that the answer's own token is accepted where the draft has drawn it: min(1, q / p). Greedy: as
    `overlap`."""
    agree: list[bool] = Field(default_factory=list)
    """At every start: whether the likeliest tokens of draft and target are the same."""
    distance: list[float] = Field(default_factory=list)
    """At every start: total variation distance at temperature 1 over the target's likeliest tokens, all others as an
    outcome; where the draft does not report all of these, a lower limit."""
    distance_most: list[float] = Field(default_factory=list)
    """An upper limit of it."""
    truncated: float = 0.0
    """The most of a sampled distribution that lies beyond the tokens that the engine reports, on average; a share."""
    steps_target: list[float] = Field(default_factory=list)
    """Seconds of each step of the target alone, where both were timed in the same process."""
    steps_draft: list[float] = Field(default_factory=list)
    """Seconds of each step of the draft."""
    checks: dict[int, float] = Field(default_factory=dict)
    """Seconds of a pass of the target over so many tokens at once."""
    loss_target: float | None = None
    """Nats that the target loses on prompt and answer, summed over `scored` tokens; for a part of the target alone."""
    loss_draft: float | None = None
    """The same with the part removed all along."""
    scored: int = 0


class DiagnosisSettings(Part):
    """The settings of a diagnosis."""

    tokens: int
    """Longest answer."""
    temperature: float
    """The temperature of the sampled answers. Every prompt also has a greedy answer."""
    depth: int
    """Deepest draft that is read."""
    stride: int
    """A part of the target begins to draft at every so many places."""
    top: int
    """Likeliest tokens that are compared."""
