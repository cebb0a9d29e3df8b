"""Scores differing answers on the target for `benchctl verify-lossless`, and assesses the arms."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from benchctl.analysis.conditions.split import parts_of
from benchctl.analysis.results import Losslessness, LosslessVerdict, SelfConsistency
from benchctl.data.audits import Audit
from benchctl.data.machines import AXIS as MACHINE
from benchctl.data.replays import Replays
from benchctl.data.store import RunData
from benchctl.errors import EngineError, UsageError
from benchctl.lossless.analysed import OutputComparison
from benchctl.lossless.audit_plan import AuditPlan
from benchctl.lossless.audit_session import audit_run
from benchctl.lossless.divergence_session import Advance, replay
from benchctl.lossless.explain import Evidence
from benchctl.lossless.prefixes import prefixes_to_score
from benchctl.lossless.relaunch import Target
from benchctl.measure.run import signals_interrupt
from benchctl.recipes.groups import recipe_arm
from benchctl.text import one_line, spoken

OFFLINE = "it was not replayed before, and --offline starts no engine"
UNSCORED_OFFLINE = "its answers were not scored before, and --offline starts no engine"
NOT_SCORED = "its answers were not scored"
ELSEWHERE = "its answers come from several kinds of machines, and this machine's target may compute other values"
FORKS_ALONE = "--audit forks scores no whole answers"

Depth = Literal["full", "forks", "off"]
"""What is scored: whole answers, the first divergences alone, or nothing."""


@dataclass(frozen=True)
class Explained:
    """The verdicts on a run's arms, with every difference explained as far as possible."""

    outputs: OutputComparison
    found: list[Losslessness]
    consistency: list[SelfConsistency]
    replays: Replays | None
    failure: EngineError | None
    """The engine's failure, where no difference could be explained because of it."""
    audit: Audit | None = None

    def baseline_of(self, arm: str) -> str:
        """Return the arm that `arm` is compared with."""
        return next(frame.arms[frame.baseline] for frame in self.outputs.frames if arm in frame.arms)

    def only(self, *accepted: LosslessVerdict) -> bool:
        """Whether every arm that can be assessed has one of these verdicts; false where none can be."""
        verdicts = [arm.verdict for arm in self.found if arm.verdict != "not judged"]
        return bool(verdicts) and all(verdict in accepted for verdict in verdicts)


def explain(
    run: RunData,
    *,
    baseline: str | None,
    arms: list[str] | None,
    depth: Depth,
    budget_min: float | None = None,
    binary: str | None,
    models_dir: Path | None,
    trusted: bool,
    quiet: bool,
) -> Explained:
    """Compare answers, score what no stored score explains, and assess.

    Raises UsageError, for an arm that the run does not have before anything is scored, and StorageError.

    Each part of a run with axes is scored on its own target, one after the other. A run measured on unlike machines of
    a cluster is not scored.
    """
    if arms:
        comparable = OutputComparison(run, baseline=baseline)
        for name in arms:
            if name not in comparable.names:
                fix = f"The arms are: {', '.join(comparable.arms)}."
                raise UsageError(f"There is no arm {name!r} to compare.", where="--arm", fix=fix)
    parts = parts_of(run)
    elsewhere = run.manifest is not None and any(MACHINE in setup.axes for setup in run.manifest.setups)
    depth = "off" if elsewhere else depth
    if len(parts) > 1:
        known = run.manifest.compared().values() if run.manifest else ()
        chosen = None if baseline is None else recipe_arm(known, baseline)
        scored, failures = {}, []
        for part in parts:
            names = {name for arm in part.manifest.arms for name in (arm.name, arm.of)} if part.manifest else set()
            if arms and not names & set(arms):
                continue
            own = _explained(
                part,
                baseline=chosen,
                arms=arms,
                depth=depth,
                budget_min=None if budget_min is None else budget_min / len(parts),
                binary=binary,
                models_dir=models_dir,
                trusted=trusted,
                quiet=quiet,
            )
            scored[part.part or ""] = (own.replays, own.audit)
            failures += [own.failure] if own.failure is not None else []
        outputs = OutputComparison(replace(run, of_parts={**run.of_parts, **scored}), baseline=baseline, arms=arms)
        offline = ELSEWHERE if elsewhere else UNSCORED_OFFLINE
        reason = {"off": offline, "forks": FORKS_ALONE}.get(depth, NOT_SCORED)
        found = outputs.verdicts(reason=reason)
        failure = next((_if_nothing(problem, found) for problem in failures), None)
        return Explained(outputs, found, outputs.consistency(), None, failure)
    return _explained(
        parts[0],
        baseline=baseline,
        arms=arms,
        depth=depth,
        budget_min=budget_min,
        binary=binary,
        models_dir=models_dir,
        trusted=trusted,
        quiet=quiet,
    )


