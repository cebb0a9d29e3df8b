"""Whether an arm samples from the target's distribution: what a check found, and what it would have detected.

No test shows that two distributions are equal. So the best verdict is "no difference found", and it stands beside the
smallest difference that would have been detected nine times in ten.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import ValidationError

from benchctl.analysis.result import Result
from benchctl.analysis.statistics import holm
from benchctl.experiments.sampling.permutation import (
    END,
    SHARPNESS,
    PromptSamples,
    names_of_tests,
    p_values,
    prefix_name,
    score,
    visible_sharpening,
    visible_shifts,
)
from benchctl.experiments.sampling.stored import CHECK, FORMAT, TokenScores
from benchctl.experiments.sampling.tokens import (
    DRAFT_FIRST,
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
    from benchctl.data.cell import Cell
    from benchctl.data.manifest import ArmIdentity, Manifest
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

_REPORTED = (2, 4, 8)
"""Prefix lengths whose power a sentence reports; the table has all."""


@dataclass(frozen=True)
class Evidence:
    """The data on an arm."""

    samples: Sequence[PromptSamples]
    scores: Sequence[TokenScores]
    power: SamplingPower | None
    token_power: TokenPower | None


def sampling_verdict(data: SamplingData) -> SamplingResult:
    """Return the verdicts of a check from its stored answers alone: equal answers give equal numbers.

    Raises StorageError where the check's own sampling cannot be read.
    """
    manifest, settings, distrust = data.check.manifest, data.check.settings, data.integrity.reason
    try:
        sampling = Sampling.model_validate(manifest.recipe.get("sampling"))
    except ValidationError as error:
        raise FORMAT.unreadable(f"its sampling is none: {error.errors()[0]['msg']}", str(data.folder / CHECK)) from None
    tokens = sampling.max_tokens
    answers: dict[str, list[SampledAnswer]] = {arm.name: [] for arm in manifest.arms}
    for answer in data.answers:
        answers.setdefault(answer.arm, []).append(answer)
    trouble = {name: distrust or _trouble(data, name, answers[name]) for name in answers}
    samples = {
        name: _samples(data, answers[manifest.baseline], answers[name], tokens)
        for name in settings.planned
        if trouble[name] is None and trouble[manifest.baseline] is None
    }
    scored = {name: [score for score in data.scores if score.arm == name] for name in answers}
    untrue = _untrue(scored[manifest.baseline], settings.level)
    tokens_of = {name: scored[name] for name in samples if scored[name] and scored[manifest.baseline] and not untrue}
    family = len(names_of_tests(tokens)) * len(settings.planned) + (len(TERMS) + 1) * len(tokens_of)
    single = {name: token_tests(ours, scored[manifest.baseline]) for name, ours in tokens_of.items()}
    tests = _tests(samples, single, settings.planned, tokens, settings.level)
    power = None if distrust else _power(data, answers[manifest.baseline], tokens, settings.level / family)
    arms = []
    for identity in (arm for arm in manifest.arms if arm.name in settings.planned):
        name = identity.name
        why = trouble[manifest.baseline] or trouble[name] or _idle(identity, answers[name])
        tokens_power = token_power(tokens_of[name], settings.level / family) if name in tokens_of else None
        evidence = Evidence(samples.get(name, []), tokens_of.get(name, []), power, tokens_power)
        verdict, reason = _verdict(tests[name], evidence, why, settings.level, identity.lossy or [])
        arms.append(
            ArmSampling(
                arm=name,
                verdict=verdict,
                reason=reason,
                lossy=identity.lossy or [],
                answers=len(answers[name]),
                left_out=sum(answer.token_ids is None for answer in answers[name]),
                drafted=_sum(answer.drafted for answer in answers[name]),
                accepted=_sum(answer.accepted for answer in answers[name]),
                tests=tests[name],
                token_power=tokens_power,
                unscored=None if tokens_power else untrue or UNSCORED,
            )
        )
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
        tokens=tokens,
        prompts=[f"{prompt.task}/{prompt.prompt_idx}" for prompt in manifest.prompts],
        baseline_answers=len(answers[manifest.baseline]),
        power=power,
        failed_arms={arm: cell.error.message for arm, cell in _last_cells(manifest).items() if cell.error is not None},
        damaged=data.damaged,
        arms=arms,
    )


def _by_prompt(data: SamplingData, answers: Iterable[SampledAnswer], tokens: int) -> list[Tokens]:
    """Return the known token ids of an arm's answers, a prompt an array, filled up with `END`."""
    rows: dict[tuple[str, int], list[list[int]]] = {
        (prompt.task, prompt.prompt_idx): [] for prompt in data.check.manifest.prompts
    }
    for answer in answers:
        key = (answer.task, answer.prompt_idx)
        if answer.token_ids is not None and key in rows:
            ids = answer.token_ids[:tokens]
            rows[key].append(ids + [END] * (tokens - len(ids)))
    return [np.array(found, dtype=np.int64).reshape(-1, tokens) for found in rows.values()]


