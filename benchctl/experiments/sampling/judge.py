"""Whether an arm samples from the target's distribution: what a check found, and what it would have detected.

No test shows that two distributions are equal. So the best verdict is "no difference found", and it stands beside the
smallest difference that would have been detected nine times in ten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import ValidationError

from benchctl.analysis.result import Result
from benchctl.analysis.statistics import holm
from benchctl.experiments.sampling.permutation import (
    END,
    PromptSamples,
    names_of_tests,
    p_values,
    prefix_name,
    visible_sharpening,
    visible_shifts,
)
from benchctl.experiments.sampling.stored import CHECK, FORMAT
from benchctl.experiments.sampling.tokens import (
    FAR,
    NUCLEUS,
    TEMPERATURE,
    TERMS,
    TokenPower,
    added,
    p_of,
    token_power,
    token_tests,
)
from benchctl.recipes.schema import Sampling

if TYPE_CHECKING:
    from benchctl.data.manifest import ArmIdentity
    from benchctl.experiments.sampling.permutation import Tokens
    from benchctl.experiments.sampling.stored import SampledAnswer, SamplingData, TokenScores


SamplingWord = Literal["no difference found", "difference found", "lossy by design", "undetermined"]
"""Never “lossless”: no test shows that two distributions are equal."""


class SamplingTest(Result):
    """A test of an arm."""

    name: str
    p: float
    adjusted: float
    """By Holm's method, for all tests of all arms of the check."""


class SamplingPower(Result):
    """What would have been detected nine times in ten."""

    shifts: dict[int, float | None]
    """By prefix length, the smallest total variation of the prefixes' distribution; `None`: none up to 0.5."""
    temperature: float | None
    """The smallest relative change of the temperature; `None`: none up to 1, since too little varies."""


class ArmSampling(Result):
    """The verdict on an arm."""

    arm: str
    verdict: SamplingWord
    reason: str
    lossy: list[str]
    """Settings that are lossy by design."""
    answers: int
    left_out: int
    """Answers that failed, or whose token ids are not known."""
    drafted: int | None
    accepted: int | None
    tests: list[SamplingTest]
    """Empty where nothing could be compared."""
    token_power: TokenPower | None = None
    """`None` where its tokens were not scored on the target alone."""
    unscored: str | None = None
    """Why they were not, as the end of a sentence."""


class SamplingResult(Result):
    """Everything that a check found."""

    check: str
    recipe: str
    baseline: str
    status: str
    level: float
    """Chance of any false alarm in the whole check."""
    temperature: float
    top_k: int
    top_p: float
    seeds: int
    tokens: int
    """Longest answer."""
    prompts: list[str]
    baseline_answers: int
    power: SamplingPower | None
    """`None` where the baseline has no answers."""
    failed_arms: dict[str, str]
    damaged: int
    """Lines of answers that could not be read."""
    arms: list[ArmSampling]


UNSCORED = "its tokens were not scored on the target alone"
MOST_LEFT_OUT = 0.02
"""A larger share of answers without token ids could hide a difference, or make a difference."""
_HITS = 10
"""Permutations as extreme as the observation that the strictest level must leave room for."""


def sampling_verdict(data: SamplingData) -> SamplingResult:
    """Return the verdicts of a check from its stored answers alone: equal answers give equal numbers.

    Raises StorageError where the check's own sampling cannot be read.
    """
    manifest, settings, sampling = data.check.manifest, data.check.settings, _sampling(data)
    judged = _Judged(data, sampling.max_tokens)
    return SamplingResult(
        check=manifest.run,
        recipe=manifest.recipe_name,
        baseline=manifest.baseline,
        status=manifest.status,
        level=settings.level,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seeds=settings.seeds,
        tokens=sampling.max_tokens,
        prompts=[f"{prompt.task}/{prompt.prompt_idx}" for prompt in manifest.prompts],
        baseline_answers=len(judged.answers[manifest.baseline]),
        power=judged.power,
        failed_arms={arm: cell.error.message for arm, cell in judged.cells.items() if cell.error is not None},
        damaged=data.damaged,
        arms=[judged.arm(identity) for identity in manifest.arms if identity.name in settings.planned],
    )


def _sampling(data: SamplingData) -> Sampling:
    try:
        return Sampling.model_validate(data.check.manifest.recipe.get("sampling"))
    except ValidationError as error:
        raise FORMAT.unreadable(f"its sampling is none: {error.errors()[0]['msg']}", str(data.folder / CHECK)) from None


