"""How the baseline's answers end, and which of its rules an arm's answer breaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchctl.analysis.answers import same_characters
from benchctl.analysis.cells import verify_width
from benchctl.analysis.losslessness import Reason, because
from benchctl.data.record import Record

if TYPE_CHECKING:
    from benchctl.analysis.frame import Frame
    from benchctl.data.manifest import Manifest


@dataclass(frozen=True)
class Endings:
    """How the baseline's answers end: rules that greedy decoding keeps, whatever noise does to the tokens before.

    A rule is held against an arm only where it is the engine's own, which all of the baseline's answers show.
    """

    limit: int | None = None
    """Most tokens that an answer has; `None`: the baseline has more itself, or the limit is not known."""
    reached: bool = False
    """Whether what ends with `length` has as many."""
    room: int | None = None
    """Tokens of prompt and answer together that the engine has room for; `None`: not known."""
    manifest: Manifest | None = None
    ends: frozenset[int] = frozenset()
    """End tokens of the model; empty: not known, or what ends with `stop` does not always end with any of them."""
    shown: frozenset[int] = frozenset()
    """Those of them that end an answer of the baseline, none of which goes on after it."""

    def broken_by(self, theirs: Record, ours: Record, *, constrained: bool = False) -> Reason | None:
        """Return which rule an arm's answer breaks; `None`: none.

        `constrained`: by a grammar or tools, whose end may be the answer's, or by a stop string.
        """
        broken = self._broken_limit(ours) or (None if constrained else self._broken_end(theirs, ours))
        same_tokens = theirs.token_ids is not None and theirs.token_ids == ours.token_ids
        if broken is None and same_tokens and not same_characters(theirs, ours):
            return because("other-text")
        return broken

    def without_end(self, ours: Record) -> Reason | None:
        """Return that an answer stopped at a token that ends none: by a stop string, or too early; `None`: it did not.

        Unlike `broken_by` it shows no fault by itself, since no token tells of a stop string.
        """
        tokens = ours.token_ids
        if ours.finish_reason != "stop" or not tokens or not self.ends or tokens[-1] in self.ends:
            return None
        return because("no-end", token=tokens[-1])

    def _broken_end(self, theirs: Record, ours: Record) -> Reason | None:
        tokens = ours.token_ids
        if not tokens or not self.ends:
            return None
        early = next((index for index, token in enumerate(tokens[:-1]) if token in self.shown), None)
        if early is not None:
            return because("beyond-end", count=len(tokens) - early - 1, token=tokens[early])
        # After a divergence it may have ended with a stop string of the server's, which no token tells.
        goes_on = theirs.token_ids is not None and theirs.token_ids[: len(tokens)] == tokens
        return self.without_end(ours) if goes_on else None

    def _broken_limit(self, record: Record) -> Reason | None:
        count = record.tokens_listed  # a server's count alone condemns nobody
        if self.limit is None or count is None:
            return None
        if count > self.limit:
            return because("over-limit", count=count, limit=self.limit)
        if self.reached and record.finish_reason == "length" and count < self.limit and self._has_room(record, count):
            return because("cut-short", count=count, limit=self.limit)
        return None

    def _has_room(self, record: Record, count: int) -> bool:
        """Whether the context was not full, not even for a whole round: llama-server ends an answer at the first token
        of the round that fills it."""
        width = verify_width(self.manifest, record)
        if self.room is None or width is None or record.prompt_tokens is None:
            return False
        width = max(width, len(record.accepted_by_position or ()) + 1)
        return record.prompt_tokens + count + width - 1 < self.room


def endings_of(frame: Frame) -> Endings:
    """Return the rules that every good answer of the baseline keeps."""
    recipe = frame.manifest.recipe if frame.manifest else {}
    sampling = recipe.get("sampling") or {}
    limit = sampling.get("max_tokens")
    rows = [row for row in frame.rows(frame.baseline).tolist() if frame.answered[row]]
    records = [frame.records[row] for row in rows]
    free = [record for record in records if (record.task, record.prompt_idx) not in frame.stopped]
    ends, shown = (frozenset[int](),) * 2 if sampling.get("ignore_eos") else _ends_of(frame, free)
    lengths = [(record.tokens_listed, record.finish_reason) for record in records if record.tokens_listed is not None]
    if not isinstance(limit, int) or any(count > limit for count, _ in lengths):
        return Endings(ends=ends, shown=shown)
    cut = [count for count, reason in lengths if reason == "length"]
    reached = bool(cut) and all(count == limit for count in cut)
    return Endings(limit, reached, _room(frame, records), frame.manifest, ends, shown)


def _room(frame: Frame, records: Sequence[Record]) -> int:
    """Return what the baseline's longest answer shows, or the context of an engine that was launched, which the model's
    own limits; of an endpoint's the recipe knows nothing."""
    longest = max(((record.prompt_tokens or 0) + (record.tokens_listed or 0) for record in records), default=0)
    manifest = frame.manifest
    if manifest is None or any(arm.url for arm in manifest.arms):
        return longest
    engine = manifest.recipe.get("engine") or {}
    limits = [engine.get("context"), manifest.target.facts.get("context_length")]
    return max(longest, min((limit for limit in limits if isinstance(limit, int)), default=0))


def _ends_of(frame: Frame, records: Sequence[Record]) -> tuple[frozenset[int], frozenset[int]]:
    """Return the model's end tokens, where all that the baseline stopped ended with any; and those that it shows."""
    listed = frame.manifest.target.facts.get("end_tokens") if frame.manifest else None
    ends = frozenset(listed) if isinstance(listed, list) else frozenset[int]()
    stopped = {record.token_ids[-1] for record in records if record.finish_reason == "stop" and record.token_ids}
    if not stopped or not stopped <= ends:
        return frozenset(), frozenset()
    inside = {token for record in records for token in (record.token_ids or [])[:-1]}
    return ends, frozenset(stopped - inside)