def _samples(
    data: SamplingData, baseline: Sequence[SampledAnswer], arm: Sequence[SampledAnswer], tokens: int
) -> list[PromptSamples]:
    pairs = zip(_by_prompt(data, baseline, tokens), _by_prompt(data, arm, tokens), strict=True)
    return [PromptSamples(theirs, ours) for theirs, ours in pairs if len(theirs) and len(ours)]


def _tests(
    samples: dict[str, list[PromptSamples]],
    single: dict[str, dict[str, float]],
    planned: Sequence[str],
    tokens: int,
    level: float,
) -> dict[str, list[SamplingTest]]:
    """Run every test of every arm; arms without samples count among the tests that p is corrected for.

    `single`: of the arms whose tokens were scored, the p-values of the tests of single tokens.
    """
    names = names_of_tests(tokens)
    resamples = round(_HITS * (len(names) * len(planned) + sum(map(len, single.values()))) / level)
    found: list[tuple[str, str, float]] = []
    for arm in planned:
        ours = p_values(samples[arm], resamples) if samples.get(arm) else [1.0] * len(names)
        found += [(arm, name, p) for name, p in zip(names, ours, strict=True)]
        found += [(arm, name, p) for name, p in single.get(arm, {}).items()]
    adjusted = holm([p for _, _, p in found])
    return {
        arm: [
            SamplingTest(name=name, p=p, adjusted=corrected)
            for (whose, name, p), corrected in zip(found, adjusted, strict=True)
            if whose == arm and samples.get(arm)
        ]
        for arm in planned
    }


def _untrue(baseline: Sequence[TokenScores], level: float) -> str | None:
    """Return that the baseline's own tokens contradict the target's distribution; `None` where they do not."""
    wrong = [
        name
        for name in (TEMPERATURE, NUCLEUS)
        if (total := added(baseline, name)) is not None and p_of(total, name) <= level / 2
    ]
    if not wrong:
        return None
    return f"the baseline's own tokens contradict the target's distribution as it was read ({', '.join(wrong)})"


def _power(data: SamplingData, baseline: Sequence[SampledAnswer], tokens: int, level: float) -> SamplingPower | None:
    rows = [prompt_rows for prompt_rows in _by_prompt(data, baseline, tokens) if len(prompt_rows)]
    if not rows:
        return None
    seeds = data.check.settings.seeds
    return SamplingPower(shifts=visible_shifts(rows, seeds, level), temperature=visible_sharpening(rows, seeds, level))


def _last_cells(manifest: Manifest) -> dict[str, Cell]:
    """Return the last entry of every arm: a resumed check has several."""
    return {cell.arm: cell for cell in manifest.cells}


def _trouble(data: SamplingData, arm: str, answers: Sequence[SampledAnswer]) -> str | None:
    """Return why an arm's answers cannot be used, in a sentence."""
    cell = _last_cells(data.check.manifest).get(arm)
    if cell is None:
        return f"The check ended before {arm} had answered."
    if cell.status != "finished":
        return f"The engine of {arm} failed{': ' + cell.error.message if cell.error else '.'}"
    lacking = sum(answer.token_ids is None for answer in answers)
    if not answers or lacking > MOST_LEFT_OUT * len(answers):
        return f"Of {arm} {lacking} of {len(answers)} answers have no token ids, which could hide a difference."
    expected = data.check.settings.seeds * len(data.check.manifest.prompts)
    if len(answers) != expected:
        return f"Of {arm} {len(answers)} of {expected} answers can be read; the others could hide a difference."
    return None


def _idle(arm: ArmIdentity, answers: Sequence[SampledAnswer]) -> str | None:
    if arm.speculation is None or _sum(answer.drafted for answer in answers) != 0:
        return None
    return "Speculation was on but never fired: nothing was drafted, so nothing of it was checked."


