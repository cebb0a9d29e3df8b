"""Prints what `verify-against` found, a comparison with reference runs. Names are untrusted text."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchctl.lossless.judge.reference import ArmCauses, BaselinePair, Difference, ReferenceComparison
from benchctl.reports.columns import Column, Name, Table, numeric
from benchctl.reports.terminal import Printout
from benchctl.words import numbers

MOST_PROMPTS = 6
"""Prompts that are printed."""
_CAUSES = {"baseline": "engine or precision", "speculation": "speculation", "both": "both"}


def print_tables(comparison: ReferenceComparison) -> None:
    """Print what the baselines differ in, then every arm."""
    out = Printout()
    for number, run in enumerate(comparison.runs):
        role = "tested" if number == 0 else "reference"
        out.say(f"{role}: {run.run}, {run.engine}, weights in {run.precision}", "" if number else "bold")
    for sentence in comparison.on_trust:
        out.say(sentence, "yellow")
    out.say()
    out.say("Without speculation: what engine and precision changed", "bold")
    out.table(_pairs(comparison))
    for pair in comparison.baselines:
        _print_prompts(out, " and ".join(pair.runs), pair.differing, pair.undetermined)
    if comparison.arms:
        out.say()
        out.say("With speculation: every arm, its own baseline and the reference's", "bold")
        out.table(_causes(comparison))
        for arm in comparison.arms:
            if arm.differing or arm.undetermined:
                _print_prompts(out, f"{arm.arm} and {arm.reference}", arm.differing, arm.undetermined)
    out.say()
    for sentence in conclusion(comparison):
        out.say(sentence, "bold")


def _pairs(comparison: ReferenceComparison) -> Table[BaselinePair]:
    columns: list[Column[BaselinePair]] = [
        Column("Run", lambda row: row.runs[0], Name, heads=True),
        Column("against", lambda row: row.runs[1], Name, heads=True),
        Column("Differ in", lambda row: " and ".join(row.differs_in) or "nothing"),
        numeric("Prompts", "prompts", numbers.count),
        numeric("Identical", "same", cell=lambda row: f"{row.same} of {row.prompts}"),
        numeric("Differ", lambda row: len(row.differing), numbers.count),
        numeric("Undetermined", lambda row: len(row.undetermined), numbers.count),
        numeric("First difference", lambda row: _places(row.differing)),
    ]
    return Table("reference-baselines", "Baselines", columns, comparison.baselines)


def _causes(comparison: ReferenceComparison) -> Table[ArmCauses]:
    columns: list[Column[ArmCauses]] = [
        Column("Run", "run", Name, heads=True),
        Column("Arm", "arm", Name, heads=True),
        Column("against", "reference", Name, heads=True),
        numeric("Identical", lambda row: row.counts["none"], numbers.count),
        numeric("Engine or precision", lambda row: row.counts["baseline"], numbers.count),
        numeric("Speculation", lambda row: row.counts["speculation"], numbers.count),
        numeric("Both", lambda row: row.counts["both"], numbers.count),
        numeric("Undone", lambda row: row.counts["undone"], numbers.count),
        numeric("Undetermined", lambda row: row.counts["undetermined"], numbers.count),
        numeric("First difference", lambda row: _places(row.differing)),
    ]
    return Table("reference-arms", "Arms", columns, comparison.arms)


def conclusion(comparison: ReferenceComparison) -> list[str]:
    """Return what engine, precision and speculation each changed, a sentence each."""
    statements = []
    split = any(len(pair.differs_in) == 1 for pair in comparison.baselines)
    for pair in comparison.baselines:
        compared, differing = pair.prompts - len(pair.undetermined), " and ".join(pair.differs_in)
        runs = f"{pair.runs[0]} against {pair.runs[1]}"
        changed = f"{len(pair.differing)} of {compared} answers"
        if not compared:
            statements.append(f"{runs}: no prompt can be compared.")
        elif not pair.differs_in:
            statements.append(f"Same engine, same precision: {changed} differ ({runs}).")
        elif len(pair.differs_in) == 1:
            statements.append(f"The {differing} alone changed {changed} ({runs}).")
        else:
            further = "; compare with a run that differs in only the engine or the precision, too, to separate the two"
            ending = "" if split or not pair.differing else further
            statements.append(f"{differing.capitalize()} together changed {changed} ({runs}){ending}.")
    for arm in comparison.arms:
        by_speculation = arm.counts["speculation"] + arm.counts["both"] + arm.counts["undone"]
        compared = sum(arm.counts.values()) - arm.counts["undetermined"]
        statements.append(
            f"Speculation changed {by_speculation} of {compared} answers of {arm.arm} (run {arm.run}); "
            f"{arm.counts['none'] + arm.counts['undone']} are identical to the reference ({arm.reference})."
        )
    return statements


def _print_prompts(out: Printout, which: str, differing: Sequence[Difference], undetermined: Sequence[str]) -> None:
    if differing:
        out.say(f"  {which}:", "dim")
    for prompt in differing[:MOST_PROMPTS]:
        cause = f", {_CAUSES[prompt.cause]}" if prompt.cause in _CAUSES else ""
        margins = ["not scored" if value is None else f"{value:.3f}" for value in prompt.margins]
        line = f"    {prompt.task}/{prompt.prompt_idx}: diverges at {prompt.unit} {prompt.index}{cause}"
        if any(value is not None for value in prompt.margins):
            line += f"; margins of the two targets there, in nats: {', '.join(margins)}"
        out.say(line, "dim")
    if len(differing) > MOST_PROMPTS:
        out.say(f"    … and {len(differing) - MOST_PROMPTS} more (--json lists all).", "dim")
    if undetermined:
        names = ", ".join(undetermined[:MOST_PROMPTS]) + (", …" if len(undetermined) > MOST_PROMPTS else "")
        reasons = "missing, failed, not the same in every block, or another prompt text"
        out.say(f"    Undetermined: {names} ({reasons}).", "yellow")


def _places(differing: Sequence[Difference]) -> str | None:
    """Where answers diverge: the earliest index and the median."""
    places = [prompt.index for prompt in differing]
    return f"{min(places)} (median {statistics.median(places):g})" if places else None
