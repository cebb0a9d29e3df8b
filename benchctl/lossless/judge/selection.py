"""Which answers an audit scores: of every arm that is not token-identical to its baseline, or overlapped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from benchctl.analysis.answers import common_length
from benchctl.analysis.cells import first_token_by_round, invariant_by, speculates, verify_width
from benchctl.analysis.conditions.split import is_greedy
from benchctl.analysis.losslessness import Reason, because
from benchctl.data.record import Record, sha256_tokens
from benchctl.errors import UsageError
from benchctl.prompts.load import load_suite, prompt_sha256

if TYPE_CHECKING:
    from benchctl.analysis.conditions.split import ConditionRun
    from benchctl.analysis.frame import Frame
    from benchctl.data.manifest import Manifest, PromptIdentity
    from benchctl.data.scores import AnswerKey
    from benchctl.prompts.suite import Prompt


@dataclass(frozen=True)
class Answer:
    """A distinct answer to a prompt."""

    task: str
    prompt_idx: int
    prompt_sha: str | None
    prompt_tokens: int | None
    token_ids: tuple[int, ...]
    token_sha: str

    @property
    def key(self) -> AnswerKey:
        """Which answer it is, as `ScoredAnswer.key`."""
        return (self.task, self.prompt_idx, self.prompt_sha, self.token_sha)


@dataclass(frozen=True)
class Reach:
    """How many tokens of an answer may differ by rounding: those that a round with a draft decided, and all after it.

    What a round writes into the cache or a recurrent state changes later tokens as much as its own, those of a token
    at a time, too (`benchmarks.state_noise`). Before the first such round, nothing differs from the target alone: so
    the first token, which the prompt's reading decides, never does (but see `first_token_by_round`). Where the first
    round was is not reported, so that there is a range.
    """

    fewest: int
    """Where the first such round was as late as its counters allow: the tokens that rounds decided."""
    largest: int
    """Where it was the first of all: every token after the prompt's own; 0 of an answer that drafted nothing."""


@dataclass(frozen=True)
class ArmAnswers:
    """The answers of an arm that is to be audited."""

    arm: str
    widths: tuple[int, ...]
    """Tokens of a request that the target may have read at once while it gave them; empty where not reported."""
    answers: tuple[Answer, ...]
    """Distinct ones, of all blocks."""
    agreed: dict[AnswerKey, int]
    """Tokens that each has in common with the baseline's own answer, from its first."""
    overlapping: bool
    slots: int = 1
    """Requests that shared its batches, at most."""
    baseline: str = ""
    """The arm that it is compared with."""
    rejecting: float | None = None
    """Share of the tokens of answers that drafted at which a draft token was rejected, at least; `None` where that is
    not reported."""
    reach: dict[AnswerKey, Reach] = field(default_factory=dict)
    """What rounds with a draft reach of each answer; of those that are absent, all."""


@dataclass(frozen=True)
class Selection:
    """The answers that an audit of a run scores."""

    arms: tuple[ArmAnswers, ...] = ()
    baseline_answers: tuple[Answer, ...] = ()
    """The baselines' own answers to the same prompts."""
    lacks: dict[str, Reason] = field(default_factory=dict)
    """By arm, why none of its answers can be audited."""
    equal: tuple[Answer, ...] = ()
    """The answers of arms that give the baseline's throughout: their margins show the power of that."""

    @property
    def prompts(self) -> list[list[Answer]]:
        """The arms' distinct answers by prompt; the prompts in an order independent of their content."""
        by_prompt: dict[tuple[str, int], dict[AnswerKey, Answer]] = {}
        for arm in self.arms:
            for answer in arm.answers:
                by_prompt.setdefault((answer.task, answer.prompt_idx), {}).setdefault(answer.key, answer)
        shuffled = sorted(by_prompt, key=lambda key: sha256(f"{key[0]}/{key[1]}".encode()).digest())
        return [list(by_prompt[prompt].values()) for prompt in shuffled]

    @property
    def widths(self) -> list[int]:
        """Every verify width of requests that had a batch to themselves, narrowest first."""
        return sorted({width for arm in self.arms for width in arm.widths if width > 1 and arm.slots == 1})

    @property
    def shared(self) -> list[tuple[int, int, str]]:
        """Every (width, slots, baseline) of requests that shared their batches."""
        return sorted({(width, arm.slots, arm.baseline) for arm in self.arms for width in arm.widths if arm.slots > 1})

    def with_baseline_answers(self) -> Selection:
        """Return the selection with the baseline's own answers as those of a further arm, to measure noise on."""
        return replace(self, arms=(*self.arms, _further_arm(self.baseline_answers)))

    def equal_alone(self) -> Selection:
        """Return the answers of identical arms as those of a single arm."""
        return Selection((_further_arm(self.equal),) if self.equal else ())


