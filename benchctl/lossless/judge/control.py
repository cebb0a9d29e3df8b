"""An arm against controls: the test where scores of the target do not show its noise.

It is for overlapping requests on an engine whose shared batches cannot be read again, and for answers under a
constraint that scores ignore. Answers are compared prompt by prompt with three controls, as far as a run has them:

    arm       another arm of the same verify width: how often do its answers differ from all of the baseline's?
    noise     the baseline repeated, where the target's own noise at the verify width is measured and 0
    scores    the baseline's own answers, scored by prefill as the arm's: how far behind is their worst token?

If the arm is sound, then at each prompt it is chance whether the arm differs and the control does not, or the other way
round: the exact test of McNemar. Blocks add no evidence here, since an arm repeats its own rounding. The baseline
repeated is no control where the verify width may be noisy: it reads a token at a time. Where that noise is measured and
0, any answer may be any process's: the exact permutation test within prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import TYPE_CHECKING, Literal

import numpy as np

from benchctl.analysis.answers import same_answer
from benchctl.analysis.cells import identity_of, speculates, verify_width
from benchctl.analysis.conditions.split import is_greedy
from benchctl.analysis.losslessness import AUDIT_LEVEL, CHANGED_SHARE, TIMES_BEHIND, ArmAudit, ControlTest
from benchctl.analysis.statistics import holm, tests_after
from benchctl.lossless.judge.audit import PREFIXES
from benchctl.lossless.judge.noise import noise_of
from benchctl.lossless.judge.selection import key_of

if TYPE_CHECKING:
    from benchctl.analysis.analyse import Condition
    from benchctl.analysis.frame import Floats, Frame
    from benchctl.data.record import Record
    from benchctl.data.scores import AnswerKey, TargetScores

FEWEST_ROUNDS = 0.8
"""A control arm has at least this share of the arm's rounds: fewer rounds have less noise."""


@dataclass(frozen=True)
class Stratum:
    """The answers to a prompt, those of the arm and of its control."""

    arms: int
    controls: int
    differing: int
    """Of the arm's."""
    chances: Floats
    """P(0, 1, … of the arm's differ), where whose answer is whose is chance; an array of `arms` + 1."""


def paired(differs: bool, control_differs: bool) -> Stratum:
    """Return a prompt at which arm and control are as likely to have changed places."""
    chances = np.bincount([int(differs), int(control_differs)], minlength=2) / 2
    return Stratum(1, 1, int(differs), chances)


def by_class(sizes: Sequence[int], arms: int) -> Floats:
    """Return the chances where an answer differs that equals none of the control's; `sizes`: of equal answers."""
    ways = {(0, 0): 1}  # by how many answers are the arm's, and how many of those differ
    for size in sizes:
        further: dict[tuple[int, int], int] = {}
        for (arms_share, differing), count in ways.items():
            for number in range(min(size, arms - arms_share) + 1):
                key = (arms_share + number, differing + (number if number == size else 0))
                further[key] = further.get(key, 0) + count * comb(size, number)
        ways = further
    return np.array([ways.get((arms, number), 0) for number in range(arms + 1)]) / comb(sum(sizes), arms)


def exact_p(strata: Sequence[Stratum]) -> float:
    """Return P(as many of the arm's answers differ, or more), over all prompts."""
    total = np.ones(1)
    for stratum in strata:
        if stratum.chances[0] < 1:
            total = np.convolve(total, stratum.chances)
    return min(1.0, float(total[sum(stratum.differing for stratum in strata) :].sum()))


def power(prompts: int, chance: float, level: float) -> float:
    """Return the power at `level` to find an arm that changes its answers to `CHANGED_SHARE` of the prompts.

    `alone`: the chance of a prompt at which all of the arm's answers differ, and none of the control's.
    """
    needed = next((number for number in range(1, prompts + 1) if chance**number <= level), prompts + 1)
    share = CHANGED_SHARE
    return sum(comb(prompts, changed) * share**changed * (1 - share) ** (prompts - changed)
               for changed in range(needed, prompts + 1))  # fmt: skip


