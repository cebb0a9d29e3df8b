"""Whether all that is reported of the tokens of an answer can be true: the only place where counts are reconciled.

What a server counts is checked against the token ids and the text that came, against other answers of the same text,
and its counters of drafts against each other, before anything is computed of them: by adapters for an answer, by the
runner for a record, by the analysis for all records at once. The rules take numbers and numpy columns alike. NaN stands
for what is not reported, and a comparison with it is false.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchctl.data.record import Record

NAN = math.nan


def number(count: int | None) -> float:
    """Return a count as the rules take it."""
    return NAN if count is None else count


@dataclass(frozen=True, kw_only=True)
class DraftCounts:
    """The counters of drafts of an answer, each a number or a column."""

    tokens: Any
    """That came out."""
    drafted: Any = NAN
    verified: Any = NAN
    accepted: Any = NAN
    rounds: Any = NAN
    plain: Any = NAN
    """Steps of the target without a draft."""
    cut: Any = NAN
    """So many accepted tokens the end of an answer may cut off: the length of a draft."""
    at_most: Any = NAN
    """More cannot have been accepted: the tokens that came out, and those that its end may have cut off."""
    accepted_by_position: Any = NAN
    """The sum over all positions, as the next."""
    drafted_by_position: Any = NAN
    accepted_by_length: Any = NAN
    rises: Any = False
    """Whether a later position was accepted more often than the position before it."""
    exceeds: Any = False
    """Whether more was accepted at a position than drafted there."""
    free: Any = True
    """Whether no grammar rules out what a round drafted: vLLM counts the round then, and no draft token."""


def contradicted(counts: DraftCounts) -> dict[str, Any]:
    """Return by a sentence for every way in which counters of drafts contradict each other whether they do."""
    tokens, drafted, accepted, rounds = counts.tokens, counts.drafted, counts.accepted, counts.rounds
    return {
        "more draft tokens were accepted than drafted": accepted > drafted,
        "more draft tokens were accepted than verified": (accepted > counts.verified) & (accepted <= drafted),
        "more draft tokens were verified than drafted": counts.verified > drafted,
        "more draft tokens were accepted than tokens came out": accepted > counts.at_most,
        "more verify rounds were counted than tokens came out": rounds > tokens,
        "rounds and accepted tokens make more tokens than came out": rounds + accepted > tokens - 1 + counts.cut,
        "steps with and without a draft and accepted tokens make fewer tokens than came out": (
            rounds + counts.plain + accepted < tokens - 1
        ),
        "draft tokens were counted without a verify round": (rounds == 0) & (drafted > 0),
        "more verify rounds were counted than draft tokens": (rounds > drafted) & counts.free,
        "the acceptances by position do not add up to the total": _differ(counts.accepted_by_position, accepted),
        "the acceptances by length do not add up to the total": _differ(counts.accepted_by_length, accepted),
        "a later position was accepted more often than the one before": counts.rises,
        "the drafts by position do not add up to the total": _differ(counts.drafted_by_position, drafted),
        "more draft tokens were accepted at a position than drafted there": counts.exceeds,
    }


def _differ(first: Any, right: Any) -> Any:  # noqa: ANN401 - numbers or columns
    return abs(first - right) > 0


def steps_contradiction(
    steps: Sequence[Sequence[int]], *, tokens: int, drafted: int | None, accepted: int | None, rounds: int | None
) -> str | None:
    """Return how the steps of an answer contradict its counters or its tokens; `None`: they do not.

    `steps`: `benchctl.data.record.Record.target_steps`. They must bring every token but those of the prompt's reading.
    """
    if contradiction := rounds_contradiction(steps, drafted=drafted, accepted=accepted, rounds=rounds):
        return contradiction
    brought = sum(step[-1] + 1 for step in from_prompt(steps))
    if 0 <= brought - tokens <= (steps[-1][-1] if steps else 0):
        return None
    return f"its steps bring {brought} tokens, and {tokens} came"


def rounds_contradiction(
    steps: Sequence[Sequence[int]], *, drafted: int | None, accepted: int | None, rounds: int | None
) -> str | None:
    """Return how the steps with a draft contradict an answer's counters; one that is `None` is not compared."""
    later = steps[1:] if steps and reads_prompt(steps[0]) else steps
    impossible = next((step for step in later if not _possible(step)), None)
    if impossible is not None:
        return f"no step can be {list(impossible)}"
    verified = [step for step in steps if drafted_in(step)]
    sums = {
        "rounds": (len(verified), rounds),
        "drafted": (sum(map(drafted_in, verified)), drafted),
        "accepted": (sum(map(accepted_in, verified)), accepted),
    }
    differences = [
        f"{total} {name}, and its counters {counter}"
        for name, (total, counter) in sums.items()
        if counter not in (None, total)
    ]
    return f"its steps have {differences[0]}" if differences else None


