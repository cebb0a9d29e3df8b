"""What the target alone makes of a run's answers, kept in `scores.json` beside the records.

Every number that a verdict rests on is here, so that it can be computed again without an engine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from pydantic import Field, model_validator

from benchctl.data.manifest import FileIdentity, Manifest
from benchctl.data.versions import Part, StoredFormat

SCORES = "scores.json"
FORMAT = StoredFormat("file of scores", version=1, fix="Remove the file; verify-lossless then scores again.")

Shape = Literal["decode", "verify", "prefill"]
"""How a prefix was read. `decode`: the answer token by token, as the baseline made it. `verify`: the answer `width`
tokens at a time, as an arm verifies drafts. `prefill`: prompt and answer at once."""


class Reading(Part):
    """One prefix in a shape: natural logarithms of the target's probabilities of the next token."""

    shape: Shape
    width: int = Field(ge=0)
    """Tokens in the last batch."""
    likeliest: int
    """The token that greedy decoding would choose."""
    token: float | None
    """Of the baseline's token; `None` when it is not among the likeliest that were requested."""
    rival: float | None
    rival_at_most: float | None = None
    """Where `rival` is `None`: that of the least likely token reported."""

    @property
    def margin(self) -> float | None:
        """How far the target prefers the baseline's token to its rival, in nats; the least that it can be."""
        rival = self.rival_at_most if self.rival is None else self.rival
        return None if self.token is None or rival is None else self.token - rival


class Position(Part):
    """A place in a baseline's answer: a fork, whose rival is the arm's token, or a place of the sample.

    In the sample the rival is the second likeliest token, as the baseline's own shape has it.
    """

    task: str
    prompt_idx: int
    prompt_sha: str | None
    index: int = Field(ge=0)
    """Of the token within the answer."""
    agreed_sha: str
    """SHA-256 of the answer's token ids before `index`."""
    token: int
    rival: int
    fork: bool
    readings: list[Reading] = Field(default_factory=list)
    absent: dict[str, str] = Field(default_factory=dict)
    """Shapes that could not be read, and why."""

    @property
    def key(self) -> tuple[object, ...]:
        """The identity of the position, whatever was read there."""
        where = (self.task, self.prompt_idx, self.prompt_sha, self.index, self.agreed_sha)
        return (*where, self.token, self.rival, self.fork)


AnswerKey = tuple[str, int, str | None, str]
"""(task, prompt_idx, prompt_sha, token_sha)."""


class OfAnswer(Part):
    """Something that was read of an answer."""

    task: str
    prompt_idx: int
    prompt_sha: str | None
    token_sha: str
    """Of all its token ids: equal answers are scored once."""

    @property
    def answer(self) -> AnswerKey:
        """Which answer it is."""
        return (self.task, self.prompt_idx, self.prompt_sha, self.token_sha)


class DivergedToken(Part):
    """A place at which an answer's token is not the target's likeliest."""

    index: int = Field(ge=0)
    likeliest: int
    gap: float
    """Nats by which the target prefers its likeliest token to the answer's; the least that it can be, where
    `gap_is_least`."""
    gap_is_least: bool = False
    """Whether the answer's token is not among the likeliest that were requested."""


class ScoredAnswer(OfAnswer):
    """An answer of any arm, scored whole."""

    margins: list[float]
    """At every token: the likeliest over the second likeliest, in nats."""
    diverged: list[DivergedToken] = Field(default_factory=list)

    @model_validator(mode="after")
    def _within_the_answer(self) -> ScoredAnswer:
        if any(divergence.index >= len(self.margins) for divergence in self.diverged):
            raise ValueError("it diverges beyond its end")
        return self


