"""Whether one run says what another said, arm by arm and prompt by prompt."""

from __future__ import annotations

from collections.abc import Sequence

from benchctl.analysis.answers import Answers, same_answer
from benchctl.analysis.frame import Frame, PromptKey
from benchctl.analysis.results import Result
from benchctl.data.record import Record


class Outputs(Result):
    """Prompts of an arm by whether both runs answered them alike; together they are all prompts of both runs."""

    same: int
    differing: list[str]
    """`task/prompt_idx`: each run repeats itself, and they do not say the same."""
    undetermined: list[str]
    """A run does not repeat itself, has no sound answer, or the model did not see the same text; or several requests
    were in flight, and they do not say the same."""


def compare_answers(a: Frame, answers_a: Answers, b: Frame, answers_b: Answers, arm: str) -> Outputs:
    """Compare the answers of an arm that both frames have; nothing is equal by absence."""
    told_a, told_b = _sound(a, answers_a, arm), _sound(b, answers_b, arm)
    same, differing, undetermined = 0, [], []
    for task, index in dict.fromkeys([*a.prompts, *b.prompts]):
        before, after = told_a.get((task, index)), told_b.get((task, index))
        if not before or not after or not _alike(before) or not _alike(after) or not _same_prompt(before[0], after[0]):
            undetermined.append(f"{task}/{index}")
        elif same_answer(before[0], after[0]):
            same += 1
        else:
            differing.append(f"{task}/{index}")
    return Outputs(same=same, differing=differing, undetermined=undetermined)


def _sound(frame: Frame, answers: Answers, arm: str) -> dict[PromptKey, list[Record]]:
    """The answers to every prompt whose answers in all blocks are there and sound."""
    rows = frame.row_at[frame.arms.index(arm)]
    whole = answers.sound[rows].all(axis=0)
    return {
        key: [frame.records[row] for row in rows[:, place].tolist()]
        for place, key in enumerate(frame.prompts)
        if whole[place]
    }


def _alike(told: Sequence[Record]) -> bool:
    return all(same_answer(told[0], one) and _same_prompt(told[0], one) for one in told[1:])


def _same_prompt(left: Record, right: Record) -> bool:
    return left.prompt_sha is None or right.prompt_sha is None or left.prompt_sha == right.prompt_sha
