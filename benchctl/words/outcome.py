"""What a run comes to, in sentences: the fastest setting of all, the machine's state, and what a person feels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from benchctl.analysis.advice import compared_prompts, damaged_arms
from benchctl.analysis.outcome import ANSWER_TOKENS, Felt, Outcome, Setting, TargetOutcome, TaskEffect, task_effects
from benchctl.analysis.scope import by_condition
from benchctl.analysis.verdict import synthetic_arms
from benchctl.text import listed
from benchctl.words import numbers

if TYPE_CHECKING:
    from benchctl.analysis.losslessness import Range, Scope
    from benchctl.analysis.results import Analysis
    from benchctl.analysis.speed_results import SpeedUp

REPEAT = "repeat on a quiet one"
DEMONSTRATION = "Demonstration models: none of this carries over to yours."
_CLOSE_TO_ONE = 0.03
_NOTABLE = 2**20
"""Fewer bytes of memory are no difference."""
_COMPONENTS = {"gpu": "GPU", "soc": "SoC"}
"""Measured components of energy whose names are abbreviations."""
_MOST_OTHERS = 4
"""Targets whose best arm has no sentence of its own; of more, these are named."""
_MOST_TASKS = 4
"""Of more tasks that are all clear, the first and the last are named."""


def fastest(outcome: Outcome, analysis: Analysis) -> str:
    """Return which setting is the fastest of all, in tokens a second, and whether the machine was fit to say so.

    Where an arm damages the output, it is the fastest of those that do not.
    """
    setting, damaged = outcome.fastest, damaged_arms(analysis).keys() - synthetic_arms(analysis.verdicts)
    unfit = machine(outcome, damaged=bool(damaged))
    if setting is None:
        return unfit
    name, speedup = setting_name(setting, analysis), ""
    if setting.speculates and len(outcome.targets) == 1:
        speedup = f", {gain(analysis, setting.arm)}"
    group = next(row for row in outcome.targets if setting.arm in (row.baseline, *row.faster, *row.open))
    nothing_shown = all(row.interval is None for row in analysis.verdicts)
    unshown = [] if setting.speculates or nothing_shown else group.open
    safe = " safe setting" if damaged else ""
    shown = f"Fastest{safe}{' in this run' if nothing_shown else ' shown' if unshown else ''}: "
    undecided = any(row.speed in ("undecided", "unknown") for row in analysis.verdicts if row.arm not in damaged)
    if damaged and len(outcome.targets) == 1 and not (setting.speculates or undecided):
        shown = "No safe setting is faster than "
    rival = " (its answers may be worse: not compared)" if len(outcome.targets) > 1 else ""
    rival += f"; {listed(unshown[:3])} may be faster" if unshown else ""
    close = [f"{setting_name(row, analysis)}, {numbers.rate(row.rate)}" for row in outcome.close]
    rival = f"{rival}{f'; about as fast: {listed(close)}' if close else ''}"
    return f"{shown}{name}, {numbers.rate(setting.rate)} tok/s{rival}{speedup}. {unfit}".strip()


def gain(analysis: Analysis, arm: str) -> str:
    """Return how much faster an arm is, how sure that is, on which tasks, and over how many prompts.

    The latter where it drafted for some of them alone. Where answers differ in length and that changes the number, the
    speed-up over equal lengths, too.
    """
    verdict = next(row for row in analysis.verdicts if row.arm == arm)
    ends = f" ({numbers.between(verdict.interval)}, 95 %)" if verdict.interval else ""
    tasks = by_task(task_effects(analysis, arm))
    prompts, drafted = compared_prompts(analysis, arm)
    ratio, matched = numbers.ratio(verdict.speedup), numbers.ratio(verdict.length_matched)
    few = f" over all {prompts} prompts ({drafted} with a draft)" if drafted < prompts else ""
    unequal = any((row.id, row.where) == ("unequal-work", arm) for row in analysis.warnings)
    equal = f"; {matched} over answers of equal length" if unequal and matched not in (ratio, numbers.ABSENT) else ""
    return f"{ratio} as fast as without speculation{ends}{few}{f': {tasks}' if tasks else ''}{equal}"


def setting_name(setting: Setting, analysis: Analysis) -> str:
    """Return a setting's name as the tables have it, and what it is."""
    target = _labelled(setting.labels)
    if setting.speculates:
        arm = next(row for row in analysis.verdicts if row.arm == setting.arm)
        return f"{setting.arm} ({arm.setting}{f', target {target}' if target else ''})"
    return f"{target or 'the target'} without speculation ({setting.arm})"


def machine(outcome: Outcome, *, damaged: bool = False) -> str:
    """Return that the machine was not fit to measure; empty where nothing disturbed it.

    `damaged`: an arm damages the output, which is a fact on any machine.
    """
    todo = "the speeds are unreliable" if damaged else REPEAT
    return f"The machine was {listed(outcome.disturbed)}: {todo}." if outcome.disturbed else ""


def target_name(target: TargetOutcome) -> str:
    """Return the labels of a target, or the name of its baseline where it has none."""
    return _labelled(target.labels) or target.baseline