class NullPass(OfAnswer):
    """One reading of a scored answer in batches: how far its margins move by that alone.

    `width` tokens in a batch, the first batch ending at token `first`, between two of them a batch of `skipped` tokens
    that is not scored, as between two rounds that accept in part. `width` 0: the answer's own decoding, for a target
    that is scored by prefill. `slots`: in each batch `width` tokens of so many requests, this answer's among them.
    """

    width: int = Field(ge=0)
    first: int
    skipped: int = 0
    slots: int = Field(default=1, ge=1)
    places: list[Annotated[int, Field(ge=0)]]
    suite: str | None = None
    """Where the answer is none of the run's: the file of the prompt that the target continued."""
    losses: list[float]
    """At each place: how much less the target prefers its likeliest token to the best other; nats."""

    @property
    def key(self) -> tuple[object, ...]:
        """Which reading it is."""
        return (*self.answer, self.width, self.first, self.skipped, self.slots)


class DeviatingToken(Part):
    """A token that is not the likeliest of its row, where the target read the answer in its own steps."""

    index: int = Field(ge=0)
    likeliest: int
    gap: float | None
    """Nats by which the target prefers its likeliest token; `None` where the request forbids the answer's."""


class ReplayedAnswer(OfAnswer):
    """An answer that the target read again in the steps it was made in."""

    steps_sha: str
    """`sha256_steps` of them: an answer that other steps made is another."""
    rows: int = Field(ge=0)
    """The target's rows that its tokens were compared with: one a token."""
    diverged: list[DeviatingToken] = Field(default_factory=list)

    @property
    def key(self) -> tuple[AnswerKey, str]:
        """Which answer in which steps it is."""
        return self.answer, self.steps_sha

    @property
    def deviations(self) -> list[DeviatingToken]:
        """Tokens to which the target prefers another; of equally likely ones it may have chosen either."""
        return [token for token in self.diverged if token.gap is None or token.gap > 0]

    @model_validator(mode="after")
    def _within_the_answer(self) -> ReplayedAnswer:
        if any(token.index >= self.rows for token in self.diverged):
            raise ValueError("it diverges beyond its end")
        return self


class ReplayTarget(Part):
    """A target alone that replayed answers."""

    arms: list[str]
    """Whose answers it computes as the engine did; the baseline is among those of the first."""
    command: list[str]
    evidence: str
    """What read, and why it computes what the measured engine does; the end of a sentence."""
    program_sha256: str | None
    """Of the program that the command starts."""
    answers: list[ReplayedAnswer] = Field(default_factory=list)


class Replays(Part):
    """The answers of a run that the target read again in the steps they were made in."""

    targets: list[ReplayTarget] = Field(default_factory=list)
    lacks: dict[str, str] = Field(default_factory=dict)
    """By arm, why its answers, or some of them, could not be replayed; the end of a sentence."""
    seconds: float = 0.0

    def add(self, others: Replays) -> None:
        """Add what was replayed in another run; an arm keeps a single program that read its answers."""
        for target in others.targets:
            same = next((own for own in self.targets if set(own.arms) & set(target.arms)), None)
            if same is None:
                self.targets.append(target.model_copy(deep=True))
            elif (same.evidence, same.program_sha256) == (target.evidence, target.program_sha256):
                same.arms += [name for name in target.arms if name not in same.arms]
                have = {read.key for read in same.answers}
                same.answers += [read for read in target.answers if read.key not in have]
        self.lacks = {**others.lacks, **self.lacks}


def sha256_steps(steps: Sequence[Sequence[int]]) -> str:
    """Return the SHA-256 (64 hex digits) of an answer's steps (`benchctl.data.record.Record.target_steps`) as JSON."""
    return hashlib.sha256(msgspec.json.encode(steps)).hexdigest()


