"""Judging an arm by replay: is every token the target's likeliest, where it reads the arm's own batches?

Numeric noise is a function of the batch. So the target alone reads every step of an answer again, with the same tokens
in a batch of the same width and start, and a sound engine's token is the likeliest of its row everywhere: one deviation
is a violation, and no statistic is needed. The control is the baseline: where its own answers, read a token at a time,
do not replay exactly, replay decides nothing.

The rule holds for an arm whose answers equal the baseline's, too. A sound engine emits what its own batch prefers; one
that emits the baseline's token where its batch prefers another accepted a token that the target did not choose there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from benchctl.analysis.cells import speculates, speculation_of
from benchctl.analysis.conditions.split import is_greedy
from benchctl.analysis.losslessness import ArmReplay, Reason, ReplayDeviation, because
from benchctl.analysis.scope import prompt_cache
from benchctl.data.counts import drafted_in, from_prompt, steps_contradiction
from benchctl.data.scores import Replays, sha256_steps
from benchctl.lossless.judge.selection import Answer, answer_of
from benchctl.words.unscored import unscored

if TYPE_CHECKING:
    from benchctl.analysis.conditions.split import ConditionRun
    from benchctl.analysis.frame import Frame
    from benchctl.data.record import Record
    from benchctl.data.scores import AnswerKey, DeviatingToken, ReplayedAnswer, ReplayTarget

PromptKey = tuple[str, int]
Steps = Sequence[Sequence[int]]
"""`benchctl.data.record.Record.target_steps`."""


@dataclass(frozen=True)
class SteppedAnswer:
    """An answer with the steps that it was made in."""

    answer: Answer
    steps: Steps
    steps_sha: str

    @property
    def key(self) -> tuple[AnswerKey, str]:
        """Which answer in which steps it is, as `ReplayedAnswer.key`."""
        return self.answer.key, self.steps_sha

    @property
    def prompt(self) -> PromptKey:
        """The prompt that was answered."""
        return self.answer.task, self.answer.prompt_idx


@dataclass(frozen=True)
class ArmSteps:
    """The answers of an arm that can be replayed, distinct by tokens and steps, and the others."""

    arm: str
    answers: tuple[SteppedAnswer, ...]
    without: dict[PromptKey, int] = field(default_factory=dict)
    """By prompt, answers that cannot be replayed: missing, failed, without ids, or of unknown steps."""
    lacks: Reason | None = None
    """Why none of them is to be replayed."""

    @property
    def of(self) -> int:
        """All of them."""
        return len(self.answers) + sum(self.without.values())


def select_steps(group: ConditionRun, frame: Frame, arms: Sequence[str]) -> list[ArmSteps]:
    """Return what is to be replayed of a condition: of its baseline, which is the control, then of each named arm."""
    lacks = _lacks(group, frame)
    names = [frame.arms[arm] for arm in frame.compared if frame.arms[arm] in arms]
    if lacks is not None:
        return [ArmSteps(name, (), lacks=lacks) for name in names]
    return [_steps_of_arm(frame, frame.arms.index(name)) for name in (frame.arms[frame.baseline], *names)]


def _lacks(group: ConditionRun, frame: Frame) -> Reason | None:
    """Return why a condition's answers cannot be replayed."""
    if group.overlapping:
        return because("replay-shared")
    if not is_greedy(frame.manifest):
        return because("replay-sampled")
    if speculates(frame, frame.baseline):
        return because("replay-baseline-speculates")
    return because("replay-cached") if prompt_cache(frame.manifest, frame.arms[frame.baseline]) else None


def _steps_of_arm(frame: Frame, arm: int) -> ArmSteps:
    answers: dict[tuple[AnswerKey, str], SteppedAnswer] = {}
    without: dict[PromptKey, set[str]] = {}
    drafts = bool(speculation_of(frame, frame.arms[arm]))
    for prompt, key in enumerate(frame.prompts):
        for row in frame.row_at[arm, :, prompt].tolist():
            if row < 0 and frame.pooled:
                continue
            record = frame.records[row] if row >= 0 else None
            stepped = None if record is None else _stepped(record, drafts=drafts)
            if stepped is not None:
                answers.setdefault(stepped.key, stepped)
            else:
                sha = record.token_sha if record is not None and record.error is None else None
                without.setdefault(key, set()).add(sha or f"row {row}")
    return ArmSteps(frame.arms[arm], tuple(answers.values()), {key: len(rows) for key, rows in without.items()})


def _stepped(record: Record, *, drafts: bool) -> SteppedAnswer | None:
    """Return an answer with its steps; `None` where either is not known. `drafts`: whether its arm speculates."""
    answer = answer_of(record)
    if answer is None:
        return None
    count = len(answer.token_ids)
    steps = record.target_steps
    if steps is not None:
        counters = {"drafted": record.draft_n, "accepted": record.draft_n_accepted, "rounds": record.rounds}
        known = steps_contradiction(steps, tokens=count, **counters) is None
        return SteppedAnswer(answer, steps, sha256_steps(steps)) if known else None
    if record.draft_n == 0 or not (drafts or record.draft_n):
        return SteppedAnswer(answer, *_plain(count))
    return None


@cache
def _plain(tokens: int) -> tuple[Steps, str]:
    """Return the steps of an answer that was made a token at a time."""
    steps = ((0, 0),) * (tokens - 1)
    return steps, sha256_steps(steps)


@dataclass(frozen=True)
class JudgedReplay:
    """What the replay of an arm shows."""

    summary: ArmReplay
    deviations: Mapping[PromptKey, ReplayDeviation] = field(default_factory=dict)
    """The first of every prompt, where the control is exact."""
    exact: frozenset[PromptKey] = frozenset()
    """Prompts to which every answer of the arm replays exactly, where the control is exact."""