def _labelled(labels: Mapping[str, str]) -> str:
    """Return the labels of a target: those of its model alone, others with their axis (`cache_type q8_0`)."""
    return ", ".join(label if axis.startswith("models.") else f"{axis} {label}" for axis, label in labels.items())


def by_task(effects: list[TaskEffect]) -> str:
    """Return on which tasks an arm is faster or slower: `1.78× on editing, unclear on chat and code`."""
    clear = sorted((row for row in effects if row.speed != "undecided"), key=lambda row: -row.speedup)
    if len(clear) > _MOST_TASKS and len(clear) == len(effects):
        best, worst = clear[0], clear[-1]
        return f"{numbers.ratio(best.speedup)} on {best.task}, {numbers.ratio(worst.speedup)} on {worst.task}"
    parts = [f"{numbers.ratio(row.speedup)} on {row.task}" for row in clear]
    undecided = [row.task for row in effects if row.speed == "undecided"]
    if parts and undecided:
        several = len(undecided) > _MOST_TASKS
        parts.append(f"unclear on {f'{len(undecided)} other tasks' if several else listed(undecided)}")
    return ", ".join(parts)


def felt(outcome: Outcome, analysis: Analysis) -> str:
    """Return what a person feels of the fastest setting and of the best arm of each target, and for which requests.

    What was measured is told apart from what is projected to `ANSWER_TOKENS` tokens. A few sentences on a line; without
    an arm only for which requests.
    """
    if not outcome.felt:
        return conditions(_scope(analysis))
    best, *others = outcome.felt
    faster = {arm for target in outcome.targets for arm in target.faster}
    requests = [f"{row.arm} {numbers.ratio(row.request)}" for row in others if row.request and row.arm in faster]
    rest = f" ({', '.join(requests[:_MOST_OTHERS])})" if requests else ""
    request = [f"whole request {numbers.ratio(best.request)} as fast{rest}"] if best.request is not None else []
    details = ", ".join([*request, *_details(best, analysis.speedup_of(best.arm))])
    measured = f"Costs of {best.arm} (measured): {details}." if details else ""
    return " ".join(filter(None, [measured, _projected(best, outcome), conditions(_scope(analysis))]))


def _projected(row: Felt, outcome: Outcome) -> str:
    """How long an answer of `ANSWER_TOKENS` tokens would take with an arm and without, and with the fastest setting."""
    parts, setting = [], outcome.fastest
    if row.answer_s is not None:
        without, with_arm = row.answer_s
        parts.append(f"{numbers.seconds(with_arm)}, without it {numbers.seconds(without)}")
    if setting and not setting.speculates and len(outcome.targets) > 1 and setting.answer_s is not None:
        parts.append(f"with {_labelled(setting.labels) or setting.arm} alone {numbers.seconds(setting.answer_s)}")
    return f"{ANSWER_TOKENS} tokens (projected) take {', '.join(parts)}." if parts else ""


def _details(row: Felt, speed: SpeedUp | None) -> Iterator[str]:
    if row.first_token is not None:
        close = "no later" if row.first_token <= 1 else "about as early"
        change, ends = _changed(row.first_token, "sooner", "later"), speed.ttft_interval if speed else None
        unclear = change and ends is not None and not ends.excludes_one
        yield f"first token {'unclear' if unclear else change or close}"
    if row.memory_added is not None:
        left = f" ({numbers.size(row.memory_left)} free)" if row.memory_left is not None else ""
        added = f"+{numbers.size(row.memory_added)}" if row.memory_added >= _NOTABLE else "as before"
        yield f"{'GPU memory' if row.on_device else 'RAM'} {added}{left}"
    if row.energy is not None:
        parts = listed([_COMPONENTS.get(name, name) for name in row.energy_of])
        change = _changed(row.energy, "less", "more") or "about the same"
        yield f"{change} energy a token{f' ({parts})' if parts else ''}"
    elif row.energy_untold is not None:
        yield "energy not reported"


def _changed(ratio: float, below: str, above: str) -> str:
    """`4 % sooner`, or `169 % later`; empty close to 1."""
    change = abs(ratio - 1)
    return "" if change < _CLOSE_TO_ONE else f"{100 * change:.0f} % {below if ratio < 1 else above}"


def _scope(analysis: Analysis) -> Scope | None:
    """The one condition that ran; `None` of several."""
    scopes = by_condition(analysis.losslessness, lambda arm: arm.scope)
    return scopes[0][0] if len(scopes) == 1 else None


def conditions(scope: Scope | None) -> str:
    """Return for which prompts, load and temperature the numbers hold; empty where several conditions ran."""
    if scope is None:
        return ""
    prompts, answers = _lengths(scope.prompt_tokens), _lengths(scope.answer_tokens)
    parts = [f"prompts of {prompts} tokens" if prompts else "", f"answers of {answers}" if answers else ""]
    if scope.concurrency is not None:
        parts.append("one at a time" if scope.concurrency == 1 else f"{scope.concurrency} at a time")
    if scope.temperature is not None:
        parts.append(f"temperature {scope.temperature:g}")
    said = ", ".join(part for part in parts if part)
    return f"{said[0].upper()}{said[1:]}." if said else ""


def _lengths(size: Range | None) -> str:
    if size is None:
        return ""
    low, high = size
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
