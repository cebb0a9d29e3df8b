"""What to do after a run: which arm to run with, of every group and task. One rule, read by everything that shows it.

An arm is advised only where it is shown to be faster, its output is identical, exact or consistent with the target,
nothing of it is lossy by design, and there is evidence that it drafted. For all tasks together it is shown by the run's
family of claims (`Verdict.speed`), for a task by an interval wide enough for all arms and tasks together.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from benchctl.analysis.cells import identity_of
from benchctl.analysis.decision_results import Advice, AdviceReason, Candidate, GroupAction, GroupDecision, Verdict
from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.output_results import SOUND
from benchctl.analysis.result import Interval
from benchctl.analysis.results import Analysis
from benchctl.recipes.options import IS_OPTION

if TYPE_CHECKING:
    from benchctl.data.manifest import ArmIdentity, Manifest
    from benchctl.recipes.groups import GroupKey


EXAMPLE_PORT = 8080
"""A run gives every engine a port of its own; a command for starting it by hand uses this port."""
ENOUGH_PROMPTS = 12
"""Fewer are no sample of prompts like these: with four, a fifth of which carries the gain, the interval holds the truth
in 59 of 100 runs."""


def decide_groups(analysis: Analysis, manifest: Manifest | None) -> list[GroupDecision]:
    """Return what to run of every group; empty where nothing was compared, the baseline speculates, or the values were
    selected (a search)."""
    if searched_values(analysis) or any(warning.id == "baseline-speculates" for warning in analysis.warnings):
        return []
    groups: dict[str, list[Verdict]] = {}
    for verdict in analysis.verdicts:
        groups.setdefault(analysis.compared[verdict.arm].baseline, []).append(verdict)
    return [_decide(analysis, manifest, baseline, arms) for baseline, arms in groups.items()]


def _decide(analysis: Analysis, manifest: Manifest | None, baseline: str, arms: Sequence[Verdict]) -> GroupDecision:
    condition = _condition(analysis, analysis.compared[arms[0].arm].group)
    inactive, damaged = inactive_arms(analysis), damaged_arms(analysis)
    drafted = [verdict for verdict in arms if verdict.arm not in inactive]
    levels = analysis.sweep.levels if analysis.sweep else []
    overlapping = any(row.overlapping for row in levels if row.arm == arms[0].arm)
    own_tasks = [] if overlapping or len(analysis.tasks) < 2 else analysis.tasks
    own_tasks = [task for task in own_tasks if _prompts(analysis, arms[0].arm, task) >= ENOUGH_PROMPTS]
    several = len(drafted) * len(own_tasks) > 1
    overall, *tasks = (
        _advice(analysis, manifest, task, condition, baseline, drafted, damaged, several=several)
        for task in (ALL_TASKS, *own_tasks)
    )
    timed = [
        verdict
        for verdict in drafted
        if verdict.speedup is not None
        and verdict.attestation != "failed"
        and not verdict.lossy
        and verdict.arm not in damaged
    ]
    fastest = max(timed, key=_speedup, default=None)
    sound = [verdict for verdict in drafted if not verdict.lossy and verdict.arm not in damaged]
    not_shown = [row.arm for row in sound if row.speed == "faster" and not shown_to_draft(row)]
    action = _action(drafted, sound, overall, tasks)
    return GroupDecision(
        baseline=baseline,
        condition=condition,
        arms=[verdict.arm for verdict in arms],
        fastest=fastest.arm if fastest else None,
        action=action,
        not_shown=not_shown if action == "not shown to draft" else [],
        overall=overall,
        tasks=tasks,
    )


def _advice(
    analysis: Analysis,
    manifest: Manifest | None,
    task: str,
    condition: str,
    baseline: str,
    drafted: Sequence[Verdict],
    damaged: Collection[str],
    *,
    several: bool,
) -> Advice:
    """Return what to run for a task; `several`: whether single tasks make several claims."""
    candidates = [_of_task(analysis, verdict, task) for verdict in drafted]
    paying = [verdict for verdict in candidates if _pays(verdict) and verdict.arm not in damaged]
    best = max(paying, key=_speedup, default=None)
    shared: dict[str, Any] = {"task": task, "condition": condition}
    shared["command"] = production_command(manifest, best.arm if best else baseline)
    if best is None:
        reason, candidate = _why_none([verdict for verdict in candidates if verdict.speedup is not None], damaged)
        no_arm: dict[str, Any] = {"arm": None, "speedup": None, "interval": None, "lossless": None}
        return Advice(**shared, **no_arm, setting="no speculation", reason=reason, candidate=candidate)
    prompts = _prompts(analysis, best.arm, task)
    return Advice(
        **shared,
        **{name: getattr(best, name) for name in ("arm", "setting", "speedup", "interval", "lossless", "unviolated")},
        for_others=shown_for_others(best.like_these, prompts),
        few_prompts=prompts < ENOUGH_PROMPTS,
        prompts=prompts,
        jointly=several and task != ALL_TASKS,
        reason="pays",
        added=added_options(manifest, best.arm, baseline),
    )


def _speedup(verdict: Verdict) -> float:
    return verdict.speedup or 0.0


def _condition(analysis: Analysis, key: GroupKey) -> str:
    """Return the name of a group's condition; empty where nothing was varied."""
    if analysis.sweep is None:
        return ""
    parts = [f"concurrency {key.concurrency}"] if key.concurrency > 1 else []
    parts += [f"{key.rate:g} requests per second"] if key.rate is not None else []
    parts += [f"context {key.context_length}"] if key.context_length else []
    parts += [f"answers of {key.max_tokens}"] if key.max_tokens else []
    parts += [key.setups] if key.setups else []
    several = len({row.temperature for row in analysis.sweep.levels}) > 1
    return ", ".join([*parts, *([f"temperature {key.temperature:g}"] if several else [])])


