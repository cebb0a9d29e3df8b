"""What a run comes to, in sentences: the fastest setting of all, the machine's state, and what a person feels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from benchctl.analysis.advice import compared_prompts
from benchctl.analysis.outcome import ANSWER_TOKENS, Felt, Outcome, Setting, TargetOutcome, TaskEffect, task_effects
from benchctl.analysis.scope import by_condition
from benchctl.text import listed, plural
from benchctl.words import numbers

if TYPE_CHECKING:
    from benchctl.analysis.losslessness import Range, Scope
    from benchctl.analysis.results import Analysis

REPEAT = "repeat on a quiet one before you decide"
_CLOSE_TO_ONE = 0.03
_MOST_OTHERS = 4
"""Targets whose best arm has no sentence of its own; of more, these are named."""
_MOST_TASKS = 4
"""Of more tasks that are all clear, the first and the last are named."""


def fastest(outcome: Outcome, analysis: Analysis) -> str:
    """Return which setting is the fastest of all, in tokens a second, and whether the machine was fit to say so."""
    setting = outcome.fastest
    if setting is None:
        return machine(outcome)
    name, speedup = setting_name(setting, analysis), ""
    if setting.speculates and len(outcome.targets) == 1:
        speedup = f", {gain(analysis, setting.arm)}"
    group = next(row for row in outcome.targets if setting.arm in (row.baseline, *row.faster))
    unshown = [arm for arm in group.open if not setting.speculates]
    undecided = all(row.interval is None for row in analysis.verdicts)
    shown = "Fastest in this run" if undecided else "Fastest shown" if unshown else "Fastest"
    rival = " (quality not compared)" if len(outcome.targets) > 1 else ""
    rival += (
        f"; whether {listed(unshown[:3])} {plural(len(unshown[:3]), 'is', 'are')} faster is open" if unshown else ""
    )
    close = [f"{setting_name(row, analysis)}, {numbers.rate(row.rate)}" for row in outcome.close]
    rival = f"{rival}{f'; about as fast: {listed(close)}' if close else ''}"
    return f"{shown}: {name}, {numbers.rate(setting.rate)} tok/s{rival}{speedup}. {machine(outcome)}".strip()


def gain(analysis: Analysis, arm: str) -> str:
    """Return how much faster an arm is, how sure that is, on which tasks, and in how many prompts it drafted."""
    verdict = next(row for row in analysis.verdicts if row.arm == arm)
    ends = f" ({numbers.between(verdict.interval)}, 95 %)" if verdict.interval else ""
    tasks = by_task(task_effects(analysis, arm))
    prompts, drafted = compared_prompts(analysis, arm)
    few = f"; it drafted in {drafted} of {prompts} prompts" if drafted < prompts else ""
    return f"{numbers.ratio(verdict.speedup)} as fast as the target alone{ends}{f': {tasks}' if tasks else ''}{few}"


def setting_name(setting: Setting, analysis: Analysis) -> str:
    """Return a setting's name as the tables have it, and what it is."""
    target = _labelled(setting.labels)
    if setting.speculates:
        arm = next(row for row in analysis.verdicts if row.arm == setting.arm)
        return f"{setting.arm} ({arm.setting}{f', target {target}' if target else ''})"
    return f"{target or 'the target'} without speculation ({setting.arm})"


def machine(outcome: Outcome) -> str:
    """Return that the machine was not fit to measure; empty where nothing disturbed it."""
    return f"The machine was {listed(outcome.disturbed)}: {REPEAT}." if outcome.disturbed else ""


def target_name(target: TargetOutcome) -> str:
    """Return the labels of a target and its rate alone, for the start of a line; empty where there is one target."""
    if not target.labels:
        return ""
    labels = _labelled(target.labels)
    return f"{labels} ({numbers.rate(target.rate)} tok/s alone): " if target.rate else f"{labels}: "


def _labelled(labels: Mapping[str, str]) -> str:
    """Return the labels of a target: those of its model alone, others with their axis (`cache_type q8_0`)."""
    return ", ".join(label if axis.startswith("models.") else f"{axis} {label}" for axis, label in labels.items())


