"""The decision of a run, and the experiment that would most likely change it, as a command that works.

A command names the run, whose recipe it takes with everything in it (engine, quantization, arguments, axes, prompts),
and beside it only what is to be different: `benchctl run RUN --only ARM --blocks auto`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

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
from benchctl.analysis.losslessness import can_be_shown
from benchctl.analysis.results import Advice, Analysis, Cost, Decision, Experiment, Verdict, open_for_others
from benchctl.analysis.round_model import timed_widths
from benchctl.data.identity import home_relative
from benchctl.errors import UsageError
from benchctl.recipes.adapters import adapter_of
from benchctl.text import listed

if TYPE_CHECKING:
    from benchctl.data.manifest import Manifest
    from benchctl.data.store import RunData

_SHIPPED, _SHIPPED_TASKS, _SHIPPED_PROMPTS = "many", 8, 240
"""The suite of many short prompts, its tasks and its prompts."""
YOUR_PROMPTS = "your-prompts.jsonl"
"""Stands in a command for a file that only its reader has."""
COPYING = ("ngram-mod", "ngram-simple")
"""Types that draft by copying; the first that an engine has is suggested."""
RUNS = Path("results")
"""Where `benchctl run` saves and finds runs by itself."""
_DEEPEST = 16
_MOST = 200
"""More blocks than this nobody measures."""
_WORTH_TRYING = 1.05
"""A depth that was not measured is worth trying where the line through the others predicts so much more, and a gain."""


def find_decision(analysis: Analysis, run: RunData) -> Decision | None:
    """Return what to run of every group, and what to measure next; `None` where there is nothing to decide."""
    groups = decide_groups(analysis, run.manifest)
    if not groups:
        return None
    rows = Decision(groups=groups, next=None).rows
    return Decision(groups=groups, next=_next(analysis, rows, run.manifest, run.folder) if run.manifest else None)


def _next(analysis: Analysis, rows: Sequence[Advice], manifest: Manifest, folder: Path) -> Experiment | None:
    active = [verdict for verdict in analysis.verdicts if verdict.arm not in inactive_arms(analysis)]
    drafted = [verdict for verdict in active if not verdict.lossy and verdict.arm not in damaged_arms(analysis)]
    served, types = _served(manifest.engine.kind), {kind for arm in manifest.arms for kind in arm.types}

    def again(sentence: str, *options: str) -> Experiment:
        return Experiment(sentence=sentence, command=_run_again(manifest, folder, options))

    def your_prompts(why: str) -> Experiment:
        sentence = f'{why} Write them to {YOUR_PROMPTS}, a line each: {{"prompt": "…"}}.'
        return again(sentence, "--prompts", YOUR_PROMPTS)

    repeating = your_prompts(
        "Prompts whose answers repeat what they were given: copied drafts cost next to nothing, and pay there first."
    )
    if not drafted:
        return repeating if types & {*COPYING} and not active else None
    if all(verdict.speedup is None for verdict in drafted):
        return None  # nothing was timed, and more of the same would not be
    if analysis.blocks < 3:
        return again("More blocks: below three nothing is known of another run.", "--blocks", "auto")
    if all(verdict.interval is None for verdict in drafted):
        return again("More blocks: too few are complete for an interval.", "--blocks", "auto")
    faster = [verdict for verdict in drafted if verdict.speed == "faster"]
    if any(not shown_to_draft(verdict) for verdict in faster):
        return None  # what would show it is another endpoint
    unsound = [verdict.arm for verdict in faster if verdict.lossless == "undetermined" and verdict.unviolated is None]
    if unsound and not served:
        whether = "faster, but it is undetermined whether the output is the target's own"
        sentence = f"Losslessness of {listed(unsound)}: {whether}."
        options = _options(manifest, ("--models-dir", "--engine-binary"))
        command = ["benchctl", "verify-lossless", home_relative(folder), *options]
        return Experiment(sentence=sentence, command=" ".join(map(quoted, command)))
    advised = {row.arm for row in rows}
    for row in analysis.losslessness:
        stated = row.audit.stated if row.audit is not None else None
        needed = stated.prompts if stated is not None and can_be_shown(stated) else None
        if row.arm not in advised or row.unviolated is None or needed is None:
            continue
        sentence = (
            f"Losslessness of {row.arm}: no violation found, with a power of {100 * row.unviolated:.0f} %; about "
            f"{needed:,} prompts are needed."
        )
        if needed > _SHIPPED_PROMPTS:
            return your_prompts(sentence)
        sentence = f"{sentence} Then verify that run: `benchctl verify-lossless`."
        limit = str(math.ceil(needed / _SHIPPED_TASKS))
        return again(sentence, "--only", row.arm, "--prompts", _SHIPPED, "--limit", limit, "--blocks", "1")
    for verdict in (verdict for verdict in drafted if verdict.arm in advised):
        prompts, _ = compared_prompts(analysis, verdict.arm)
        if prompts < ENOUGH_PROMPTS:
            return your_prompts(
                f"At least {ENOUGH_PROMPTS} prompts, or your own: {verdict.arm} is faster for these {prompts}."
            )
        if open_for_others(verdict.like_these):
            return your_prompts(
                f"More prompts, or your own: {verdict.arm} is faster for these, and for others like them it is open."
            )
    undecided = [
        verdict for verdict in drafted if verdict.speed == "undecided" and _blocks_needed(analysis, verdict) <= _MOST
    ]
    if undecided:
        best = max(undecided, key=_how_surely_above_1)
        sentence = f"More blocks of {best.arm} alone: of what is undecided it is the most likely to be shown faster."
        return again(sentence, "--only", best.arm, "--blocks", "auto")
    if not served and (found := _another_depth(analysis)) is not None:
        speed, depth, kind, timed = found
        basis = "from the others" if timed else "from the others, unless that width runs another kernel"
        sentence = f"Depth {depth} of {kind}, which was not measured: {speed:.2f}× is predicted {basis} (inferred)."
        return again(sentence, "--type", kind, "--depth", str(depth))
    if any(advised):
        return your_prompts("Your own prompts: acceptance, and with it all of this, depends on the text.")
    if types & {*COPYING}:
        return repeating
    copying = next((kind for kind in COPYING if kind in manifest.engine.speculation_types), None)
    if copying is None or served:
        return None
    slower = all(verdict.speed == "slower" for verdict in drafted)
    why = "every arm here is slower" if slower else "no arm here is shown to be faster"
    return again(f"A drafter that costs next to nothing, {copying}: {why}.", "--type", copying)


def _served(kind: str) -> bool:
    """Whether an engine is an endpoint that ran already: no other arm can be made of it, and it scores nothing."""
    try:
        return not adapter_of(kind).launched
    except UsageError:  # of a package that is not installed here
        return True


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
        rest = _line_beside_verify(costs, widths)
        for depth in (depth for depth in range(1, _DEEPEST + 1) if depth not in fit.depths):
            timed = rest is not None and depth + 1 in widths
            if rest is not None and timed:
                cost = rest[0] + rest[1] * depth + widths[depth + 1]
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
    depths, rest = np.array(points, dtype=float).T
    slope, intercept = np.polyfit(depths, rest, 1)
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


def _run_again(manifest: Manifest, folder: Path, options: Sequence[str]) -> str:
    """Return the command that runs the run's own recipe again, with these options."""
    out = folder.parent.parent
    elsewhere = [] if out == RUNS else ["--output", home_relative(out)]
    words = ["benchctl", "run", home_relative(folder), *options, *elsewhere]
    words += _options(manifest, ("--models-dir", "--engine-binary", "--on"))
    return " ".join(map(quoted, words))


def _options(manifest: Manifest, names: Sequence[str]) -> list[str]:
    """Return these options of the run's own command line, without which models, engine or machines are not found."""
    found: list[str] = []
    words = [part for word in manifest.command for part in (word.split("=", 1) if word.startswith("--") else [word])]
    for word, value in pairwise(words):
        found += [word, value] if word in names else []
    return found
