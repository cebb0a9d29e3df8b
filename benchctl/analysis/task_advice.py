"""What to run per task on this machine, how certain that is, and the experiment that would most likely change it.

An arm is advised for a task only where its interval, wide enough for all arms and tasks together, lies above 1, its
output is identical or consistent with the target, nothing of it is lossy by design, and its attestation shows that it
drafted. Everything else is `none`, with the reason.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchctl.analysis.advice import compared_arms, inactive_arms, production_command, quoted, searched_values
from benchctl.analysis.cost import expected_tokens
from benchctl.analysis.results import ALL_TASKS, Analysis, Interval, SpeedUp, Verdict, open_for_others

if TYPE_CHECKING:
    from benchctl.analysis.rounds.results import RoundFit
    from benchctl.data.manifest import Manifest

SOUND = ("identical", "consistent with the target")
_DEEPEST = 16
_MOST = 200
"""More blocks than this nobody measures."""
_WORTH_TRYING = 1.05
"""A depth that was not measured is worth trying where the line through the others predicts so much more."""


@dataclass(frozen=True)
class TaskAdvice:
    """What to run for one task, under one condition."""

    task: str
    condition: str
    """Empty where nothing was varied."""
    arm: str | None
    """`None`: the target alone."""
    setting: str
    speedup: float | None
    interval: Interval | None
    """For all arms and tasks together, where it is known."""
    output: str
    """Of the arm; empty for the target alone."""
    certainty: str
    """A sentence."""
    command: str | None
    """The engine's own command line, exactly as it was measured but for the port; `None` where it is not known."""


@dataclass(frozen=True)
class Experiment:
    """What to measure next."""

    sentence: str
    command: str | None


def advise_tasks(analysis: Analysis, manifest: Manifest | None) -> list[TaskAdvice]:
    """Return what to run for every task; empty where nothing was compared, or the values were selected."""
    if searched_values(analysis) or any(one.id == "baseline-speculates" for one in analysis.warnings):
        return []
    return [
        row
        for baseline, condition, arms, overlapping in _conditions(analysis)
        if arms
        for row in _advise(analysis, manifest, baseline, condition, arms, overlapping=overlapping)
    ]


def next_experiment(analysis: Analysis, manifest: Manifest | None) -> Experiment | None:
    """Return the one experiment that would most likely change the advice; `None` without any advice."""
    rows = advise_tasks(analysis, manifest)
    if not rows:
        return None
    again = _again(manifest)
    drafted = [one for one in compared_arms(analysis) if one.arm not in inactive_arms(analysis) and not one.lossy]
    if analysis.blocks < 3 or all(one.interval is None for one in drafted):
        return Experiment("More blocks: below three nothing is known of another run.", f"{again} --blocks auto")
    unsound = [one for one in drafted if one.speed == "faster" and one.lossless == "undetermined"]
    if unsound:
        who = ", ".join(one.arm for one in unsound)
        sentence = f"Losslessness of {who}: faster, but it is undetermined whether the output is the target's own."
        return Experiment(sentence, f"benchctl verify-lossless {shlex.quote(analysis.run)}")
    for one in drafted:
        others = open_for_others(one.like_these)
        if one.arm in {row.arm for row in rows} and others:
            sentence = (
                f"More prompts, or your own: {one.arm} is faster for these, and for others like them {others.from_to}."
            )
            return Experiment(sentence, f"{again} --prompts your-prompts.jsonl")
    open_ = [one for one in drafted if one.speed == "undecided" and _blocks_needed(analysis, one) <= _MOST]
    deeper = _another_depth(analysis, manifest)
    if deeper is not None and not open_:
        return deeper
    if open_:
        best = max(open_, key=_how_surely_above_1)
        assert best.interval is not None
        sentence = (
            f"More blocks of {best.arm} alone, whose interval is {best.interval.from_to}; about "
            f"{_blocks_needed(analysis, best):.0f} would decide if it is as fast as it seems."
        )
        return Experiment(sentence, f"{again} --only {shlex.quote(best.arm)} --blocks auto")
    if any(row.arm for row in rows):
        sentence = "Your own prompts: acceptance, and with it all of this, depends on the text."
        return Experiment(sentence, f"{again} --prompts your-prompts.jsonl")
    if not any("ngram" in one.setting for one in compared_arms(analysis)):
        sentence = "A drafter that costs nothing: every arm here pays more for its rounds than it gains."
        return Experiment(sentence, _with_options(manifest, ["--type", "ngram-mod"]))
    sentence = (
        "Prompts whose answers repeat what they were given: copied drafts cost next to nothing, and pay there first."
    )
    return Experiment(sentence, f"{again} --prompts your-prompts.jsonl")