def _explained(
    run: RunData,
    *,
    baseline: str | None,
    arms: list[str] | None,
    depth: Depth,
    budget_min: float | None,
    binary: str | None,
    models_dir: Path | None,
    trusted: bool,
    quiet: bool,
) -> Explained:
    """Explain a run of one target, or a part of a run."""
    outputs = OutputComparison(run, baseline=baseline, arms=arms)
    if depth == "off":
        stored = outputs.stored
        reason = OFFLINE if stored.replays or not run.replays else stored.reason
        found = outputs.verdicts(replace(stored, reason=reason), reason=UNSCORED_OFFLINE)
        return Explained(outputs, found, outputs.consistency(), stored.replays, None, outputs.audit)
    name = outputs.frame.arms[outputs.frame.baseline]
    with signals_interrupt(), Target(run, name, binary=binary, models_dir=models_dir, trusted=trusted) as target:
        return _scored(target, outputs, depth=depth, budget_min=budget_min, quiet=quiet)


def _scored(
    target: Target, outputs: OutputComparison, *, depth: Depth, budget_min: float | None, quiet: bool
) -> Explained:
    """Explain a run by scores of its target: of divergences, then of whole answers."""
    consistency = outputs.consistency()
    evidence, failure = _replayed(target, outputs, quiet=quiet)
    if depth == "forks" or not outputs.selection.arms:
        found = outputs.verdicts(evidence, reason=FORKS_ALONE)
        return Explained(outputs, found, consistency, evidence.replays, _if_nothing(failure, found), outputs.audit)
    with scoring_progress("Scoring whole answers", "prompts", quiet=quiet) as advance:
        outcome = audit_run(
            target,
            outputs.selection,
            stored=outputs.audit,
            budget_s=None if budget_min is None else 60 * budget_min,
            announce=None if quiet else _announce,
            advance=advance,
        )
    reason = f"its answers could not be scored: {outcome.reason}" if outcome.reason else NOT_SCORED
    evidence = replace(evidence, audit=outcome.audit, noise={})  # more is known of the noise now
    found = outputs.verdicts(evidence, audit=outcome.audit, reason=reason)
    failure = _if_nothing(failure or outcome.error, found)
    return Explained(outputs, found, consistency, evidence.replays, failure, outcome.audit)


def _replayed(target: Target, outputs: OutputComparison, *, quiet: bool) -> tuple[Evidence, EngineError | None]:
    """Replay the first divergences that no stored replay explains."""
    frame, stored = outputs.frame, outputs.stored
    here = [verdict for verdict in outputs.verdicts() if verdict.arm in frame.arms]
    prefixes = prefixes_to_score(frame, here)
    if not any(prefix.forks for prefix in prefixes) or _is_explained(here):
        return stored, None
    with scoring_progress("Explaining what differs", "answers", quiet=quiet) as advance:
        outcome = replay(target, prefixes, stored=stored.replays, advance=advance)
    reason = f"it could not be replayed: {outcome.reason}" if outcome.reason else "it was not replayed"
    by_answer = {answer: f"it could not be replayed: {why}" for answer, why in outcome.by_answer.items()}
    return replace(stored, replays=outcome.replays, reason=reason, by_answer=by_answer, noise={}), outcome.error


def _if_nothing(failure: EngineError | None, found: list[Losslessness]) -> EngineError | None:
    """Return the engine's failure where no difference is explained."""
    explained = any(
        comparison.fork and comparison.fork.margin is not None for arm in found for comparison in arm.comparisons
    )
    return None if explained else failure


def _announce(plan: AuditPlan) -> None:
    """Print how long scoring whole answers will take, before it begins."""
    answers = sum(len(prompt) for prompt in plan.prompts)
    of = f" of {plan.of}" if len(plan.prompts) < plan.of else ""
    time = f"about {spoken(plan.seconds)}, at most {spoken(plan.budget_s)}"
    message = f"Scoring {answers} whole answers to {len(plan.prompts)}{of} prompts on the target alone: {time}"
    Console(stderr=True).print(Text(f"{message} (skip it with --audit forks)."), soft_wrap=True)


def _is_explained(found: list[Losslessness]) -> bool:
    """Whether every divergence that can be scored has been."""
    forks = [
        fork
        for arm in found
        for comparison in arm.comparisons
        if comparison.fork
        for fork in (comparison.fork, *comparison.other_forks)
    ]
    scorable = [fork for fork in forks if fork.unit == "token" and fork.arm_token is not None and fork.width]
    return all(fork.noise_floor is not None for fork in scorable)


@contextmanager
def scoring_progress(what: str, unit: str, *, quiet: bool) -> Iterator[Advance | None]:
    """Show a live line on a terminal, a few plain ones elsewhere."""
    console = Console(stderr=True)
    if quiet:
        yield None
    elif not console.is_terminal:

        def print_line(done: int, total: int, which: str) -> None:
            if done in (0, total):
                console.print(f"{what}, {done} of {total} {unit}: {one_line(which)}", soft_wrap=True)

        yield print_line
    else:
        columns = (TextColumn(f"{what}: {{task.description}}", markup=False), BarColumn(bar_width=24))
        with Progress(*columns, MofNCompleteColumn(), TimeElapsedColumn(), console=console, transient=True) as bar:
            task = bar.add_task("", total=None)

            def advance(done: int, total: int, which: str) -> None:
                bar.update(task, completed=done, total=total, description=Text(one_line(which, 60)).plain)

            yield advance
