"""The decision of a run, and the experiment that would most likely change it, as a command that works.

A command names the run, whose recipe it takes with everything in it (engine, quantization, arguments, axes, prompts),
and beside it only what is to be different: `benchctl run RUN --only ARM --blocks auto`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchctl.analysis.advice import (
    ENOUGH_PROMPTS,
    compared_prompts,
    damaged_arms,
    decide_groups,
    inactive_arms,
    quoted,
    shown_to_draft,
)
from benchctl.analysis.cost import expected_tokens
from benchctl.analysis.decision_results import Decision, Experiment, ExperimentKind, Verdict
from benchctl.analysis.losslessness import can_be_shown
from benchctl.analysis.outcome import disturbances
from benchctl.analysis.output_results import Losslessness
from benchctl.analysis.result import MIN_BLOCKS, open_for_others
from benchctl.analysis.results import Analysis
from benchctl.analysis.speed_results import Cost
from benchctl.analysis.verify_widths import timed_widths
from benchctl.data.identity import home_relative
from benchctl.errors import UsageError
from benchctl.recipes.adapters import adapter_of

if TYPE_CHECKING:
    from benchctl.data.manifest import Manifest
    from benchctl.data.store import RunData

_SHIPPED, _SHIPPED_PROMPTS = "many", 240
"""The suite of many short prompts, and its prompts."""
YOUR_PROMPTS = "your-prompts.jsonl"
"""Stands in a command for a file that only its reader has."""
COPYING = ("ngram-mod", "ngram-simple")
"""Types that draft by copying; the first that an engine has is suggested."""
RUNS = Path("results")
"""Where `benchctl run` saves and finds runs by itself."""
_DEEPEST = 16
_MOST_BLOCKS = 200
"""More blocks than this nobody measures."""
_WORTH_TRYING = 1.05
"""A depth that was not measured is worth trying where the line through the others predicts so much more, and a gain."""


@dataclass(frozen=True)
class Situation:
    """What a run has found, as far as it decides on what to measure next."""

    analysis: Analysis
    manifest: Manifest
    folder: Path
    advised: frozenset[str]
    """The arms that are advised, for all tasks or some."""

    @cached_property
    def active(self) -> list[Verdict]:
        """The arms that drafted."""
        inactive = inactive_arms(self.analysis)
        return [verdict for verdict in self.analysis.verdicts if verdict.arm not in inactive]

    @cached_property
    def drafted(self) -> list[Verdict]:
        """Those of them whose output could be the target's own."""
        damaged = damaged_arms(self.analysis)
        return [verdict for verdict in self.active if not verdict.lossy and verdict.arm not in damaged]

    @property
    def faster(self) -> list[Verdict]:
        """Those of them that are shown to be faster."""
        return [verdict for verdict in self.drafted if verdict.speed == "faster"]

    @cached_property
    def served(self) -> bool:
        """Whether the engine is an endpoint that ran already: it has no other arm, and it scores nothing."""
        try:
            return not adapter_of(self.manifest.engine.kind).launched
        except UsageError:  # of a package that is not installed here
            return True

    @property
    def copies(self) -> bool:
        """Whether an arm drafts by copying."""
        return any(kind in COPYING for arm in self.manifest.arms for kind in arm.types)

    def run_again(self, kind: ExperimentKind, *options: str, **basis: Any) -> Experiment:  # noqa: ANN401 - fields
        """Return an experiment that runs the run's own recipe again, with these options."""
        return Experiment(kind=kind, command=repeat_command(self.manifest, self.folder, options), **basis)

    def with_your_prompts(self, kind: ExperimentKind, **basis: Any) -> Experiment:  # noqa: ANN401 - fields
        """Return an experiment on prompts that the reader writes."""
        return self.run_again(kind, "--prompts", YOUR_PROMPTS, prompts_file=YOUR_PROMPTS, **basis)


def find_decision(analysis: Analysis, run: RunData) -> Decision | None:
    """Return what to run of every group, and what to measure next; `None` where there is nothing to decide."""
    groups = decide_groups(analysis, run.manifest)
    if not groups:
        return None
    decision = Decision(groups=groups, next=None)
    if run.manifest is None:
        return decision
    advised = frozenset(row.arm for row in decision.rows if row.arm)
    situation = Situation(analysis, run.manifest, run.folder, advised)
    return Decision(groups=groups, next=_next(situation))


def _next(run: Situation) -> Experiment | None:
    """Return the experiment of the first rule that has one."""
    if run.manifest.status in ("started", "interrupted") and not run.manifest.tuning:
        return Experiment(kind="unfinished", command=f"benchctl run --resume {quoted(home_relative(str(run.folder)))}")
    if not run.drafted:
        return run.with_your_prompts("repeating prompts") if run.copies and not run.active else None
    if all(verdict.speedup is None for verdict in run.drafted):
        return None  # nothing was timed, and more of the same would not be
    if disturbances(run.analysis):
        return run.run_again("quiet machine")
    if (experiment := _blocks(run)) is not None:
        return experiment
    if not all(map(shown_to_draft, run.faster)):
        return None  # what would show it is another endpoint
    rules = (_scores, _power, _prompts_for_others, _undecided, _other_depth, _deeper, _other_prompts_or_type)
    return next((experiment for rule in rules if (experiment := rule(run)) is not None), None)


