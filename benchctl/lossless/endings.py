"""How answers end: rules that greedy decoding keeps, whatever numeric noise does to the tokens before.

A rule is held against an arm only where it is one of the engine's, which every one of the baseline's answers shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchctl.data.record import Record

if TYPE_CHECKING:
    from benchctl.analysis.frame import Frame

INCOMPLETE = "\ufffd"
"""What stands for a character of which not all bytes are there."""


@dataclass(frozen=True)
class Endings:
    """What the baseline's answers of a run show."""

    limit: int | None = None
    """Most tokens that an answer has; `None`: the baseline has more itself, or the limit is not known."""
    reached: bool = False
    """Whether what ends with `length` has as many."""
    context: int | None = None
    """Tokens of prompt and answer together that the engine has room for; `None`: not known."""

    def broken_by(self, record: Record) -> str | None:
        """Return which rule an answer breaks, as a sentence; `None`: none."""
        count = record.n_predicted
        if self.limit is None:
            return None
        if count > self.limit:
            return f"The answer has {count} tokens, and {self.limit} were asked for."
        full = self.context is not None and (record.prompt_tokens or 0) + count >= self.context
        if self.reached and record.finish_reason == "length" and count < self.limit and not full:
            return f"The answer was cut off as too long after {count} tokens, and {self.limit} were asked for."
        return None


def endings_of(frame: Frame) -> Endings:
    """Return the rules that every good answer of the baseline keeps."""
    recipe = frame.manifest.recipe if frame.manifest else {}
    limit = (recipe.get("sampling") or {}).get("max_tokens")
    context = (recipe.get("engine") or {}).get("context")
    rows = [row for row in frame.rows(frame.baseline).tolist() if frame.answered[row]]
    records = [frame.records[row] for row in rows]
    if not isinstance(limit, int) or not records or any(record.n_predicted > limit for record in records):
        return Endings()
    cut = [record for record in records if record.finish_reason == "length"]
    reached = bool(cut) and all(record.n_predicted == limit for record in cut)
    return Endings(limit, reached, context if isinstance(context, int) else None)


def another_text(theirs: Record, ours: Record) -> str | None:
    """Return that equal tokens came with another text, as a sentence; `None`: they did not.

    Texts that differ only in an incomplete last character are equal.
    """
    if theirs.token_ids is None or theirs.token_ids != ours.token_ids:
        return None
    ends = [(record.content or "").rstrip(INCOMPLETE) for record in (theirs, ours)]
    return None if ends[0] == ends[1] else "The tokens are the target's own, and the text is another."