class TargetScores(Part):
    """Everything that was read of a run's answers, with the engine that read it: the run's baseline, launched again."""

    schema_version: int = Field(default=FORMAT.version, alias="schema")
    run: str
    benchctl_version: str
    made_at: str
    baseline: str
    """The arm that was launched again."""
    command: list[str]
    """As it ran; `{port}` stands for the port."""
    engine_sha256: str | None
    siblings: dict[str, str] = Field(default_factory=dict)
    model: list[FileIdentity]
    sampled: list[int] = Field(default_factory=list)
    """Verify widths of which the sample is complete."""
    positions: list[Position] = Field(default_factory=list)
    shape: Literal["decode", "prefill"] = "decode"
    """How whole answers were scored: token by token, or prompt and answer at once."""
    seconds: float = 0.0
    """Total time of scoring them."""
    answers: list[ScoredAnswer] = Field(default_factory=list)
    passes: list[NullPass] = Field(default_factory=list)
    replays: Replays | None = None
    """`None`: nothing has tried to replay."""

    @model_validator(mode="after")
    def _read_where_scored(self) -> TargetScores:
        lengths = {answer.answer: len(answer.margins) for answer in self.answers}
        for reading in self.passes:
            if len(reading.losses) != len(reading.places):
                raise ValueError(f"a reading has {len(reading.places)} places and {len(reading.losses)} losses")
            length = lengths.get(reading.answer)
            if length is not None and any(index >= length for index in reading.places):
                raise ValueError("a reading has a place beyond the end of its answer")
        return self

    def of(self, manifest: Manifest) -> bool:
        """Whether this was scored with the engine and the model of that run."""
        details = manifest.engine.details
        return (
            self.run == manifest.run
            and self.model == manifest.target.files
            and self.engine_sha256 == details.get("sha256")
            and self.siblings == (details.get("siblings") or {})
        )

    def places_read(self, width: int, slots: int = 1) -> int:
        """Return at how many places the noise of batches of `width` tokens of each of `slots` requests was read."""
        return sum(len(read.places) for read in self.passes if (read.width, read.slots) == (width, slots))

    def add(self, positions: Iterable[Position]) -> None:
        """Add positions; of those that are there already only the shapes that it lacks."""
        by_key = {position.key: position for position in self.positions}
        for position in positions:
            stored = by_key.setdefault(position.key, position)
            if stored is position:
                self.positions.append(position)
                continue
            have = {(reading.shape, reading.width) for reading in stored.readings}
            stored.readings += [added for added in position.readings if (added.shape, added.width) not in have]
            stored.absent |= position.absent


def join_scores(several: Sequence[TargetScores]) -> TargetScores | None:
    """Return what was read in several runs as read in the first; of scores in another shape nothing."""
    if not several:
        return None
    joined = several[0].model_copy(deep=True)
    for scores in several[1:]:
        joined.add(scores.positions)
        joined.sampled = sorted({*joined.sampled, *scores.sampled})
        if scores.shape == joined.shape or not joined.answers:
            joined.shape = scores.shape
            have_answers, have_passes = {read.answer for read in joined.answers}, {read.key for read in joined.passes}
            joined.answers += [read for read in scores.answers if read.answer not in have_answers]
            joined.passes += [read for read in scores.passes if read.key not in have_passes]
        if scores.replays is not None:
            joined.replays = joined.replays or Replays()
            joined.replays.add(scores.replays)
    return joined


def of_part(name: str, part: str | None) -> str:
    """Return the name of a run's file for a part of it: `scores-kv_q8_0.json`."""
    stem, _, suffix = name.rpartition(".")
    return name if part is None else f"{stem}-{part}.{suffix}"


def read_scores(
    folder: Path,
    part: str | None = None,
    usable: Callable[[str, Callable[[], TargetScores | None]], TargetScores | None] = lambda _, read: read(),
) -> TargetScores | None:
    """Read the scores of the run in `folder`, or of a part of it; `None` when there are none.

    `usable`: from a file's name and how to read it to what it holds, where its digest is right. Raises StorageError for
    a file that is damaged or of a newer benchctl.
    """

    name = of_part(SCORES, part)
    return usable(name, lambda: _read(folder / name))


def _read(file: Path) -> TargetScores | None:
    try:
        return FORMAT.read(file, TargetScores)
    except FileNotFoundError:
        return None
