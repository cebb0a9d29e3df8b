"""The audit of a run: whole answers, scored on the target alone, kept in `audit.json` beside the records.

Every number that a verdict rests on is here, so that it can be computed again without an engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from benchctl.data.replays import Origin, of_part
from benchctl.data.versions import Part, StoredFormat

AUDIT = "audit.json"
FORMAT = StoredFormat("audit file", version=1, fix="Remove the file; verify-lossless then scores the answers again.")


class DivergedToken(Part):
    """A place at which an answer's token is not the target's likeliest."""

    index: int = Field(ge=0)
    likeliest: int
    gap: float
    """Nats by which the target prefers its likeliest token to the answer's; the least that it can be, where
    `gap_is_least`."""
    gap_is_least: bool = False
    """Whether the answer's token is not among the likeliest that were requested."""


class ScoredAnswer(Part):
    """An answer of any arm, scored on the target alone."""

    task: str
    prompt_idx: int
    prompt_sha: str | None
    token_sha: str
    """Of all its token ids: equal answers are scored once."""
    margins: list[float]
    """At every token: the likeliest over the second likeliest, in nats."""
    diverged: list[DivergedToken] = Field(default_factory=list)

    @model_validator(mode="after")
    def _within_the_answer(self) -> ScoredAnswer:
        if any(divergence.index >= len(self.margins) for divergence in self.diverged):
            raise ValueError("it diverges beyond its end")
        return self

    @property
    def key(self) -> AnswerKey:
        """Which answer it is."""
        return (self.task, self.prompt_idx, self.prompt_sha, self.token_sha)


AnswerKey = tuple[str, int, str | None, str]
"""(task, prompt_idx, prompt_sha, token_sha)."""


class NullPass(Part):
    """One reading of a scored answer in batches: how far its margins move by that alone.

    `width` tokens in a batch, the first batch ending at token `first`, between two of them a batch of `skipped` tokens
    that is not scored, as between two rounds that accept in part. `width` 0: the answer's own decoding, for a target
    that is scored by prefill. `slots`: in each batch `width` tokens of so many requests, of which this is one.
    """

    task: str
    prompt_idx: int
    prompt_sha: str | None
    token_sha: str
    width: int = Field(ge=0)
    first: int
    skipped: int = 0
    slots: int = Field(default=1, ge=1)
    places: list[Annotated[int, Field(ge=0)]]
    losses: list[float]
    """At each place: how much less the target prefers its likeliest token to the best other one; nats."""

    @property
    def answer(self) -> AnswerKey:
        """Which answer was read."""
        return (self.task, self.prompt_idx, self.prompt_sha, self.token_sha)

    @property
    def key(self) -> tuple[object, ...]:
        """Which reading it is."""
        return (*self.answer, self.width, self.first, self.skipped, self.slots)


class Audit(Origin):
    """Everything that was read of a run's answers."""

    schema_version: int = Field(default=FORMAT.version, alias="schema")
    shape: Literal["decode", "prefill"] = "decode"
    """How answers were scored: token by token, or prompt and answer at once."""
    seconds: float = 0.0
    """Total time of scoring."""
    answers: list[ScoredAnswer] = Field(default_factory=list)
    passes: list[NullPass] = Field(default_factory=list)

    @model_validator(mode="after")
    def _read_where_scored(self) -> Audit:
        lengths = {answer.key: len(answer.margins) for answer in self.answers}
        for reading in self.passes:
            if len(reading.losses) != len(reading.places):
                raise ValueError(f"a reading has {len(reading.places)} places and {len(reading.losses)} losses")
            length = lengths.get(reading.answer)
            if length is not None and any(place >= length for place in reading.places):
                raise ValueError("a reading has a place beyond the end of its answer")
        return self


def read_audit(folder: Path, part: str | None = None) -> Audit | None:
    """Read the audit of the run in `folder`, or of a part of it; `None` when there is none.

    Raises StorageError for a file that is damaged or of a newer benchctl.
    """
    try:
        return FORMAT.read(folder / of_part(AUDIT, part), Audit)
    except FileNotFoundError:
        return None