class _Judged:
    """The tests of all arms of a check, whose level they share."""

    def __init__(self, data: SamplingData, tokens: int) -> None:
        manifest, settings = data.check.manifest, data.check.settings
        self._data, self._tokens, self._level = data, tokens, settings.level
        self._planned, baseline = settings.planned, manifest.baseline
        self.cells = {cell.arm: cell for cell in manifest.cells}
        """The last of every arm: a resumed check has several."""
        self.answers: dict[str, list[SampledAnswer]] = {arm.name: [] for arm in manifest.arms}
        for answer in data.answers:
            self.answers.setdefault(answer.arm, []).append(answer)
        self._trouble = {name: self._trouble_of(name) for name in self.answers}
        usable = [name for name in self._planned if not (self._trouble[baseline] or self._trouble[name])]
        theirs = self._by_prompt(baseline)
        pairs_of = {name: zip(theirs, self._by_prompt(name), strict=True) for name in usable}
        self._samples = {
            name: [PromptSamples(theirs, ours) for theirs, ours in pairs if len(theirs) and len(ours)]
            for name, pairs in pairs_of.items()
        }
        scores = {name: [score for score in data.scores if score.arm == name] for name in self.answers}
        self._untrue = _untrue(scores[baseline], self._level)
        scored = [] if self._untrue or not scores[baseline] else usable
        self._scores = {name: scores[name] for name in scored if scores[name]}
        family = len(names_of_tests(tokens)) * len(self._planned) + (len(TERMS) + 1) * len(self._scores)
        self._strictest = self._level / family
        single = {name: token_tests(ours, scores[baseline]) for name, ours in self._scores.items()}
        self._tests = self._tested(single)
        answered = [] if data.integrity.reason else [rows for rows in theirs if len(rows)]
        self.power = None
        if answered:
            shifts = visible_shifts(answered, settings.seeds, self._strictest)
            heat = visible_sharpening(answered, settings.seeds, self._strictest)
            self.power = SamplingPower(shifts=shifts, temperature=heat)

    def arm(self, identity: ArmIdentity) -> ArmSampling:
        """Return the verdict on an arm."""
        name, answers = identity.name, self.answers[identity.name]
        power = token_power(self._scores[name], self._strictest) if name in self._scores else None
        drafted = _sum(answer.drafted for answer in answers)
        trouble = self._trouble[self._data.check.manifest.baseline] or self._trouble[name]
        if trouble is None and identity.speculation is not None and drafted == 0:
            trouble = "Speculation was on but never fired: nothing was drafted, so nothing of it was checked."
        verdict, reason = self._verdict(name, power, trouble, identity.lossy or [])
        return ArmSampling(
            arm=name,
            verdict=verdict,
            reason=reason,
            lossy=identity.lossy or [],
            answers=len(answers),
            left_out=sum(answer.token_ids is None for answer in answers),
            drafted=drafted,
            accepted=_sum(answer.accepted for answer in answers),
            tests=self._tests[name],
            token_power=power,
            unscored=None if power else self._untrue or UNSCORED,
        )

    def _by_prompt(self, arm: str) -> list[Tokens]:
        """Return the known token ids of an arm's answers, a prompt an array, filled up with `END`."""
        rows: dict[tuple[str, int], list[list[int]]] = {
            (prompt.task, prompt.prompt_idx): [] for prompt in self._data.check.manifest.prompts
        }
        for answer in self.answers[arm]:
            key = (answer.task, answer.prompt_idx)
            if answer.token_ids is not None and key in rows:
                ids = answer.token_ids[: self._tokens]
                rows[key].append(ids + [END] * (self._tokens - len(ids)))
        return [np.array(answers, dtype=np.int64).reshape(-1, self._tokens) for answers in rows.values()]

    def _trouble_of(self, arm: str) -> str | None:
        """Return why an arm's answers cannot be used, in a sentence."""
        data, answers = self._data, self.answers[arm]
        cell = self.cells.get(arm)
        lacking = sum(answer.token_ids is None for answer in answers)
        expected = data.check.settings.seeds * len(data.check.manifest.prompts)
        if data.integrity.reason:
            return data.integrity.reason
        if cell is None:
            return f"The check ended before {arm} had answered."
        if cell.status != "finished":
            return f"The engine of {arm} failed{': ' + cell.error.message if cell.error else '.'}"
        if not answers or lacking > MOST_LEFT_OUT * len(answers):
            return f"Of {arm} {lacking} of {len(answers)} answers have no token ids, which could hide a difference."
        if len(answers) != expected:
            return f"Of {arm} {len(answers)} of {expected} answers can be read; the others could hide a difference."
        return None

    def _tested(self, single: Mapping[str, Mapping[str, float]]) -> dict[str, list[SamplingTest]]:
        """Run every test of every arm; arms without samples count among the tests that p is corrected for.

        `single`: of the arms whose tokens were scored, the p-values of the tests of single tokens.
        """
        names = names_of_tests(self._tokens)
        resamples = round(_HITS * (len(names) * len(self._planned) + sum(map(len, single.values()))) / self._level)
        p_by_test: list[tuple[str, str, float]] = []
        for arm in self._planned:
            samples = self._samples.get(arm)
            ours = p_values(samples, resamples) if samples else [1.0] * len(names)
            p_by_test += [(arm, name, p) for name, p in [*zip(names, ours, strict=True), *single.get(arm, {}).items()]]
        tests: dict[str, list[SamplingTest]] = {arm: [] for arm in self._planned}
        for (arm, name, p), adjusted in zip(p_by_test, holm([p for _, _, p in p_by_test]), strict=True):
            if self._samples.get(arm):
                tests[arm].append(SamplingTest(name=name, p=p, adjusted=adjusted))
        return tests

    def _verdict(
        self, arm: str, power: TokenPower | None, trouble: str | None, lossy: Sequence[str]
    ) -> tuple[SamplingWord, str]:
        design = f"Lossy by design ({', '.join(lossy)}). " if lossy else ""
        significant = [test for test in self._tests[arm] if test.adjusted <= self._level]
        if trouble is None and significant:
            return "difference found", design + _difference(significant, self._scores.get(arm, []))
        if lossy:
            return "lossy by design", design + (trouble or "These answers do not show it, but others may.")
        if trouble is not None:
            return "undetermined", trouble
        blind = self.power is None or all(shift is None for shift in self.power.shifts.values())
        if blind and (power is None or power.temperature is None):
            return "undetermined", "Too few answers: no shift of the distribution up to 0.5 would have been detected."
        count = sum(len(prompt.arm) for prompt in self._samples[arm])
        tokens = f" and in {power.tokens:,} tokens beside the target's own distribution" if power else ""
        return "no difference found", (
            f"No difference found in {count:,} answers{tokens}; would have detected, nine times in ten, "
            f"{_seen(self.power, power)}."
        )