def _blocks(run: Situation) -> Experiment | None:
    if run.analysis.blocks < MIN_BLOCKS:
        return run.run_again("three blocks", "--blocks", "auto")
    if all(verdict.interval is None for verdict in run.drafted):
        return run.run_again("complete blocks", "--blocks", "auto")
    return None


def _scores(run: Situation) -> Experiment | None:
    """Faster arms whose output was not scored."""
    arms = [row.arm for row in run.faster if row.lossless == "undetermined" and row.unviolated is None]
    if not arms or run.served:
        return None
    return Experiment(kind="scores", command=_verify(run.manifest, run.folder), arms=arms)


def _power(run: Situation) -> Experiment | None:
    """The prompts that the verdict on an advised arm's output needs."""
    advised = [row for row in run.analysis.losslessness if row.arm in run.advised]
    return next(filter(None, (more_power(row, run.manifest, run.folder) for row in advised)), None)


def more_power(row: Losslessness, manifest: Manifest, folder: Path) -> Experiment | None:
    """Return the prompts that give an undetermined arm its verdict; `None` where power is not what it lacks."""
    stated = row.audit.stated if row.audit is not None else None
    needed = stated.prompts if stated is not None and can_be_shown(stated) else None
    if row.unviolated is None or needed is None:
        return None
    shipped = needed <= _SHIPPED_PROMPTS
    return Experiment(
        kind="power",
        command=_verify(manifest, folder, "--more", "--prompts", _SHIPPED if shipped else YOUR_PROMPTS),
        arms=[row.arm],
        power=row.unviolated,
        prompts=needed,
        prompts_file=None if shipped else YOUR_PROMPTS,
    )


def _prompts_for_others(run: Situation) -> Experiment | None:
    """More prompts, where the gain of an advised arm is not shown for prompts like the measured ones."""
    for verdict in (verdict for verdict in run.drafted if verdict.arm in run.advised):
        prompts, _ = compared_prompts(run.analysis, verdict.arm)
        if prompts < ENOUGH_PROMPTS:
            return run.with_your_prompts("enough prompts", arms=[verdict.arm], prompts=prompts)
        if open_for_others(verdict.like_these):
            return run.with_your_prompts("more prompts", arms=[verdict.arm])
    return None


def _undecided(run: Situation) -> Experiment | None:
    """More blocks of the undecided arm that is the most likely to be shown faster."""
    undecided = [verdict for verdict in run.drafted if verdict.speed == "undecided"
                 and _blocks_needed(run.analysis, verdict) <= _MOST_BLOCKS]  # fmt: skip
    if not undecided:
        return None
    best = max(undecided, key=_how_surely_above_1).arm
    return run.run_again("blocks of an arm", "--only", best, "--blocks", "auto", arms=[best])


def _other_depth(run: Situation) -> Experiment | None:
    prediction = None if run.served else _another_depth(run.analysis)
    if prediction is None:
        return None
    predicted, depth, kind, timed = prediction
    basis = {"type": kind, "depth": depth, "predicted": predicted, "width_timed": timed}
    return run.run_again("depth", "--type", kind, "--depth", str(depth), **basis)


def _deeper(run: Situation) -> Experiment | None:
    """Twice the depth, where an advised arm is the deepest of its type, faster than the others, and acceptance allows.

    No cost is predicted: beyond the widths that were timed an engine may run another kernel.
    """
    if run.served or run.analysis.sweep is not None:
        return None
    depths = {row.arm: row for row in run.analysis.costs if row.depth is not None and row.alpha is not None}
    kinds: dict[str, list[Verdict]] = {}
    for verdict in run.drafted:
        kind, _, setting = verdict.setting.partition(", depth ")
        if verdict.arm in depths and setting.isdecimal():
            kinds.setdefault(kind, []).append(verdict)
    for kind, arms in kinds.items():
        deepest = max(arms, key=lambda verdict: depths[verdict.arm].depth or 0)
        fastest = max(arms, key=lambda verdict: verdict.speedup or 0.0)
        depth, alpha = depths[deepest.arm].depth or 0, depths[deepest.arm].alpha or 0.0
        yields = expected_tokens(alpha, 2 * depth) / expected_tokens(alpha, depth)
        if len(arms) > 1 and fastest is deepest and deepest.arm in run.advised and yields > _WORTH_TRYING:
            options = ("--type", kind, "--depth", str(2 * depth))
            return run.run_again("depth", *options, arms=[deepest.arm], type=kind, depth=2 * depth)
    return None


def _other_prompts_or_type(run: Situation) -> Experiment | None:
    """What is left: other prompts, or the type that costs least where no copying was tried."""
    if run.advised:
        return run.with_your_prompts("your prompts")
    if run.copies:
        return run.with_your_prompts("repeating prompts")
    copying = next((kind for kind in COPYING if kind in run.manifest.engine.speculation_types), None)
    if copying is None or run.served:
        return None
    slower = all(verdict.speed == "slower" for verdict in run.drafted)
    return run.run_again("copying", "--type", copying, type=copying, all_slower=slower)