@dataclass(frozen=True)
class Tested:
    """An arm in its condition, with what is known of its target's noise."""

    condition: Condition
    arm: int
    scores: TargetScores | None

    @property
    def frame(self) -> Frame:
        """The condition's records."""
        return self.condition.frame

    def baselines(self, prompt: int) -> list[Record]:
        """Return the baseline's sound answers to a prompt, those of its second cell among them."""
        return self.answers(prompt, tuple(arm for arm in (self.frame.baseline, self.frame.again) if arm is not None))

    def answers(self, prompt: int, arms: Sequence[int] = ()) -> list[Record]:
        """Return the sound answers of these arms to a prompt, of all blocks; of the tested arm where none is named."""
        rows = [row for arm in arms or (self.arm,) for row in self.frame.row_at[arm, :, prompt].tolist()]
        return [self.frame.records[row] for row in rows if row >= 0 and self.condition.answers.flaw[row] is None]


def find_controls(
    conditions: Sequence[Condition],
    names: Sequence[str],
    scores: Mapping[str | None, TargetScores | None],
    audits: Mapping[str, ArmAudit],
    *,
    times_asked: int = 0,
) -> dict[str, ControlTest]:
    """Return the test of every named arm that has answers which scores do not decide; levels hold for all.

    `scores`: by part of the run; `times_asked`: how often further prompts were asked, as `audit_parts` has it.
    """
    results: dict[str, ControlTest] = {}
    for condition in conditions:
        frame = condition.frame
        if frame.manifest is None or not is_greedy(frame.manifest) or speculates(frame, frame.baseline):
            continue
        for arm in condition.compared:
            name = frame.arms[arm]
            audit = audits.get(name)
            undecided = condition.group.overlapping and (audit is None or audit.lacking is not None)
            prompts = [number for number, key in enumerate(frame.prompts) if undecided or key in frame.constrained]
            if name in names and prompts:
                tested = Tested(condition.of(arm), arm, scores.get(condition.group.run.part))
                results[name] = _test(tested, prompts)
    repeats = tests_after(times_asked)
    tests = {name: test.p for name, test in results.items() if test.p is not None}
    for name, adjusted in zip(tests, holm(list(tests.values())), strict=True):
        test = results[name]
        count = test.arms_answers, test.controls_answers
        differs_alone = float(by_class(count[::-1], count[0])[-1]) if test.against == "noise" else 0.5
        chance = power(test.tested, differs_alone, AUDIT_LEVEL / 2 / len(tests) / repeats / test.tests)
        changes = {"p_adjusted": min(1.0, adjusted * repeats), "power": chance}
        results[name] = test.model_copy(update=changes)
    return results


def _test(tested: Tested, prompts: Sequence[int]) -> ControlTest:
    """Test an arm against every control of the run; several tests are corrected by Bonferroni."""
    frame = tested.frame
    outside, varying = 0, 0
    for prompt in prompts:
        ours, theirs = tested.answers(prompt), tested.baselines(prompt)
        outside += any(_differs(answer, theirs) for answer in ours) if theirs else 0
        varying += any(not same_answer(theirs[0], answer) for answer in theirs[1:])
    candidates = [*_by_arms(tested, prompts), *_by_silence(tested, prompts), *_by_scores(tested, prompts)]
    against, control, strata = min(candidates, key=lambda candidate: exact_p(candidate[2]), default=(None, None, []))
    return ControlTest(
        arm=frame.arms[tested.arm],
        prompts=len(prompts),
        tested=len(strata),
        outside=outside,
        varying=varying,
        repeated=max((len(tested.baselines(prompt)) for prompt in prompts), default=0),
        against=against,
        control=control,
        differing=sum(stratum.differing > 0 for stratum in strata),
        tests=len(candidates),
        arms_answers=min((stratum.arms for stratum in strata), default=0),
        controls_answers=min((stratum.controls for stratum in strata), default=0),
        p=min(1.0, len(candidates) * exact_p(strata)) if strata else None,
    )


def _differs(answer: Record, references: Sequence[Record]) -> bool:
    return not any(same_answer(reference, answer) for reference in references)


Candidate = tuple[Literal["arm", "noise", "scores"], str | None, list[Stratum]]
"""The kind of control, the arm that it is, and the answers by prompt."""