def _further_arm(answers: tuple[Answer, ...]) -> ArmAnswers:
    """Return the target's own answers as those of an arm without rounds."""
    return ArmAnswers("", (), answers, {answer.key: len(answer.token_ids) for answer in answers}, overlapping=False)


def select_answers(parts: Iterable[tuple[ConditionRun, Frame]], arms: Sequence[str] | None = None) -> Selection:
    """Return what is to be audited of a run's conditions. `arms`: only these, where named."""
    arm_answers: list[ArmAnswers] = []
    baselines: dict[AnswerKey, Answer] = {}
    equal: dict[AnswerKey, Answer] = {}
    lacks: dict[str, Reason] = {}
    by_record: _Made = {}
    for group, frame in parts:
        if not is_greedy(frame.manifest) or frame.manifest is None or speculates(frame, frame.baseline):
            continue
        theirs = _answers(frame, frame.baseline, by_record)
        for arm in frame.compared:
            name = frame.arms[arm]
            if arms is not None and name not in arms:
                continue
            ours = _answers(frame, arm, by_record)
            if not group.overlapping and all(theirs.get(cell) == answer for cell, answer in ours.items()):
                equal |= {answer.key: answer for answer in ours.values()}
                continue  # of overlapping requests the baseline's own answers need not be the target's alone
            distinct = tuple({answer.key: answer for answer in ours.values()}.values())
            agreed = {
                answer.key: common_length(answer.token_ids, theirs[cell].token_ids) if cell in theirs else 0
                for cell, answer in ours.items()
            }
            # Where an engine promises the same numbers in any batch, sharing one makes no noise.
            widths, slots = _widths(frame, arm), 1 if invariant_by(frame, name) else _slots(group)
            if not widths:
                lacks[name] = because("no-width")
            elif slots is None:
                lacks[name] = because("no-slots")
            baseline = frame.arms[frame.baseline]
            depth = max(widths, default=1) - 1
            rejecting = proposed_share(frame, arm)
            reach = {} if group.overlapping else _reach(frame, arm, ours, depth)
            arm_answers.append(
                ArmAnswers(name, widths, distinct, agreed, group.overlapping, slots or 1, baseline, rejecting, reach)
            )
            baselines |= {answer.key: answer for answer in theirs.values()}
    return Selection(tuple(arm_answers), tuple(baselines.values()), lacks, tuple(equal.values()))


_Made = dict[tuple[object, ...], "Answer | None"]
"""Answers by what identifies their records: most blocks and arms give the same ones, and hash them once."""


def _answers(frame: Frame, arm: int, by_record: _Made) -> dict[tuple[int, int], Answer]:
    """Return an arm's whole answers by block and prompt."""
    answers = {}
    for row in frame.rows(arm).tolist():
        record = frame.records[row]
        if record.error is None and record.token_ids and (record.task, record.prompt_idx) not in frame.constrained:
            # Reading shares the lists of equal answers, and `frame` keeps them alive: an id is of a single list.
            prompt = (record.task, record.prompt_idx, record.prompt_sha, record.prompt_tokens)
            key = (id(record.token_ids), record.token_sha, *prompt)
            if key not in by_record:
                by_record[key] = answer_of(record)
            if (answer := by_record[key]) is not None:
                answers[int(frame.block[row]), int(frame.prompt[row])] = answer
    return answers


def answer_of(record: Record) -> Answer | None:
    """Return the answer of a record; `None` where it has none, or its tokens are not those of their hash."""
    ids = tuple(record.token_ids or ())
    if record.error is not None or not ids or record.token_sha != sha256_tokens(ids):
        return None
    return Answer(record.task, record.prompt_idx, record.prompt_sha, record.prompt_tokens, ids, record.token_sha)


def key_of(record: Record) -> AnswerKey:
    """Return which answer a record holds, as `Answer.key`."""
    return (record.task, record.prompt_idx, record.prompt_sha, record.token_sha or "")


def widest_step(frame: Frame, arm: int) -> int | None:
    """Return how many tokens of a request an arm's widest verify step read at once; `None`: not reported."""
    reported = {verify_width(frame.manifest, frame.records[row]) for row in frame.rows(arm).tolist()}
    return max((width for width in reported if width is not None), default=None)