def _of_task(analysis: Analysis, verdict: Verdict, task: str) -> Verdict:
    """Return a verdict with the speed of a single task; what makes the arm's speed unknown does so of each task."""
    if task == ALL_TASKS:
        return verdict
    row = analysis.speedup_of(verdict.arm, task)
    if row is None:
        unknown = dict.fromkeys(("speedup", "interval", "like_these"))
        return verdict.model_copy(update={**unknown, "speed": "unknown"})
    ends, speed = row.interval, "unknown"
    if verdict.speed != "unknown" and ends is not None:
        speed = "undecided" if not ends.excludes_one else "faster" if ends.low > 1 else "slower"
        if speed != "undecided" and row.length_matched is not None and (row.length_matched > 1) != (ends.low > 1):
            speed = "unknown"
    task_values = {"speed": speed, "speedup": row.pooled, "interval": ends, "like_these": row.like_these}
    return verdict.model_copy(update=task_values)


def shown_for_others(like_these: Interval | None, prompts: int) -> bool:
    """Whether a gain is shown for prompts like these, of which so many were measured."""
    return like_these is not None and like_these.low > 1 and prompts >= ENOUGH_PROMPTS


def compared_prompts(analysis: Analysis, arm: str) -> tuple[int, int]:
    """Return how many prompts of an arm were timed in both arms, and for how many it drafted (all: not reported)."""
    prompts = _prompts(analysis, arm, ALL_TASKS)
    row = analysis.acceptance_of(arm)
    return prompts, prompts if row is None or not row.prompts else row.prompts_drafted


def _prompts(analysis: Analysis, arm: str, task: str) -> int:
    row = analysis.speedup_of(arm, task)
    return row.prompts if row else 0


def _pays(verdict: Verdict) -> bool:
    """The rule: whether an arm is advised."""
    sound = verdict.lossless in SOUND or verdict.unviolated is not None
    return verdict.speed == "faster" and shown_to_draft(verdict) and sound and not verdict.lossy


def shown_to_draft(verdict: Verdict) -> bool:
    """Whether there is evidence that an arm drafted: its attestation, or in a study's bare files its counters."""
    return verdict.attestation == "active" or (verdict.attestation == "unknown" and verdict.acceptance is not None)


def _why_none(candidates: Sequence[Verdict], damaged: Collection[str]) -> tuple[AdviceReason, Candidate | None]:
    """Return why no arm is advised, and the arm that would be advised first."""
    if not candidates:
        return "nothing drafted", None
    honest = [verdict for verdict in candidates if not verdict.lossy]
    if not honest:
        return "all lossy", None
    sound = [verdict for verdict in honest if verdict.arm not in damaged]
    if not sound:
        return "all damaged", None
    not_slower = [verdict for verdict in sound if verdict.speed != "slower"]
    best = max(not_slower or sound, key=_speedup)
    reasons: tuple[tuple[AdviceReason, bool], ...] = (
        ("all slower", not not_slower),
        ("no interval", best.interval is None),
        ("speed unknown", best.speed == "unknown"),
        ("within", best.speed == "within"),
        ("undecided", best.speed == "undecided"),
        ("not shown to draft", not shown_to_draft(best)),
    )
    reason: AdviceReason = next((reason for reason, holds in reasons if holds), "output not shown")
    candidate = Candidate(arm=best.arm, speedup=_speedup(best), interval=best.interval, lossless=best.lossless)
    return reason, candidate