def _by_arms(tested: Tested, prompts: Sequence[int]) -> Iterator[Candidate]:
    """Test against each arm of the same width and at least as many rounds: how often answers are not the baseline's."""
    frame = tested.frame
    for control in tested.condition.compared:
        if control == tested.arm or not _alike(frame, tested.arm, control):
            continue
        strata = []
        for prompt in prompts:
            theirs = tested.baselines(prompt)
            ours, controls = tested.answers(prompt), tested.answers(prompt, (control,))
            if theirs and ours and controls:
                blocks = min(len(ours), len(controls))
                strata.append(paired(*(any(_differs(answer, theirs) for answer in part[:blocks])
                                       for part in (ours, controls))))  # fmt: skip
        if strata:
            yield "arm", frame.arms[control], strata


def _alike(frame: Frame, arm: int, control: int) -> bool:
    """Whether another arm's verify steps are as wide and at least about as many: its noise is then no less."""
    (width, rounds), (control_width, control_rounds) = _rounds(frame, arm), _rounds(frame, control)
    if not speculates(frame, control) or width != control_width:
        return False
    if rounds is None or control_rounds is None:
        ours, theirs = (identity_of(frame.manifest, frame.arms[number]) for number in (arm, control))
        return ours is not None and theirs is not None and ours.speculation == theirs.speculation
    return control_rounds >= FEWEST_ROUNDS * rounds > 0


def _rounds(frame: Frame, arm: int) -> tuple[int | None, int | None]:
    """Return an arm's widest verify step and its rounds in all; `None`: not reported."""
    records = [frame.records[row] for row in frame.rows(arm).tolist() if frame.answered[row]]
    widths = [width for record in records if (width := verify_width(frame.manifest, record)) is not None]
    rounds = [record.rounds for record in records]
    return max(widths, default=None), None if None in rounds else sum(number or 0 for number in rounds)


def _by_silence(tested: Tested, prompts: Sequence[int]) -> Iterator[Candidate]:
    """Test against the baseline repeated, where reading as many tokens at once changes no margin of the target."""
    width, _ = _rounds(tested.frame, tested.arm)
    group = tested.condition.group
    slots = group.key.concurrency if group.overlapping and group.key is not None else 1
    noise = noise_of(tested.scores, () if width is None else (width,), slots)
    if tested.scores is None or tested.scores.shape == "prefill" or len(noise.margins) < PREFIXES or not noise.silent:
        return
    strata = []
    for prompt in prompts:
        ours, theirs = tested.answers(prompt), tested.baselines(prompt)
        if ours and len(theirs) > 1:
            differing = sum(_differs(answer, theirs) for answer in ours)
            chances = by_class(_class_sizes([*ours, *theirs]), len(ours))
            strata.append(Stratum(len(ours), len(theirs), differing, chances))
    if strata:
        yield "noise", None, strata


def _class_sizes(answers: Sequence[Record]) -> list[int]:
    """Return how many answers are equal to each other."""
    examples: list[Record] = []
    sizes: list[int] = []
    for answer in answers:
        number = next((number for number, example in enumerate(examples) if same_answer(example, answer)), None)
        if number is None:
            examples.append(answer)
            sizes.append(1)
        else:
            sizes[number] += 1
    return sizes


def _by_scores(tested: Tested, prompts: Sequence[int]) -> Iterator[Candidate]:
    """Test against the baseline's own answers, scored as the arm's: is a token farther behind than twice any of theirs?

    Were arm and baseline exchangeable at each prompt, the b answers that are farthest behind would all be the arm's
    with a chance of 2^-b at most, however many are scored.
    """
    if tested.scores is None or tested.scores.shape != "prefill":
        return
    gaps = {scored.answer: max((token.gap for token in scored.diverged), default=0.0)
            for scored in tested.scores.answers}  # fmt: skip
    paired_gaps = [(_gaps(tested.answers(prompt), gaps), _gaps(tested.baselines(prompt), gaps)) for prompt in prompts]
    paired_gaps = [(ours, theirs) for ours, theirs in paired_gaps if ours and len(theirs) >= len(ours)]
    if not paired_gaps:
        return
    limit = TIMES_BEHIND * max(gap for _, theirs in paired_gaps for gap in theirs)
    yield "scores", None, [paired(any(gap > limit for gap in ours), False) for ours, _ in paired_gaps]


def _gaps(answers: Sequence[Record], gaps: Mapping[AnswerKey, float]) -> list[float]:
    return [gaps[key] for key in map(key_of, answers) if key in gaps]