def _widths(frame: Frame, arm: int) -> tuple[int, ...]:
    width = widest_step(frame, arm)
    return () if width is None else (width,)


def _reach(frame: Frame, arm: int, answers: Mapping[tuple[int, int], Answer], depth: int) -> dict[AnswerKey, Reach]:
    """Return the reach of rounds for every answer; `depth`: of the arm's longest draft."""
    reaches: dict[AnswerKey, Reach] = {}
    by_prompt = 0 if first_token_by_round(frame.manifest, frame.arms[arm]) else 1
    for row in frame.rows(arm).tolist():
        answer = answers.get((int(frame.block[row]), int(frame.prompt[row])))
        if answer is None:
            continue
        reach = _reach_of(frame.records[row], len(answer.token_ids) - by_prompt, depth)
        before = reaches.get(answer.key, reach)  # several blocks may have given it, each with rounds of its own
        reaches[answer.key] = Reach(min(reach.fewest, before.fewest), max(reach.largest, before.largest))
    return reaches


def _reach_of(record: Record, tokens: int, depth: int) -> Reach:
    """`tokens`: those of the answer that rounds may have decided."""
    if record.draft_n == 0:
        return Reach(0, 0)
    if record.draft_n is None or record.draft_n_accepted is None or depth < 1:
        return Reach(0, tokens)
    rounds = max(record.rounds or 0, math.ceil(record.draft_n / depth))  # those that drafted, at least
    return Reach(min(tokens, rounds + record.draft_n_accepted), tokens)


def proposed_share(frame: Frame, arm: int) -> float | None:
    """Return `ArmAnswers.rejecting`: about how often the draft proposes another token than the target's likeliest."""
    depth = max(_widths(frame, arm), default=1) - 1
    records = [frame.records[row] for row in frame.rows(arm).tolist()]
    reporting = [record for record in records if record.draft_n and record.draft_n_accepted is not None]
    tokens = sum(record.n_predicted or 0 for record in reporting)
    return sum(_rejections(record, depth) for record in reporting) / tokens if tokens else None


def _rejections(record: Record, depth: int) -> float:
    """Return in how many rounds of an answer a draft token was rejected, at least.

    A rejection wastes at most `depth` draft tokens; and every round that neither had all `depth`
    accepted nor was shorter has a rejection.
    """
    drafted, accepted = record.draft_n or 0, record.draft_n_accepted or 0
    if depth < 1 or not drafted:
        return 0.0
    by_waste = (drafted - accepted) / depth
    by_position = record.accepted_by_position or []
    if record.rounds is None or len(by_position) < depth:
        return by_waste
    shorter = record.rounds * depth - drafted  # rounds, at most: each lacks a token at least
    return max(by_waste, record.rounds - by_position[depth - 1] - shorter)


def _slots(group: ConditionRun) -> int | None:
    """Return how many requests the engine worked on together; `None` for an endpoint that was sent them at a rate."""
    if not group.overlapping or group.key is None:
        return 1
    return group.key.concurrency if group.key.rate is None else None


def unchanged_prompts(manifest: Manifest, suite: str, folder: Path) -> dict[tuple[str, int], Prompt]:
    """Return the run's prompts that are in `suite` still as they were, by task and index. Raises UsageError.

    Those that were asked after the run are in suites of their own, and left out where one cannot be read.
    """
    skip_bad = bool((manifest.recipe.get("prompts") or {}).get("skip_bad"))
    further = manifest.further.prompts if manifest.further else []
    places: dict[str, list[tuple[PromptIdentity, str]]] = {
        suite: [(prompt, prompt.task) for prompt in manifest.prompts]
    }
    for later in further:
        places.setdefault(str(Path(later.suite).expanduser()), []).append((later, later.suite_task))
    unchanged: dict[tuple[str, int], Prompt] = {}
    for name, identities in places.items():
        try:
            prompts = load_suite(name, recipe_folder=folder, skip_bad=skip_bad and name == suite).tasks
        except UsageError:
            if name == suite:
                raise
            continue
        unchanged |= {
            (identity.task, identity.prompt_idx): prompt
            for identity, task in identities
            for prompt in prompts.get(task, ())[identity.prompt_idx : identity.prompt_idx + 1]
            if prompt_sha256(prompt) == identity.sha256
        }
    return unchanged