def judge_replays(group: ConditionRun, frame: Frame, replays: Replays, arms: Sequence[str]) -> dict[str, JudgedReplay]:
    """Return what was replayed of each named arm of a condition, or why it cannot be."""
    selected = select_steps(group, frame, arms)
    if not selected or selected[0].lacks is not None:
        return {steps.arm: JudgedReplay(_summary(steps, [], [], steps, "", steps.lacks)) for steps in selected}
    control, *compared = selected
    of_control = _replayed(control, replays)
    judged = {}
    for steps in compared:
        if not steps.answers:
            unknown = because("replay-unknown-steps")
            judged[steps.arm] = JudgedReplay(_summary(steps, [], [], control, "", unknown))
        else:
            judged[steps.arm] = _judge(steps, control, [reading for _, reading in of_control], replays)
    return judged


def target_of(replays: Replays | None, arm: str) -> ReplayTarget | None:
    """Return the target that replayed an arm's answers."""
    return next((target for target in replays.targets if arm in target.arms), None) if replays else None


def _replayed(steps: ArmSteps, replays: Replays | None) -> list[tuple[SteppedAnswer, ReplayedAnswer]]:
    """Return the answers that were replayed whole, with what that showed."""
    target = target_of(replays, steps.arm)
    by_key = {answer.key: answer for answer in target.answers} if target else {}
    pairs = [(stepped, by_key[stepped.key]) for stepped in steps.answers if stepped.key in by_key]
    return [(stepped, reading) for stepped, reading in pairs if reading.rows == len(stepped.answer.token_ids)]


def _judge(steps: ArmSteps, control: ArmSteps, of_control: list[ReplayedAnswer], replays: Replays) -> JudgedReplay:
    target, pairs = target_of(replays, steps.arm), _replayed(steps, replays)
    evidence = target.evidence if target else ""
    lacking = _control_lacks(control, of_control, replays)
    if lacking is not None:
        return JudgedReplay(_summary(steps, pairs, of_control, control, evidence, lacking))
    if len(pairs) < steps.of:
        lacking = because("replay-partial", replayed=len(pairs), of=steps.of, reason=_partial(steps, replays))
    deviations: dict[PromptKey, ReplayDeviation] = {}
    for stepped, reading in pairs:
        if reading.deviations:
            deviations.setdefault(stepped.prompt, _deviation(stepped, reading.deviations[0]))
    read = {stepped.key for stepped, _ in pairs}
    unread = {stepped.prompt for stepped in steps.answers if stepped.key not in read}
    exact = {stepped.prompt for stepped, _ in pairs} - unread - steps.without.keys() - deviations.keys()
    counted = {
        "deviating": sum(len(reading.deviations) for _, reading in pairs),
        "first": next(iter(deviations.values()), None),
    }
    summary = _summary(steps, pairs, of_control, control, evidence, lacking).model_copy(update=counted)
    return JudgedReplay(summary, deviations, frozenset(exact))


def _control_lacks(control: ArmSteps, readings: Sequence[ReplayedAnswer], replays: Replays) -> Reason | None:
    """Return why the control does not show that replay computes what the run did."""
    deviating, of = sum(bool(reading.deviations) for reading in readings), len(control.answers)
    if deviating:
        return because("replay-control", deviating=deviating, of=len(readings))
    if len(readings) < of or not of:
        reason = _partial(control, replays)
        return because("replay-control-partial", replayed=len(readings), of=of, reason=reason)
    return None


def _partial(steps: ArmSteps, replays: Replays) -> str:
    """Return why not all answers were replayed, as the end of a sentence."""
    if steps.arm in replays.lacks:
        return replays.lacks[steps.arm]
    return unscored(because("replay-no-steps" if steps.without else "replay-unfinished"))


def _deviation(stepped: SteppedAnswer, token: DeviatingToken) -> ReplayDeviation:
    answer = stepped.answer
    step, width, draft = find_step(stepped.steps, token.index)
    return ReplayDeviation(
        task=answer.task,
        prompt_idx=answer.prompt_idx,
        index=token.index,
        token=answer.token_ids[token.index],
        likeliest=token.likeliest,
        gap=token.gap,
        step=step,
        width=width,
        draft=draft,
    )


def find_step(steps: Steps, index: int) -> tuple[int, int, int | None]:
    """Return which step decided token `index` of an answer, from 1, its width, and the token's place in the draft.

    Step 0 is the reading of the prompt, whose width is 0 here. After a checkpoint the batch that was read again counts.
    """
    end = 0
    for number, step in enumerate(from_prompt(steps)):
        drafted = step[0] if len(step) == 2 else step[-2] + 1  # what was accepted, and the target's own token
        accepted = step[-1]
        if index <= end + accepted:
            offset = index - end
            return number, drafted + 1 if number else 0, offset + 1 if offset < accepted else None
        end += accepted + 1
    raise ValueError(f"the steps bring {end} tokens, and there is no token {index}")


def _summary(
    steps: ArmSteps,
    pairs: Sequence[tuple[SteppedAnswer, ReplayedAnswer]],
    of_control: Sequence[ReplayedAnswer],
    control: ArmSteps,
    evidence: str,
    lacking: Reason | None,
) -> ArmReplay:
    return ArmReplay(
        arm=steps.arm,
        answers=len(pairs),
        of=steps.of,
        rounds=sum(bool(drafted_in(step)) for stepped, _ in pairs for step in stepped.steps),
        tokens=sum(reading.rows for _, reading in pairs),
        control=len(of_control),
        control_of=len(control.answers),
        control_deviating=sum(bool(reading.deviations) for reading in of_control),
        evidence=evidence,
        lacking=unscored(lacking) if lacking is not None else None,
    )