def _conditions(analysis: Analysis) -> list[tuple[str, str, list[Verdict], bool]]:
    """Return (baseline, the name of its condition, the arms compared with it, whether requests overlap)."""
    if analysis.sweep is None:
        return [(analysis.baseline, "", compared_arms(analysis), False)]
    levels = analysis.sweep.levels
    verdicts = {one.arm: one for one in analysis.verdicts}

    def key(row: object) -> tuple[object, ...]:
        names = ("concurrency", "rate", "temperature", "context_length", "group")
        return tuple(getattr(row, name) for name in names)

    found = []
    for base in levels:
        if base.is_baseline:
            arms = [verdicts[row.arm] for row in levels
                    if not row.is_baseline and key(row) == key(base) and row.arm in verdicts]  # fmt: skip
            parts = [f"concurrency {base.concurrency}"] if base.concurrency > 1 else []
            parts += [f"{base.rate:g} requests per second"] if base.rate is not None else []
            parts += [f"context {base.context_length}"] if base.context_length else []
            parts += [base.group] if base.group else []
            many = len({row.temperature for row in levels}) > 1
            parts += [f"temperature {base.temperature:g}"] if many else []
            found.append((base.arm, ", ".join(parts), arms, base.overlapping))
    return found


def _advise(
    analysis: Analysis,
    manifest: Manifest | None,
    baseline: str,
    condition: str,
    arms: Sequence[Verdict],
    *,
    overlapping: bool,
) -> list[TaskAdvice]:
    inactive = set(inactive_arms(analysis))
    drafted = [one for one in arms if one.arm not in inactive]
    tasks = [ALL_TASKS] if overlapping or len(analysis.tasks) < 2 else list(analysis.tasks)
    found = []
    for task in tasks:
        rows = {row.arm: row for row in analysis.speedups if row.task == task}
        values = [(one, *_speed(one, rows.get(one.arm), overlapping=overlapping)) for one in drafted]
        sure = [(one, speed, ends) for one, speed, ends in values if speed and ends and _pays(one, ends, rows[one.arm])]
        best = max(sure, key=lambda value: value[1], default=None)
        name = "all tasks" if task == ALL_TASKS else task
        if best is None:
            why = _why_none([value for value in values if value[1] is not None])
            found.append(TaskAdvice(name, condition, None, "no speculation", None, None, "", why,
                                    production_command(manifest, baseline)))  # fmt: skip
            continue
        one, speed, ends = best
        arms_and_tasks = "" if len(drafted) * len(tasks) == 1 else " for all arms and tasks together"
        certainty = f"Certain by this run: {ends.from_to}{arms_and_tasks} (95 %)"
        if others := open_for_others(one.like_these if overlapping else rows[one.arm].like_these):
            certainty += f"; for other prompts like these {others.from_to}"
        worded = "." if one.lossless == "identical" else "; its output is consistent with the target, not identical."
        found.append(TaskAdvice(name, condition, one.arm, one.setting, speed, ends, one.lossless,
                                certainty + worded, production_command(manifest, one.arm)))  # fmt: skip
    return found


def _speed(one: Verdict, row: SpeedUp | None, *, overlapping: bool) -> tuple[float | None, Interval | None]:
    """Return an arm's speed-up and the interval that must lie above 1."""
    if overlapping:
        return one.speedup, one.interval
    if row is None:
        return None, None
    return row.pooled, row.simultaneous or row.interval


def _pays(one: Verdict, ends: Interval, row: SpeedUp) -> bool:
    sound = one.lossless in SOUND and not one.lossy and one.attestation == "active"
    matched = row.length_matched is None or row.length_matched > 1
    return sound and ends.low > 1 and matched and one.speed != "unknown"