def by_task(effects: list[TaskEffect]) -> str:
    """Return on which tasks an arm is faster or slower: `1.78× on editing, elsewhere no clear difference`."""
    clear = sorted((row for row in effects if row.speed != "undecided"), key=lambda row: -row.speedup)
    if len(clear) > _MOST_TASKS and len(clear) == len(effects):
        best, worst = clear[0], clear[-1]
        return f"{numbers.ratio(best.speedup)} on {best.task}, {numbers.ratio(worst.speedup)} on {worst.task}"
    parts = [f"{numbers.ratio(row.speedup)} on {row.task}" for row in clear]
    undecided = [row.task for row in effects if row.speed == "undecided"]
    if parts and undecided:
        where = "elsewhere" if len(undecided) > 1 else f"on {undecided[0]}"
        parts.append(f"no clear difference {where}" if len(undecided) == 1 else f"{where} no clear difference")
    return ", ".join(parts)


def felt(outcome: Outcome, analysis: Analysis) -> str:
    """Return what a person feels of the fastest setting and of the best arm of each target, and for which requests.

    A few sentences on a line; empty without an arm.
    """
    if not outcome.felt:
        return ""
    best, *others = outcome.felt
    alone, setting = "", outcome.fastest
    if setting and not setting.speculates and len(outcome.targets) > 1 and setting.answer_s is not None:
        name = _labelled(setting.labels) or setting.arm
        first = f", first token after {numbers.seconds(setting.first_token_s)}"
        alone = f"{ANSWER_TOKENS} tokens in about {numbers.seconds(setting.answer_s)} with {name} alone{first}; "
    details = ", ".join(_details(best))
    sentences = [f"In use: {alone}{_answer(best, again=bool(alone))}{f': {details}' if details else ''}."]
    requests = [f"{row.arm} {numbers.ratio(row.request)}" for row in others if row.request is not None]
    if requests:
        sentences.append(f"Whole request with {listed([*requests[:_MOST_OTHERS]])}.")
    return " ".join([*sentences, conditions(analysis)]).strip()


def _answer(row: Felt, *, again: bool) -> str:
    """How long an answer takes with an arm and without; `again`: of how many tokens was said."""
    if row.answer_s is None:
        return f"with {row.arm}"
    alone, with_arm = row.answer_s
    about = "" if again else f"{ANSWER_TOKENS} tokens in about "
    return f"{about}{numbers.seconds(with_arm)} with {row.arm} ({numbers.seconds(alone)} without)"


def _details(row: Felt) -> Iterator[str]:
    if row.request is not None:
        yield f"whole request {numbers.ratio(row.request)} as fast"
    if row.first_token is not None:
        close = abs(row.first_token - 1) < _CLOSE_TO_ONE
        yield f"first token {'as soon' if close else f'after {numbers.ratio(row.first_token)} the time'}"
    if row.memory_added is not None:
        left = f" ({numbers.size(row.memory_left)} left)" if row.memory_left is not None else ""
        yield f"{'GPU memory' if row.on_device else 'memory'} +{numbers.size(max(0, row.memory_added))}{left}"
    if row.energy is not None:
        yield f"{numbers.ratio(row.energy)} the energy"
    elif row.energy_untold is not None:
        yield "energy not reported"


def conditions(analysis: Analysis) -> str:
    """Return for which prompts, answers, load and temperature the numbers hold; empty where several conditions ran."""
    scopes = by_condition(analysis.losslessness, lambda arm: arm.scope)
    if len(scopes) != 1:
        return ""
    scope: Scope = scopes[0][0]
    parts = [_lengths("Prompts", scope.prompt_tokens), _lengths("answers", scope.answer_tokens)]
    if scope.concurrency is not None:
        parts.append("one at a time" if scope.concurrency == 1 else f"{scope.concurrency} at a time")
    if scope.temperature is not None:
        parts.append(f"temperature {scope.temperature:g}")
    said = ", ".join(part for part in parts if part)
    return f"{said[0].upper()}{said[1:]}." if said else ""


def _lengths(subject: str, size: Range | None) -> str:
    if size is None:
        return ""
    low, high = size
    span = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"{subject} of {span}{' tokens' if subject == 'Prompts' else ''}"
