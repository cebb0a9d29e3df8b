"""Replaying a run's answers: the target alone reads them again in the steps they were made in, the control first.

The control is the baseline's own answers, a token at a time. Where one of them does not replay exactly, replay shows
nothing on this engine, and nothing more is read. Prompts are rendered first, by a process that has ended before the
replaying one starts, so that the target is never in memory twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchctl.data.identity import home_relative
from benchctl.data.scores import DeviatingToken, ReplayedAnswer, Replays, ReplayTarget
from benchctl.engines.base import Launch, Rendered, Renders
from benchctl.engines.scoring import Replayer, ReplayingEngine
from benchctl.errors import BenchctlError, EngineError
from benchctl.lossless.judge.replay import ArmSteps, SteppedAnswer, target_of
from benchctl.lossless.score.relaunch import Relaunch, RelaunchError, ScoringOutcome
from benchctl.lossless.score.scores_file import ScoresFile, Show
from benchctl.models.files import file_sha256

Prompts = dict[tuple[str, int, str | None, int | None], Rendered]
"""Prompts, by task, index, SHA-256 and length."""


def prompt_key(answer: SteppedAnswer) -> tuple[str, int, str | None, int | None]:
    """Return which rendered prompt an answer follows."""
    return answer.answer.task, answer.answer.prompt_idx, answer.answer.prompt_sha, answer.answer.prompt_tokens


def replay_run(file: ScoresFile, conditions: Sequence[Sequence[ArmSteps]], show: Show, budget_s: float) -> float:
    """Replay the answers of a run that were not replayed yet, the control first; return the seconds that this took.

    `conditions`: of each its baseline, then its arms. What cannot be replayed leaves its reason in the scores, and
    other tests then decide. Raises StorageError, and KeyboardInterrupt.
    """
    to_read = to_replay(conditions, file.scores.replays if file.scores else None)
    start = time.monotonic()
    if not to_read and not (file.scores and file.scores.replays):
        file.note_lacks({})
    if to_read:
        with ScoringOutcome().keeping_failures():
            relaunch = file.target.again()
            plans, lacks = plan_targets(relaunch, to_read)
            file.note_lacks(lacks)
            if plans:
                _replay(file, relaunch, plans, to_read, show, start + budget_s)
    return time.monotonic() - start


def _replay(
    file: ScoresFile,
    relaunch: Relaunch,
    plans: Sequence[TargetPlan],
    conditions: Sequence[Sequence[ArmSteps]],
    show: Show,
    until: float,
) -> None:
    arms = [arm for condition in conditions for arm in condition]
    show("starting the target alone", 0, 1)
    with file.target.scorer() as scorer, file.writing():
        scores = file.scores_read_by(scorer)
        replays = scores.replays = scores.replays or Replays()
        prompts = _rendered(relaunch, scorer, arms, replays)
    file.target.stop()
    start, before, done = time.monotonic(), replays.seconds, 0
    total = sum(len(missing(arm, replays)) for arm in arms)
    for plan in plans:
        try:
            with relaunch.replayer(file.target.run.folder, plan.launch) as replayer, file.writing():
                for stepped in _read(replayer, plan, replays, prompts, conditions):
                    if time.monotonic() > until:
                        break
                    show("/".join(map(str, stepped.prompt)), done, total)
                    done += 1
                    replays.seconds = before + time.monotonic() - start
                    file.write_soon()
                    file.changed = True  # by the reading that follows
        except EngineError as error:
            replays.lacks |= dict.fromkeys((arm.arm for arm in plan.arms), f"the engine failed: {error.what}")
            file.changed = True
        if not _controls_hold(conditions, replays):
            break
    show("done", total, total)


def _rendered(relaunch: Relaunch, scorer: Renders, arms: Sequence[ArmSteps], replays: Replays) -> Prompts:
    """Render the prompts of all answers, each once; note in `replays` which arm lacks one."""
    prompts: Prompts = {}
    lacking: dict[object, str] = {}
    for arm in arms:
        for stepped in arm.answers:
            key = prompt_key(stepped)
            if key in prompts:
                continue
            if key not in lacking and (prompt := relaunch.prompt_of(scorer, stepped.answer)) is not None:
                prompts[key] = prompt
                continue
            lacking[key] = relaunch.no_prompt_of(stepped.answer)
            replays.lacks[arm.arm] = lacking[key]
    return prompts


def to_replay(conditions: Sequence[Sequence[ArmSteps]], stored: Replays | None) -> list[list[ArmSteps]]:
    """Return the conditions of which answers are still to be replayed; none of which the control is not exact.

    Arms without an answer whose steps are known are left out, and with the last of them the condition.
    """
    open_conditions = []
    for control, *compared in conditions:
        arms = [control, *(arm for arm in compared if arm.answers)]
        if len(arms) > 1 and not _deviates(control, stored) and any(missing(arm, stored) for arm in arms):
            open_conditions.append(arms)
    return open_conditions


def _deviates(control: ArmSteps, replays: Replays | None) -> bool:
    """Whether an answer of a baseline that was replayed is not exact."""
    target = target_of(replays, control.arm)
    keys = {answer.key for answer in control.answers}
    return target is not None and any(answer.key in keys and answer.deviations for answer in target.answers)


def _controls_hold(conditions: Sequence[Sequence[ArmSteps]], replays: Replays) -> bool:
    """Whether every answer of the baselines was replayed, exactly."""
    controls = [condition[0] for condition in conditions]
    return not any(missing(control, replays) or _deviates(control, replays) for control in controls)


def missing(arm: ArmSteps, stored: Replays | None) -> list[SteppedAnswer]:
    """Return the answers of an arm that were not replayed yet."""
    target = target_of(stored, arm.arm)
    read = {answer.key for answer in target.answers} if target is not None else set()
    return [answer for answer in arm.answers if answer.key not in read]


@dataclass(frozen=True)
class TargetPlan:
    """A launch of the target, and the arms whose answers it computes as the engine did."""

    launch: Launch
    arms: tuple[ArmSteps, ...]
    """Those of baselines first."""


def plan_targets(
    relaunch: Relaunch, conditions: Sequence[Sequence[ArmSteps]]
) -> tuple[list[TargetPlan], dict[str, str]]:
    """Return the launches to replay with, the control's first, and by arm why it cannot be replayed.

    Raises EngineError.
    """
    arms = {arm.arm: arm for condition in conditions for arm in condition}
    controls = {condition[0].arm for condition in conditions}
    engine = relaunch.engine
    if not isinstance(engine, ReplayingEngine):
        return [], dict.fromkeys(arms, f"benchctl cannot replay steps on the engine {relaunch.kind}")
    by_launch: list[tuple[Launch, list[ArmSteps]]] = []
    lacks: dict[str, str] = {}
    for arm in sorted(arms.values(), key=lambda arm: arm.arm not in controls):
        try:
            launch = relaunch.launch_of(arm.arm)
        except (RelaunchError, BenchctlError) as error:
            lacks[arm.arm] = str(error) if isinstance(error, RelaunchError) else error.what.rstrip(".")
            continue
        if (reason := engine.no_replay(launch)) is not None:
            lacks[arm.arm] = reason
            continue
        launch = engine.replay_launch(launch)
        group = next((alike for known, alike in by_launch if known == launch), None)
        if group is None:
            by_launch.append((launch, [arm]))
        else:
            group.append(arm)
    if controls & lacks.keys():
        reason = next(lacks[name] for name in controls if name in lacks)
        return [], dict.fromkeys(arms, reason)
    return [TargetPlan(launch, tuple(alike)) for launch, alike in by_launch], lacks


def target_for(replays: Replays, plan: TargetPlan, replayer: Replayer) -> ReplayTarget:
    """Return where the plan's readings are stored, with those of earlier sessions.

    Readings of another program are dropped: they may be of other batches.
    """
    names = [arm.arm for arm in plan.arms]
    program = Path(replayer.command[0]) if replayer.command else None
    sha256 = file_sha256(program) if program is not None and program.is_file() else None
    earlier = next((target for target in replays.targets if set(names) & set(target.arms)), None)
    if earlier is not None and (earlier.evidence, earlier.program_sha256) == (replayer.evidence, sha256):
        earlier.arms += [name for name in names if name not in earlier.arms]
        return earlier
    replays.targets = [target for target in replays.targets if target is not earlier]
    command = [home_relative(word) for word in replayer.command]
    target = ReplayTarget(arms=names, command=command, evidence=replayer.evidence, program_sha256=sha256)
    replays.targets.append(target)
    return target


def _read(
    replayer: Replayer,
    plan: TargetPlan,
    replays: Replays,
    prompts: Prompts,
    conditions: Sequence[Sequence[ArmSteps]],
) -> Iterator[SteppedAnswer]:
    """Replay what is missing, arm by arm; yield each answer before it is read. Ends where the control does not hold.

    Raises EngineError.
    """
    target, controls = target_for(replays, plan, replayer), {condition[0].arm for condition in conditions}
    for arm in plan.arms:
        if arm.arm not in controls and not _controls_hold(conditions, replays):
            return
        for stepped in missing(arm, replays):
            prompt = prompts.get(prompt_key(stepped))
            if prompt is None:
                continue
            yield stepped
            diverged = replayer.replay(prompt, stepped.answer.token_ids, stepped.steps)
            task, prompt_idx, prompt_sha, token_sha = stepped.answer.key
            target.answers.append(
                ReplayedAnswer(
                    task=task,
                    prompt_idx=prompt_idx,
                    prompt_sha=prompt_sha,
                    token_sha=token_sha,
                    steps_sha=stepped.steps_sha,
                    rows=len(stepped.answer.token_ids),
                    diverged=[DeviatingToken(**vars(row)) for row in diverged],
                )
            )
