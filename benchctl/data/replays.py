"""The replay of a run: answers' prefixes, scored on the target alone, kept in `replays.json` beside the records.

Every number that a verdict on a difference rests on is here, so that it can be computed again without an engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import Field

from benchctl.data.manifest import FileIdentity, Manifest
from benchctl.data.versions import Part, StoredFormat

REPLAYS = "replays.json"
FORMAT = StoredFormat("replay file", version=1, fix="Remove the file; verify-lossless then replays again.")

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
        other = self.rival_at_most if self.rival is None else self.rival
        return None if self.token is None or other is None else self.token - other


class Position(Part):
    """A place in a baseline's answer: a fork, whose rival is the arm's token, or one of the sample.

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
        return (
            self.task,
            self.prompt_idx,
            self.prompt_sha,
            self.index,
            self.agreed_sha,
            self.token,
            self.rival,
            self.fork,
        )


class Decoded(Part):
    """How the target alone repeats a baseline's answer, token by token."""

    task: str
    prompt_idx: int
    places: int = Field(ge=0)
    """Tokens of the answer that were compared, from its first."""
    others: list[int]
    """Where the target's likeliest token is not the answer's."""


class Origin(Part):
    """The engine that scored answers of a run: the run's own baseline, launched again."""

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

    def of(self, manifest: Manifest) -> bool:
        """Whether this was scored with the engine and the model of that run."""
        details = manifest.engine.details
        return (
            self.run == manifest.run
            and self.model == manifest.target.files
            and self.engine_sha256 == details.get("sha256")
            and self.siblings == (details.get("siblings") or {})
        )


class Replays(Origin):
    """Everything that was replayed of a run."""

    schema_version: int = Field(default=FORMAT.version, alias="schema")
    sampled: list[int] = Field(default_factory=list)
    """Verify widths of which the sample is complete."""
    decoded: list[Decoded] = Field(default_factory=list)
    positions: list[Position] = Field(default_factory=list)

    @property
    def places_decoded(self) -> int:
        """Tokens of the baseline's answers that the target alone repeated, token by token."""
        return sum(earlier.places for earlier in self.decoded)

    @property
    def places_alike(self) -> int:
        """Of these, where its likeliest token was the answer's own."""
        return self.places_decoded - sum(len(earlier.others) for earlier in self.decoded)

    def add(self, positions: Iterable[Position]) -> None:
        """Add positions; of one that is there already only the shapes that it lacks."""
        known = {position.key: position for position in self.positions}
        for position in positions:
            there = known.setdefault(position.key, position)
            if there is position:
                self.positions.append(position)
                continue
            have = {(reading.shape, reading.width) for reading in there.readings}
            there.readings += [added for added in position.readings if (added.shape, added.width) not in have]
            there.absent |= position.absent

    def add_decoded(self, decoded: Decoded) -> None:
        """Add how an answer was repeated, unless more of it is known already."""
        same = [
            earlier
            for earlier in self.decoded
            if (earlier.task, earlier.prompt_idx) == (decoded.task, decoded.prompt_idx)
        ]
        if all(earlier.places < decoded.places for earlier in same):
            self.decoded = [earlier for earlier in self.decoded if earlier not in same] + [decoded]


def of_part(name: str, part: str | None) -> str:
    """Return the name of a run's file for one of its parts: `replays-kv_q8_0.json`."""
    stem, _, suffix = name.rpartition(".")
    return name if part is None else f"{stem}-{part}.{suffix}"


def read_replays(folder: Path, part: str | None = None) -> Replays | None:
    """Read what was replayed of the run in `folder`, or of a part of it; `None` when nothing was.

    Raises StorageError for a file that is damaged or of a newer benchctl.
    """
    try:
        return FORMAT.read(folder / of_part(REPLAYS, part), Replays)
    except FileNotFoundError:
        return None