def reads_prompt(step: Sequence[int]) -> bool:
    """Whether a step, an answer's first, is the pass that read the prompt and a draft: [0, drafted, accepted]."""
    return len(step) == 3 and step[0] == 0 <= step[2] <= step[1]


def from_prompt(steps: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
    """Return the steps with the prompt's reading as the first; it is [0, 0, 0] where it had no draft."""
    return steps if steps and reads_prompt(steps[0]) else [(0, 0, 0), *steps]


def drafted_in(step: Sequence[int]) -> int:
    """Return how many draft tokens a step verified."""
    return step[1] if reads_prompt(step) else step[0]


def accepted_in(step: Sequence[int]) -> int:
    """Return how many draft tokens a step accepted. What it reads again ends with a token of the target's own."""
    return step[-1] if len(step) == 2 or reads_prompt(step) else max(0, step[-1] - 1)


def _possible(step: Sequence[int]) -> bool:
    """Whether each reading accepted no more than it read, and another one followed a rejection alone."""
    if len(step) < 2 or (not step[0] and len(step) > 2):
        return False
    read = [step[0], *(accepted + 1 for accepted in step[1:-1])]
    *rejecting, last = zip(read, step[1:], strict=True)
    return all(0 <= accepted < count for count, accepted in rejecting) and 0 <= last[1] <= last[0]


FEWER = "its stream has more pieces of text than the server counts tokens, and each holds a token at least"
OTHER_IDS = "it has another number of token ids than the server counts tokens"
ELSEWHERE = "another answer of the same text has more token ids or pieces of text than the server counts tokens"
DISPUTED = "the server counts another number of tokens for the same text in another answer"


def refusal(record: Record) -> str | None:
    """Return why the number of tokens of an answer is refused, by the answer alone; `None`: nothing contradicts it."""
    if record.error is not None:
        return None
    if record.tokens_listed is not None:
        return OTHER_IDS if record.tokens_listed != record.n_predicted else None
    return FEWER if tokens_shown(record) > record.n_predicted else None


def refusals(records: Sequence[Record]) -> list[str | None]:
    """Return why the number of tokens of each answer is refused, also by other answers of the same text.

    Equal texts have equally many tokens. Where their counts differ, that one is kept which token ids, or a stream of a
    piece of text a token, show; without such a stream none is. An answer with all its token ids shows its own.
    """
    reasons = [refusal(record) for record in records]
    if all(record.tokens_listed is not None or record.error is not None for record in records):
        return reasons
    same: dict[tuple[str, int, str, str | None], list[int]] = {}
    for row, record in enumerate(records):
        if record.error is None and record.content:
            same.setdefault((record.task, record.prompt_idx, record.content, record.finish_reason), []).append(row)
    for (*_, ending), rows in same.items():
        shown = max(tokens_shown(records[row]) for row in rows)
        listed = {count for row in rows if (count := records[row].tokens_listed) is not None}
        counted = [row for row in rows if records[row].tokens_listed is None and reasons[row] is None]
        possible = listed | {records[row].n_predicted for row in counted if records[row].n_predicted >= shown}
        ends = (shown,) if ending == "length" else (shown, shown + 1)  # the token that ends an answer has no text
        proven = listed or possible.intersection(ends)
        refused = possible if len(possible) == 1 else proven if len(proven) == 1 else set()
        for row in counted:
            if records[row].n_predicted not in refused:
                reasons[row] = ELSEWHERE if records[row].n_predicted < shown else DISPUTED
    return reasons


def tokens_shown(record: Record) -> int:
    """Return how many tokens an answer has at least: by its ids, its pieces of text, or in old records their bursts."""
    if record.tokens_listed is not None:
        return record.tokens_listed
    if record.text_events is not None:
        return record.text_events
    return len(record.burst_gaps_s) + 1 if record.burst_gaps_s else 0