def _why_none(values: Sequence[tuple[Verdict, float | None, Interval | None]]) -> str:
    """Return why no arm is advised."""
    if not values:
        return "Nothing was drafted, or no answer was timed in both arms."
    real = [value for value in values if not value[0].lossy]
    if not real:
        return "Every arm is lossy by design."
    one, speed, ends = max(real, key=lambda value: value[1] or 0.0)
    fastest = f"{one.arm}, the fastest, ran {speed:.2f}×"
    if ends is None:
        return f"Not known: {fastest}, with too few blocks for an interval."
    with_interval = f"{fastest} ({ends.from_to})"
    if ends.high < 1:
        return f"Certain by this run: every arm is slower; {with_interval}."
    if ends.low <= 1:
        return f"Not certain: {with_interval}, which includes 1.00×."
    if one.lossless not in SOUND:
        return f"{with_interval}, but its output is not shown to be the target's own: {one.lossless}."
    return f"{with_interval}, but it is not shown that speculation is the cause: {one.sentence}"


def _another_depth(analysis: Analysis, manifest: Manifest | None) -> Experiment | None:
    """Return a depth that was not measured and is predicted to be better by the line through the others (inferred)."""
    best: tuple[float, int, RoundFit] | None = None
    for fit in analysis.rounds.fits:
        if fit.slope is None or fit.intercept is None:
            continue
        costs = [one for one in analysis.costs if one.depth in fit.depths and one.alpha is not None]
        alphas = [one.alpha for one in costs if one.alpha is not None]
        measured = max((one.measured or 0.0 for one in costs), default=0.0)
        if not alphas:
            continue
        alpha = sorted(alphas)[len(alphas) // 2]
        for depth in range(1, _DEEPEST + 1):
            speed = expected_tokens(alpha, depth) / (fit.intercept + fit.slope * depth)
            if depth not in fit.depths and speed > measured * _WORTH_TRYING and (best is None or speed > best[0]):
                best = (speed, depth, fit)
    if best is None:
        return None
    speed, depth, fit = best
    sentence = (
        f"Depth {depth} of {fit.setting}, which was not measured: {speed:.2f}× is predicted from the others (inferred)."
    )
    return Experiment(
        sentence, _with_options(manifest, ["--type", fit.setting.partition(" ")[0], "--depth", str(depth)])
    )


def _blocks_needed(analysis: Analysis, one: Verdict) -> float:
    """Return about how many blocks would show an arm's difference from 1, given the observed spread.

    Infinite where its whole interval is below 1, or its speed-up is 1: no number of them would show a gain.
    """
    if one.interval is None or one.interval.high <= 1 or not one.speedup or one.speedup == 1:
        return math.inf
    half = (one.interval.high - one.interval.low) / 2
    return max(analysis.blocks + 1, round(analysis.blocks * (half / abs(one.speedup - 1)) ** 2))


def _how_surely_above_1(one: Verdict) -> float:
    """Return how far an arm's speed-up is above 1, in widths of its interval (logarithms)."""
    if one.interval is None or not one.speedup or one.interval.low <= 0 or one.interval.high <= one.interval.low:
        return -math.inf
    return math.log(one.speedup) / math.log(one.interval.high / one.interval.low)


def _again(manifest: Manifest | None) -> str:
    """The run's own command line, without its blocks."""
    argv = list(manifest.command) if manifest else []
    if argv[1:2] != ["run"]:
        return f"benchctl run {shlex.quote(manifest.recipe_name if manifest else 'RECIPE')}"
    kept: list[str] = []
    skip = False
    for word in argv:
        if not (skip or word == "--blocks" or word.startswith("--blocks=")):
            kept.append(word)
        skip = word == "--blocks"
    return " ".join(map(quoted, kept))


def _with_options(manifest: Manifest | None, options: Sequence[str]) -> str | None:
    """A run of the same models and prompts with another speculation."""
    if manifest is None:
        return None
    suite = (manifest.recipe.get("prompts") or {}).get("suite")
    argv = ["benchctl", "run", "-t", manifest.target.source]
    argv += ["-d", manifest.draft.source] if manifest.draft and "ngram-mod" not in options else []
    argv += [*options, *(["--prompts", str(suite)] if suite else [])]
    return " ".join(map(quoted, argv))