def _another_depth(analysis: Analysis) -> tuple[float, int, str, bool] | None:
    """Return (predicted speed-up, depth, type, timed) of the best depth that was not measured and promises a gain.

    A round there costs what the line through the measured depths says. `timed`: a verify of that width was timed, so
    the line is that of the rest of a round. `None` over several conditions, and where arms of a type differ in more
    than their depth.
    """
    if analysis.sweep is not None:
        return None
    settings = {verdict.arm: verdict.setting for verdict in analysis.verdicts if not verdict.lossy}
    kinds = [fit.setting.partition(" ")[0] for fit in analysis.rounds.fits]
    baseline = next((unit.arm for unit in analysis.rounds.units if unit.what == "target step"), "")
    widths = timed_widths(analysis.rounds.units, baseline)
    candidates: list[tuple[float, int, str, bool]] = []
    for kind, fit in zip(kinds, analysis.rounds.fits, strict=True):
        costs = [row for row in analysis.costs
                 if row.depth in fit.depths and settings.get(row.arm) == f"{kind}, depth {row.depth}"]  # fmt: skip
        alphas = sorted(row.alpha for row in costs if row.alpha is not None)
        if fit.setting != kind or kinds.count(kind) > 1 or not alphas:
            continue
        needed = max(1.0, _WORTH_TRYING * max(row.measured or 0.0 for row in costs))
        line = _line_beside_verify(costs, widths)
        depths = {*range(1, _DEEPEST + 1), *(width - 1 for width in widths if width > 1)} - {*fit.depths}
        for depth in sorted(depths):
            timed = line is not None and depth + 1 in widths
            if line is not None and timed:
                cost = line[0] + line[1] * depth + widths[depth + 1]
            elif fit.slope is not None and fit.intercept is not None:
                cost = fit.intercept + fit.slope * depth
            else:
                continue
            speed = expected_tokens(alphas[len(alphas) // 2], depth) / cost
            candidates += [(speed, depth, kind, timed)] if speed > needed else []
    return max(candidates, key=itemgetter(0), default=None)


def _line_beside_verify(costs: Sequence[Cost], widths: Mapping[int, float]) -> tuple[float, float] | None:
    """Return intercept and slope, in steps, of the line through what rounds cost beside their verify.

    `None` below two depths whose verify was timed, and for a line that falls, or begins below 0.
    """
    points = [(row.depth, 1 + row.overhead - widths[row.depth + 1]) for row in costs
              if row.depth is not None and row.overhead is not None and row.depth + 1 in widths]  # fmt: skip
    if len({depth for depth, _ in points}) < 2:
        return None
    depths, remainders = np.array(points, dtype=float).T
    slope, intercept = np.polyfit(depths, remainders, 1)
    return (float(intercept), float(slope)) if slope >= 0 and intercept >= 0 else None


def _blocks_needed(analysis: Analysis, verdict: Verdict) -> float:
    """Return about how many blocks would show an arm's gain, given the observed spread; infinite where none would."""
    if verdict.interval is None or verdict.interval.high <= 1 or not verdict.speedup or verdict.speedup <= 1:
        return math.inf
    half = (verdict.interval.high - verdict.interval.low) / 2
    return max(analysis.blocks + 1, round(analysis.blocks * (half / (verdict.speedup - 1)) ** 2))


def _how_surely_above_1(verdict: Verdict) -> float:
    """Return how far an arm's speed-up is above 1, in widths of its interval (logarithms)."""
    ends = verdict.interval
    if ends is None or not verdict.speedup or ends.low <= 0 or ends.high <= ends.low:
        return -math.inf
    return math.log(verdict.speedup) / math.log(ends.high / ends.low)


def repeat_command(manifest: Manifest, folder: Path, options: Sequence[str] = ()) -> str:
    """Return the command that runs the run's own recipe again, with these options."""
    out = folder.parent.parent
    elsewhere = [] if out == RUNS else ["--output", home_relative(out)]
    words = ["benchctl", "run", home_relative(folder), *options, *elsewhere]
    words += _options(manifest, ("--models-dir", "--engine-binary", "--on"))
    return " ".join(map(quoted, words))


def _verify(manifest: Manifest, folder: Path, *options: str) -> str:
    """Return the command that verifies the run, with these options."""
    words = ["benchctl", "verify-lossless", home_relative(folder), *options]
    return " ".join(map(quoted, [*words, *_options(manifest, ("--models-dir", "--engine-binary"))]))


def _options(manifest: Manifest, names: Sequence[str]) -> list[str]:
    """Return these options of the run's own command line, without which models, engine or machines are not found."""
    kept_options: list[str] = []
    words = [part for word in manifest.command for part in (word.split("=", 1) if word.startswith("--") else [word])]
    for word, value in pairwise(words):
        kept_options += [word, value] if word in names else []
    return kept_options
