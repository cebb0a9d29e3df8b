"""What a run comes to, in sentences: the fastest setting of all, the machine's state, and what a person feels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from benchctl.analysis.advice import compared_prompts
from benchctl.analysis.outcome import ANSWER_TOKENS, Outcome, Setting, TargetOutcome, TaskEffect, task_effects
from benchctl.analysis.scope import by_condition
from benchctl.text import listed, plural
from benchctl.words import numbers

if TYPE_CHECKING:
    from benchctl.analysis.losslessness import Range, Scope
    from benchctl.analysis.results import Analysis

REPEAT = "repeat on a quiet one before you decide"
_CLOSE_TO_ONE = 0.03
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
    """Return what a person feels of the arms, and for which requests that holds, in a line; empty without an arm."""
    row = outcome.felt
    if row is None:
        return ""
    parts = []
    if row.request:
        parts.append(f"whole request {_between(row.request)}× as fast")
    if row.first_token:
        parts.append(_first_token(row.first_token))
    if row.answer_s:
        alone, with_arm = row.answer_s
        parts.append(
            f"{ANSWER_TOKENS} tokens in about {numbers.seconds(with_arm)} with {row.arm}, "
            f"{numbers.seconds(alone)} alone"
        )
    if row.memory_added is not None:
        kind = "GPU memory" if row.on_device else "memory"
        left = f" ({numbers.size(row.memory_left)} left)" if row.memory_left is not None else ""
        parts.append(f"{kind} +{numbers.size(max(0, row.memory_added))}{left}")
    if row.energy is not None:
        parts.append(f"{numbers.ratio(row.energy)} the energy with {row.arm}")
    elif row.energy_untold is not None:
        parts.append("energy not reported")
    return f"In use: {'; '.join(parts)}. {conditions(analysis)}".strip()


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


def _first_token(span: tuple[float, float]) -> str:
    low, high = span
    if max(abs(low - 1), abs(high - 1)) < _CLOSE_TO_ONE:
        return "first token as soon as alone"
    return f"first token after {_between(span)}× the time"


def _between(span: tuple[float, float]) -> str:
    low, high = (f"{value:.2f}" for value in span)
    return low if low == high else f"{low} to {high}"