def _verdict(
    tests: Sequence[SamplingTest], evidence: Evidence, trouble: str | None, level: float, lossy: Sequence[str]
) -> tuple[SamplingWord, str]:
    design = f"Lossy by design ({', '.join(lossy)}). " if lossy else ""
    power = evidence.power
    significant = [test for test in tests if test.adjusted <= level]
    if trouble is None and significant:
        return "difference found", design + difference(significant, evidence.samples, evidence.scores)
    if lossy:
        return "lossy by design", design + (trouble or "These answers do not show it, but others may.")
    if trouble is not None:
        return "undetermined", trouble
    blind = power is None or all(shift is None for shift in power.shifts.values())
    if blind and (evidence.token_power is None or evidence.token_power.temperature is None):
        return "undetermined", "Too few answers: no shift of the distribution up to 0.5 would have been detected."
    count = sum(len(prompt.arm) for prompt in evidence.samples)
    by_answers = describe_power(power) if power is not None and not blind else "too few to compare as a whole"
    if evidence.token_power is None:
        return "no difference found", f"No difference found in {count:,} answers; {by_answers}."
    return "no difference found", (
        f"No difference found in {count:,} answers; {by_answers}. Nor in {evidence.token_power.tokens:,} tokens, each "
        f"compared with the target's own distribution there; {describe_token_power(evidence.token_power)}."
    )


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def describe_power(power: SamplingPower) -> str:
    """Return what a check would have detected nine times in ten, as a clause."""
    known = {length: shift for length, shift in power.shifts.items() if shift is not None}
    reported = {length: shift for length, shift in known.items() if length in _REPORTED} or known
    shifts = ", ".join(f"{shift:.2f} in the {prefix_name(length)}" for length, shift in reported.items())
    sharp = "" if power.temperature is None else f" or a temperature wrong by {100 * power.temperature:.0f} %"
    return (
        f"would have detected, nine times in ten, a shift of total variation of {shifts}{',' if sharp else ''}{sharp}"
    )


def describe_token_power(power: TokenPower) -> str:
    """Return what the tests of single tokens would have detected, as a clause."""
    reported = [] if power.temperature is None else [f"a temperature wrong by {100 * power.temperature:.2g} %"]
    if power.nucleus is not None:
        reported.append(f"a nucleus that cuts off {100 * power.nucleus:.2g} % of what lies beyond 0.9")
    found = [f"would have detected, nine times in ten, {' or '.join(reported)}"] if reported else []
    if power.residual is not None:
        rule = "rejected tokens drawn from the target's own distribution"
        found.append(f"{rule} with a probability of {100 * power.residual:.0f} %")
    return ", and ".join(found) or "too few to detect anything"


def difference(
    significant: Sequence[SamplingTest], samples: Sequence[PromptSamples], scores: Sequence[TokenScores] = ()
) -> str:
    """Return what differs: every significant test, and what the clearest shows."""
    clearest = min(significant, key=lambda test: test.p)
    tests = ", ".join(f"{test.name} (p = {test.adjusted:.2g})" for test in significant)
    message = f"The arm samples differently from the target, by {tests}, p corrected for the number of tests."
    names = {test.name for test in significant}
    if prefix_name(1) in names:
        return f"{message} The first token, which is never speculated, differs already: another sampler or prompt."
    message += "".join(f" {text}" for name in (*TERMS, FAR) if name in names and (text := _of_tokens(name, scores)))
    if SHARPNESS in names:
        message += f" It chooses {_tendency(samples)} tokens than the target."
    if clearest.name.startswith("first"):
        message += f" {_most_shifted(int(clearest.name.split()[1]), samples)}"
    return message


def _of_tokens(name: str, scores: Sequence[TokenScores]) -> str:
    """Return what a test of single tokens shows, in a sentence."""
    count = sum(answer.tokens for answer in scores)
    total = added(scores, name)
    if name == FAR:
        return (
            f"{sum(answer.far for answer in scores):,} of {count:,} tokens are outside what the sampler settings allow."
        )
    if total is None:
        return ""
    if name == TEMPERATURE:
        change = 100 * total.excess / total.variance
        return f"Its tokens are {'likelier' if change > 0 else 'less likely'} by {abs(change):.0f} % of a temperature."
    came = f"{total.expected + total.excess:,.0f} of {count:,} tokens"
    if name == NUCLEUS:
        return f"{came} lie beyond the likeliest 90 %, where {total.expected:,.0f} are expected."
    if name == DRAFT_FIRST:
        return f"{came} are the draft's likeliest, where {total.expected:,.0f} are expected."
    return f"It favours what the draft {'expects' if total.excess > 0 else 'does not expect'}."


def _tendency(samples: Sequence[PromptSamples]) -> str:
    scores = [score(np.concatenate([prompt.baseline, prompt.arm]))[len(prompt.baseline) :].sum() for prompt in samples]
    return "likelier" if sum(scores) > 0 else "less likely"


def _most_shifted(length: int, samples: Sequence[PromptSamples]) -> str:
    """Return the prefix whose share differs most, in a sentence."""
    largest, sentence = 0.0, ""
    for prompt in samples:
        for prefix in np.unique(np.concatenate([prompt.baseline, prompt.arm])[:, :length], axis=0):
            theirs, ours = ((rows[:, :length] == prefix).all(axis=1).mean() for rows in (prompt.baseline, prompt.arm))
            if abs(ours - theirs) > largest:
                largest = abs(ours - theirs)
                ids = " ".join(str(token) for token in prefix.tolist() if token != END)
                sentence = (
                    f"Most of all, {100 * ours:.0f} % of its answers to a prompt begin with the tokens {ids}, "
                    f"and {100 * theirs:.0f} % of the target's."
                )
    return sentence
