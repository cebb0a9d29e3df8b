"""`benchctl verify-lossless`: scores what no stored score explains of a run's answers, and assesses the arms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.text import Text

from benchctl.analysis.conditions.split import parts_of
from benchctl.analysis.results import Losslessness, LosslessVerdict, SelfConsistency
from benchctl.data.machines import AXIS as MACHINE
from benchctl.data.scores import TargetScores
from benchctl.data.store import RunData
from benchctl.errors import EngineError, UsageError
from benchctl.lossless.analysed import OutputComparison
from benchctl.lossless.explain import UNREPLAYED
from benchctl.lossless.plan import ScoringPlan, prefixes_to_score
from benchctl.lossless.relaunch import Target
from benchctl.lossless.scoring import ScoringSession
from benchctl.measure.progress import shown_steps
from benchctl.measure.run import signals_interrupt
from benchctl.recipes.groups import recipe_arm
from benchctl.text import spoken

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
    scores: TargetScores | None = None
    """Of a run of several parts `None`: each has its own."""
    failure: EngineError | None = None
    """The engine's failure, where no difference could be explained because of it."""

    def baseline_of(self, arm: str) -> str:
        """Return the arm that `arm` is compared with."""
        return next(frame.arms[frame.baseline] for frame in self.outputs.frames if arm in frame.arms)

    def only(self, *accepted: LosslessVerdict) -> bool:
        """Whether every arm that can be assessed has any of these verdicts; false where none can be."""
        verdicts = [arm.verdict for arm in self.found if arm.verdict != "not judged"]
        return bool(verdicts) and all(verdict in accepted for verdict in verdicts)


@dataclass(frozen=True)
class _Request:
    """What is asked for."""

    arms: list[str] | None
    depth: Depth
    budget_min: float | None
    binary: str | None
    models_dir: Path | None
    trusted: bool
    quiet: bool


def explain(
    run: RunData,
    *,
    baseline: str | None = None,
    arms: list[str] | None = None,
    depth: Depth = "full",
    budget_min: float | None = None,
    binary: str | None,
    models_dir: Path | None,
    trusted: bool,
    quiet: bool,
) -> Explained:
    """Compare answers, score what no stored score explains, and assess.

    Raises UsageError, for an arm that the run does not have before anything is scored, and StorageError.

    Each part of a run with axes is scored on its own target, in turn. A run measured on unlike machines of
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
    budget = None if budget_min is None else budget_min / len(parts)
    asked = _Request(arms, depth, budget, binary, models_dir, trusted, quiet)
    if len(parts) == 1:
        return _explained(parts[0], baseline, asked)
    known = run.manifest.compared().values() if run.manifest else ()
    chosen = None if baseline is None else recipe_arm(known, baseline)
    scored, failures = {}, []
    for part in parts:
        names = {name for arm in part.manifest.arms for name in (arm.name, arm.of)} if part.manifest else set()
        if arms and not names & set(arms):
            continue
        own = _explained(part, chosen, asked)
        scored[part.part or ""] = own.scores
        failures += [own.failure] if own.failure is not None else []
    outputs = OutputComparison(replace(run, of_parts={**run.of_parts, **scored}), baseline=baseline, arms=arms)
    offline = ELSEWHERE if elsewhere else UNSCORED_OFFLINE
    found = outputs.verdicts(reason={"off": offline, "forks": FORKS_ALONE}.get(depth, NOT_SCORED))
    failure = next((_if_nothing(problem, found) for problem in failures), None)
    return Explained(outputs, found, outputs.consistency(), failure=failure)


def _explained(run: RunData, baseline: str | None, asked: _Request) -> Explained:
    """Explain a run of a single target, or a part of a run."""
    outputs = OutputComparison(run, baseline=baseline, arms=asked.arms)
    if asked.depth == "off":
        stored = outputs.stored
        reason = OFFLINE if stored.reason == UNREPLAYED else stored.reason
        found = outputs.verdicts(replace(stored, reason=reason), reason=UNSCORED_OFFLINE)
        return Explained(outputs, found, outputs.consistency(), stored.scores)
    name = outputs.frame.arms[outputs.frame.baseline]
    target = Target(run, name, binary=asked.binary, models_dir=asked.models_dir, trusted=asked.trusted)
    with signals_interrupt(), target:
        return _scored(target, outputs, asked)


def _scored(target: Target, outputs: OutputComparison, asked: _Request) -> Explained:
    """Explain a run by scores of its target: of divergences that are not yet explained, then of whole answers."""
    session, evidence, failure = ScoringSession(target, outputs.stored.scores), outputs.stored, None
    here = [verdict for verdict in outputs.verdicts() if verdict.arm in outputs.frame.arms]
    prefixes = prefixes_to_score(outputs.frame, here)
    if any(prefix.forks for prefix in prefixes) and not _is_explained(here):
        with shown_steps("Explaining what differs", quiet=asked.quiet) as show:
            outcome = session.score_prefixes(prefixes, show)
        failure = outcome.error
        reason = f"it could not be replayed: {outcome.reason}" if outcome.reason else "it was not replayed"
        by_answer = {answer: f"it could not be replayed: {why}" for answer, why in outcome.by_answer.items()}
        evidence = replace(evidence, scores=session.scores, reason=reason, by_answer=by_answer, noise={})
    unscored = FORKS_ALONE
    if asked.depth == "full" and outputs.selection.arms:
        with shown_steps("Scoring whole answers", quiet=asked.quiet) as show:
            outcome = session.score_answers(
                outputs.selection,
                show,
                budget_s=None if asked.budget_min is None else 60 * asked.budget_min,
                announce=None if asked.quiet else _announce,
            )
        unscored = f"its answers could not be scored: {outcome.reason}" if outcome.reason else NOT_SCORED
        evidence = replace(evidence, scores=session.scores, noise={})  # more is known of the noise now
        failure = failure or outcome.error
    found = outputs.verdicts(evidence, reason=unscored)
    return Explained(outputs, found, outputs.consistency(), session.scores, _if_nothing(failure, found))


def _if_nothing(failure: EngineError | None, found: list[Losslessness]) -> EngineError | None:
    """Return the engine's failure where no difference is explained."""
    explained = any(
        comparison.fork and comparison.fork.margin is not None for arm in found for comparison in arm.comparisons
    )
    return None if explained else failure


def _announce(plan: ScoringPlan) -> None:
    """Print how long scoring whole answers will take, before it begins."""
    answers = sum(len(prompt) for prompt in plan.prompts)
    of = f" of {plan.of}" if len(plan.prompts) < plan.of else ""
    time = f"about {spoken(plan.seconds)}, at most {spoken(plan.budget_s)}"
    message = f"Scoring {answers} whole answers to {len(plan.prompts)}{of} prompts on the target alone: {time}"
    Console(stderr=True).print(Text(f"{message} (skip it with --audit forks)."), soft_wrap=True)


def _is_explained(found: list[Losslessness]) -> bool:
    """Whether every divergence that can be scored has been."""
    forks = [fork for arm in found for comparison in arm.comparisons for fork in comparison.forks]
    scorable = [fork for fork in forks if fork.unit == "token" and fork.arm_token is not None and fork.width]
    return all(fork.noise_floor is not None for fork in scorable)