def _action(
    drafted: Sequence[Verdict], sound: Sequence[Verdict], overall: Advice, tasks: Sequence[Advice]
) -> GroupAction:
    """Return what to do; `sound`: the arms that drafted, are not lossy by design and do not damage the output."""
    faster = [verdict for verdict in sound if verdict.speed == "faster"]
    speeds = {verdict.speed for verdict in sound}
    actions: tuple[tuple[GroupAction, bool], ...] = (
        ("run", overall.arm is not None),
        ("by task", any(row.arm for row in tasks)),
        ("nothing drafted", not drafted),
        ("none is sound", not sound),
        ("not shown to draft", not all(map(shown_to_draft, faster))),
        ("output not known", bool(faster)),
        ("do not speculate", speeds <= {"slower", "within"}),
        ("undecided", "undecided" in speeds),
    )
    return next((action for action, holds in actions if holds), "not comparable")


def searched_values(analysis: Analysis) -> bool:
    """Whether the run's values were selected by a search: the best of them is biased upwards."""
    return any(warning.id == "searched" for warning in analysis.warnings)


def inactive_arms(analysis: Analysis) -> list[str]:
    """The arms whose speculation was on but never drafted."""
    drafted = {row.arm: row.drafted for row in analysis.acceptance if row.task == ALL_TASKS}
    return [row.arm for row in analysis.verdicts if row.attestation == "idle" or drafted.get(row.arm) == 0]


def damaged_arms(analysis: Analysis) -> dict[str, int]:
    """Arm to the number of its prompts with a violation, 0 where it is the arm as a whole."""
    return {
        row.arm: row.counts.get("violation", 0)
        for row in analysis.losslessness
        if row.counts.get("violation") or (row.verdict == "violation" and not row.lossy)
    }


def resolution(analysis: Analysis) -> float | None:
    """How far from 1 the interval of an inactive arm reaches, at most, as a share; `None` without such an interval."""
    inactive = inactive_arms(analysis)
    ends = [row.interval for row in analysis.verdicts if row.arm in inactive and row.interval]
    return max((max(abs(end.low - 1), abs(end.high - 1)) for end in ends), default=None)


def launch_command(arm: ArmIdentity) -> str:
    """The exact command line of an arm, quoted for a POSIX shell; the address of an endpoint that ran already."""
    return " ".join(map(quoted, [*arm.env, *arm.argv])) if arm.url is None else arm.url


def quoted(word: str) -> str:
    """A word for the shell, which still finds a home folder at its start."""
    at_home = re.fullmatch(r"((?:\w+=)?~/)(.+)", word, re.DOTALL)
    return at_home[1] + shlex.quote(at_home[2]) if at_home else shlex.quote(word)


def production_command(manifest: Manifest | None, arm: str) -> str | None:
    """An arm's exact command line on `EXAMPLE_PORT`; `None` where it is not known."""
    identity = identity_of(manifest, arm)
    if identity is None or not (identity.argv or identity.url):
        return None
    return launch_command(identity).replace("'{port}'", str(EXAMPLE_PORT))


def added_options(manifest: Manifest | None, arm: str, baseline: str) -> str | None:
    """The options of an arm's command line that its baseline's has not; `None` where either is not known."""
    argv = {identity.name: identity.argv for identity in manifest.arms} if manifest else {}
    if not argv.get(arm) or not argv.get(baseline):
        return None
    baseline_words = by_option(argv[baseline])
    return " ".join(quoted(word) for option in by_option(argv[arm]) if option not in baseline_words for word in option)


def by_option(argv: Sequence[str]) -> list[tuple[str, ...]]:
    """Options with their values, in their order."""
    options: list[tuple[str, ...]] = [()]
    for word in argv:
        if IS_OPTION.match(word):
            options.append((word,))
        else:
            options[-1] += (word,)
    return options
