"""Whether an arm samples from the target's distribution: what a check found, and what it would have seen.

No test shows that two distributions are equal. So the best verdict is "no difference found", and it stands beside the
smallest difference that would have been found nine times in ten.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from benchctl.analysis.sampling.permutation import END, PromptSamples, holm, names_of_tests, p_values
from benchctl.analysis.sampling.power import visible_sharpening, visible_shifts
from benchctl.analysis.sampling.results import ArmSampling, SamplingPower, SamplingResult, SamplingTest, SamplingWord
from benchctl.analysis.sampling.words import difference, would_have_seen

if TYPE_CHECKING:
    from benchctl.analysis.sampling.permutation import Tokens
    from benchctl.data.manifest import ArmIdentity, Cell, Manifest
    from benchctl.data.sampling import SampledAnswer, SamplingData

MOST_LEFT_OUT = 0.02
"""A larger share of answers without token ids could hide a difference, or make one."""
_HITS = 10
"""Permutations as extreme as the observation that the strictest level must leave room for."""


def judge_sampling(data: SamplingData) -> SamplingResult:
    """Judge a check from its stored answers alone: equal answers give equal numbers."""
    manifest, settings = data.check.manifest, data.check.settings
    sampling = manifest.recipe["sampling"]
    tokens = int(sampling["max_tokens"])
    answers: dict[str, list[SampledAnswer]] = {arm.name: [] for arm in manifest.arms}
    for answer in data.answers:
        answers.setdefault(answer.arm, []).append(answer)
    trouble = {name: _trouble(data, name, answers[name]) for name in answers}
    samples = {
        name: _samples(data, answers[manifest.baseline], answers[name], tokens)
        for name in settings.planned
        if trouble[name] is None and trouble[manifest.baseline] is None
    }
    family = len(names_of_tests(tokens)) * len(settings.planned)
    tests = _tests(samples, settings.planned, tokens, settings.level)
    power = _power(data, answers[manifest.baseline], tokens, settings.level / family)
    arms = []
    for identity in (arm for arm in manifest.arms if arm.name in settings.planned):
        name = identity.name
        why = trouble[manifest.baseline] or trouble[name] or _idle(identity, answers[name])
        verdict, reason = _verdict(tests[name], samples.get(name, []), why, power, settings.level, identity.lossy or [])
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
            )
        )
    return SamplingResult(
        check=manifest.run,
        recipe=manifest.recipe_name,
        baseline=manifest.baseline,
        status=manifest.status,
        level=settings.level,
        temperature=sampling["temperature"],
        top_k=sampling["top_k"],
        top_p=sampling["top_p"],
        seeds=settings.seeds,
        tokens=tokens,
        prompts=[f"{one.task}/{one.prompt_idx}" for one in manifest.prompts],
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
    samples: dict[str, list[PromptSamples]], planned: Sequence[str], tokens: int, level: float
) -> dict[str, list[SamplingTest]]:
    """Run every test of every arm; arms without samples count among the tests that p is corrected for."""
    names = names_of_tests(tokens)
    family = len(names) * len(planned)
    resamples = round(_HITS * family / level)
    values = [
        p for arm in planned for p in (p_values(samples[arm], resamples) if samples.get(arm) else [1.0] * len(names))
    ]
    adjusted = holm(values)
    return {
        arm: [
            SamplingTest(name=name, p=values[place], adjusted=adjusted[place])
            for place, name in enumerate(names, start=number * len(names))
        ]
        if samples.get(arm)
        else []
        for number, arm in enumerate(planned)
    }


def _power(data: SamplingData, baseline: Sequence[SampledAnswer], tokens: int, level: float) -> SamplingPower | None:
    rows = [one for one in _by_prompt(data, baseline, tokens) if len(one)]
    if not rows:
        return None
    seeds = data.check.settings.seeds
    return SamplingPower(shifts=visible_shifts(rows, seeds, level), temperature=visible_sharpening(rows, seeds, level))


def _last_cells(manifest: Manifest) -> dict[str, Cell]:
    """Return the last entry of every arm: a check that was gone on with has several."""
    return {cell.arm: cell for cell in manifest.cells}


def _trouble(data: SamplingData, arm: str, answers: Sequence[SampledAnswer]) -> str | None:
    """Say why an arm's answers cannot be used."""
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
    tests: Sequence[SamplingTest],
    samples: Sequence[PromptSamples],
    trouble: str | None,
    power: SamplingPower | None,
    level: float,
    lossy: Sequence[str],
) -> tuple[SamplingWord, str]:
    design = f"Lossy by design ({', '.join(lossy)}). " if lossy else ""
    seen = [test for test in tests if test.adjusted <= level]
    if trouble is None and seen:
        return "difference found", design + difference(seen, samples)
    if lossy:
        return "lossy by design", design + (trouble or "These answers do not show it; nothing binds others to that.")
    if trouble is not None:
        return "undetermined", trouble
    if power is None or all(shift is None for shift in power.shifts.values()):
        return "undetermined", "Too few answers: no shift of the distribution up to 0.5 would have been seen."
    count = sum(len(one.arm) for one in samples)
    return "no difference found", f"No difference found in {count:,} answers; {would_have_seen(power)}."


def _sum(values: Iterable[int | None]) -> int | None:
    told = [value for value in values if value is not None]
    return sum(told) if told else None