def _untrue(baseline: Sequence[TokenScores], level: float) -> str | None:
    """Return that the baseline's own tokens contradict the target's distribution; `None` where they do not."""
    sums = {name: total for name in (TEMPERATURE, NUCLEUS) if (total := added(baseline, name)) is not None}
    contradicting = [name for name, total in sums.items() if p_of(total, name) <= level / 2]
    if not contradicting:
        return None
    return f"the baseline's own tokens contradict the target's distribution as it was read ({', '.join(contradicting)})"


def _sum(values: Iterable[int | None]) -> int | None:
    reported = [value for value in values if value is not None]
    return sum(reported) if reported else None


def _seen(power: SamplingPower | None, tokens: TokenPower | None) -> str:
    """Return what would have been detected nine times in ten: the smallest shift of a prefix, the smallest change."""
    shifts = [(shift, length) for length, shift in power.shifts.items() if shift is not None] if power else []
    detectable = [
        f"a shift of total variation of {shift:.2f} in the {prefix_name(m)}" for shift, m in sorted(shifts)[:1]
    ]
    changes = [
        source.temperature for source in (power, tokens) if source is not None and source.temperature is not None
    ]
    detectable += [f"a temperature wrong by {100 * min(changes):.2g} %"] if changes else []
    return " or ".join(detectable)


def _difference(significant: Sequence[SamplingTest], scores: Sequence[TokenScores]) -> str:
    """Return what differs: every significant test, and what those of tokens show."""
    tests = ", ".join(f"{test.name} (p = {test.adjusted:.2g})" for test in significant)
    message = f"The arm samples differently from the target, by {tests}, p corrected for the number of tests."
    names = {test.name for test in significant}
    if prefix_name(1) in names:
        return f"{message} The first token, which is never speculated, differs already: another sampler or prompt."
    shown = [_of_tokens(name, scores) for name in (*TERMS, FAR) if name in names]
    return " ".join([message, *shown])


def _of_tokens(name: str, scores: Sequence[TokenScores]) -> str:
    """Return what a test of single tokens shows, in a sentence."""
    count, total = sum(answer.tokens for answer in scores), added(scores, name)
    if total is None:
        far = sum(answer.far for answer in scores)
        return f"{far:,} of {count:,} tokens are outside what the sampler settings allow."
    if name == TEMPERATURE:
        change = 100 * total.excess / total.variance
        return f"Its tokens are {'likelier' if change > 0 else 'less likely'} by {abs(change):.0f} % of a temperature."
    observed = total.expected + total.excess
    return f"{name}: {observed:,.0f} of {count:,} tokens, where {total.expected:,.0f} are expected."
