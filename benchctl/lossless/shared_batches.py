"""The noise of batches that several requests share: whole answers read again, one in each slot, in step.

It is what an engine of several slots does with rounds of speculation: every slot has `width` tokens in each batch, and
where one begins its next answer, that prompt is in the batch, too.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from benchctl.data.audits import Audit, NullPass, ScoredAnswer
from benchctl.engines.base import Scores, SlotScorer
from benchctl.lossless.audit_plan import Alignment, alignments
from benchctl.lossless.conclude import PREFIXES

TOP = 20
"""Likeliest tokens that are read at every place."""
DIGITS = 7
"""Decimal places that are kept: a float32 logarithm has no more."""


@dataclass(frozen=True)
class AuditedAnswer:
    """An answer that was scored, with what it takes to read it again."""

    scored: ScoredAnswer
    prompt: tuple[int, ...]
    answer: tuple[int, ...]

    def likeliest(self, place: int) -> int:
        """The target's likeliest token there: the answer's own, unless the target left it."""
        return next(
            (divergence.likeliest for divergence in self.scored.diverged if divergence.index == place),
            self.answer[place],
        )


@dataclass
class _Slot:
    """A stream of answers, each read to its end before the next begins."""

    tasks: Iterator[tuple[AuditedAnswer, Alignment]]
    current: AuditedAnswer | None = None
    alignment: Alignment | None = None
    ends: Iterator[tuple[int, bool]] = field(default_factory=lambda: iter(()))
    end: int = 0
    before: int = 0
    counts: bool = False

    def step(self) -> list[int] | None:
        """Return the next prefix; `None` where no answer is left."""
        following = next(self.ends, None)
        if following is None:
            task = next(self.tasks, None)
            if task is None:
                return None
            self.current, self.alignment = task
            self.ends, self.before, self.end, self.counts = self.alignment.ends(len(self.current.answer)), 0, 0, False
            return list(self.current.prompt)
        assert self.current is not None, "has ends of its own"
        self.before, (self.end, self.counts) = self.end, following
        return [*self.current.prompt, *self.current.answer[: self.end]]


def read_shared(
    scorer: SlotScorer, answers: Sequence[AuditedAnswer], audit: Audit, *, width: int, slots: int, until: float
) -> None:
    """Read answers `width` tokens of each of `slots` at once until enough is known of the noise; adds to the audit.

    `until`: the monotonic time to end at. Only batches in which every slot reads on count. Raises EngineError.
    """
    streams = [_Slot(tasks) for tasks in _tasks(answers, width, slots)]
    have = sum(len(pass_.places) for pass_ in audit.passes if (pass_.width, pass_.slots) == (width, slots))
    passes: dict[tuple[object, ...], NullPass] = {}
    while have < PREFIXES and time.monotonic() < until:
        prefixes = [stream.step() for stream in streams]
        reading = [(stream, prefix) for stream, prefix in zip(streams, prefixes, strict=True) if prefix is not None]
        if len(reading) < slots:
            break
        reading.sort(key=lambda slot: slot[0].end == 0)  # a new prompt takes the slot that is left
        scores = scorer.read_together([prefix for _, prefix in reading], TOP)
        for (stream, _), at_end in zip(reading, scores, strict=True):
            if stream.counts and at_end.evaluated == stream.end - stream.before:
                _add(passes, stream, at_end, slots)
                have += 1
    audit.passes.extend(passes.values())


def _tasks(answers: Sequence[AuditedAnswer], width: int, slots: int) -> list[Iterator[tuple[AuditedAnswer, Alignment]]]:
    """Deal the answers out to the slots, all to a prompt to the same slot: no two slots share a prefix."""
    prompts = list(dict.fromkeys(answer.prompt for answer in answers))
    by_slot: list[list[AuditedAnswer]] = [[] for _ in range(slots)]
    for number, answer in enumerate(answers):
        by_slot[(prompts.index(answer.prompt) if len(prompts) >= slots else number) % slots].append(answer)
    return [((answer_read, way) for way, answer_read in itertools.product(alignments(width), own)) for own in by_slot]


def _add(passes: dict[tuple[object, ...], NullPass], stream: _Slot, scores: Scores, slots: int) -> None:
    current, alignment = stream.current, stream.alignment
    assert current is not None
    assert alignment is not None
    found = NullPass(
        **current.scored.model_dump(include={"task", "prompt_idx", "prompt_sha", "token_sha"}),
        width=alignment.width,
        first=alignment.first,
        skipped=alignment.skipped,
        slots=slots,
        places=[],
        losses=[],
    )
    found = passes.setdefault(found.key, found)
    found.places.append(stream.end)
    found.losses.append(loss(current.scored.margins[stream.end], current.likeliest(stream.end), scores))


def loss(margin: float, likeliest: int, scores: Scores) -> float:
    """Return by how much less than `margin` the target prefers its likeliest token to the best other one here."""
    logprobs = scores.logprobs
    others = max(value for other, value in logprobs.items() if other != likeliest)
    return round(margin - (logprobs.get(likeliest, min(logprobs.values())) - others), DIGITS)
