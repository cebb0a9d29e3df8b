"""What speculation does inside and outside of thinking: the text up to `</think>`, or that a server sends apart.

A step belongs to thinking if its first token does. The end of thinking is known to the round in which it came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from benchctl.analysis.losslessness import FirstDivergence
from benchctl.analysis.result import Result
from benchctl.data.counts import accepted_in, drafted_in, from_prompt
from benchctl.data.record import Record

if TYPE_CHECKING:
    from benchctl.analysis.frame import Frame

PromptKey = tuple[str, int]


class Part(Result):
    """The answers of an arm inside or outside of thinking."""

    tokens: int = 0
    decoded: int = 0
    """Of these, those that `seconds` are of: all but the first of an answer."""
    seconds: float = 0.0
    """By the client's clock."""
    rounds: int | None = None
    """Steps with a draft; `None` where the engine does not report its steps."""
    drafted: int | None = None
    accepted: int | None = None
    diverging: int | None = None
    """Prompts whose answers first differ from the baseline's there; `None` of a baseline."""

    @property
    def tok_s(self) -> float | None:
        """Tokens per second of decoding."""
        return self.decoded / self.seconds if self.seconds > 0 else None

    @property
    def rate(self) -> float | None:
        """Accepted of the drafted tokens."""
        return self.accepted / self.drafted if self.drafted and self.accepted is not None else None

    @property
    def length(self) -> float | None:
        """Tokens of a round, the target's own included."""
        return 1 + self.accepted / self.rounds if self.rounds and self.accepted is not None else None


class Thinking(Result):
    """An arm's answers that think, in two parts."""

    arm: str
    answers: int
    inside: Part
    outside: Part


def find_thinking(frame: Frame, divergences: Mapping[str, Mapping[PromptKey, FirstDivergence]]) -> list[Thinking]:
    """Return a row for every arm with answers that think. `divergences`: the first of each prompt, by arm."""
    rows = []
    for arm, name in enumerate(frame.arms):
        records = [frame.records[row] for row in frame.rows(arm).tolist()]
        thinking = [record for record in records if record.error is None and record.reasoning_tokens is not None]
        if thinking:
            ends = {(record.task, record.prompt_idx): record.reasoning_tokens or 0 for record in thinking}
            inside, outside = (_part(thinking, inside=side) for side in (True, False))
            if name in divergences:
                before, after = _diverging(divergences[name], ends)
                inside, outside = (
                    part.model_copy(update={"diverging": count}) for part, count in ((inside, before), (outside, after))
                )
            rows.append(Thinking(arm=name, answers=len(thinking), inside=inside, outside=outside))
    return rows


def _part(records: Sequence[Record], *, inside: bool) -> Part:
    steps = [_steps(record, inside=inside) for record in records]
    drafts = None if None in steps else [step for listed in steps for step in listed or () if drafted_in(step)]
    tokens = decoded = 0
    seconds = 0.0
    for record in records:
        end = record.reasoning_tokens or 0
        count = end if inside else record.n_predicted - end
        tokens += count
        if record.reasoning_s is not None and record.decode_s is not None:
            decoded += count - 1 if inside else count
            seconds += record.reasoning_s if inside else record.decode_s - record.reasoning_s
    return Part(
        tokens=tokens,
        decoded=max(0, decoded),
        seconds=max(0.0, seconds),
        rounds=None if drafts is None else len(drafts),
        drafted=None if drafts is None else sum(map(drafted_in, drafts)),
        accepted=None if drafts is None else sum(map(accepted_in, drafts)),
    )


def _steps(record: Record, *, inside: bool) -> list[Sequence[int]] | None:
    """Return an answer's steps whose first token lies on a side of the end of thinking; `None`: they are not known."""
    if record.target_steps is None:
        return None
    first, chosen = 0, list[Sequence[int]]()
    for step in from_prompt(record.target_steps):
        if (first < (record.reasoning_tokens or 0)) == inside:
            chosen.append(step)
        first += step[-1] + 1
    return chosen


def _diverging(divergences: Mapping[PromptKey, FirstDivergence], ends: Mapping[PromptKey, int]) -> tuple[int, int]:
    """Return at how many prompts the first divergence lies inside and outside of thinking."""
    by_token = [key for key, divergence in divergences.items() if key in ends and divergence.unit == "token"]
    inside = sum(divergences[key].index < ends[key] for key in by_token)
    return inside, len(by_token) - inside
