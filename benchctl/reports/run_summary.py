"""A run's summary in a terminal: the conclusion in a sentence, a row an arm, what to run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchctl.analysis.next_experiment import repeat_command
from benchctl.analysis.outcome import disturbances, find_outcome
from benchctl.analysis.results import Analysis
from benchctl.data.manifest import Manifest
from benchctl.reports.first_screen import MOST_ARMS, decisive
from benchctl.reports.tables import provenance
from benchctl.reports.tables.advice import has_choices, only_group, production_commands, told_by_group, what_to_run
from benchctl.reports.terminal import Printout
from benchctl.text import first, one_line
from benchctl.words import advice as advice_words
from benchctl.words import answer_length as length_words
from benchctl.words import conclusion, stopping
from benchctl.words import experiment as experiment_words
from benchctl.words import outcome as outcome_words
from benchctl.words.notices import WarningGroup, counted, grouped_warnings
from benchctl.words.scope import scope_lines
from benchctl.words.verdict import conclusion as conclusion_of_arm
from benchctl.words.verdict import explanation

SAID_BY_HEADLINE = ("run", "by task", "do not speculate", "undecided")
"""What is to be done of a group that its first sentence says already."""
REPEAT = "To repeat it on a quiet machine"
MOST_PLACES = 3
"""Places of a warning that are listed; the others are counted."""
MOST_CHARACTERS = 300
"""Of what was observed, and of the remedy: whole sentences, but not a page of an engine's own text."""
_DECISIVE = ("Task", "Condition", "Run", "Speed-up", "95 % interval", "Output")
"""Columns of what to run that a terminal has; the report has the others."""


def print_run(
    analysis: Analysis, folder: Path, manifest: Manifest | None, page: Path | None = None, *, verbose: bool = False
) -> None:
    """Print a run's summary, what to run, and where its report is, or what follows."""
    console = Console()
    print_summary(console, analysis, str(folder), manifest, verbose=verbose)
    print_decision(console, analysis, verbose=verbose)
    if manifest and analysis.decision and analysis.decision.next is None and disturbances(analysis):
        Printout(console).say(f"{REPEAT}: {repeat_command(manifest, folder)}", whole=True)
    if page is None:
        print_next(Printout(console), folder)
    else:
        Printout(console).say(f"Report: {page}", whole=True)


def print_next(out: Printout, run: Path) -> None:
    """Print what follows on a run."""
    name = shlex.quote(str(run))
    out.say(f"Output: benchctl verify-lossless {name}", whole=True)
    out.say(f"Report: benchctl report {name}", whole=True)


def print_summary(
    console: Console, analysis: Analysis, run: str, manifest: Manifest | None = None, *, verbose: bool = False
) -> None:
    """Print the conclusion, a row an arm, what ran on what, and the warnings; nothing in it is parsed as markup.

    `run`: its folder, for the command that shows the rest; `verbose`: every arm's sentence and every warning.
    """
    out, show_all = Printout(console), f"benchctl report {shlex.quote(run)} -v"
    fidelity = conclusion.fidelity(analysis)
    demonstration = outcome_words.DEMONSTRATION if manifest and provenance.demonstrates(manifest) else ""
    out.say(" ".join(filter(None, [conclusion.headline(analysis), fidelity, demonstration])), "bold")
    for sentence in conclusion.sentences_of_sweep(analysis):
        out.say(f"- {sentence}")
    table, folded = decisive(analysis, None if verbose else MOST_ARMS, brief=not verbose)
    if analysis.verdicts or analysis.accuracy:
        out.table(table)
        if folded:
            out.say(f"{folded} more: {show_all}", "dim", whole=True)
        out.say(table.note, "dim")
    for verdict in analysis.verdicts:
        if verbose or verdict.attestation in ("failed", "off"):
            out.say(f"{verdict.arm}: {conclusion_of_arm(analysis, verdict)} {explanation(analysis, verdict)}")
    engines, models = provenance.short_names(manifest) if manifest else ("", "")
    felt = [outcome_words.felt(find_outcome(analysis), analysis), engines and f"{engines}.", models and f"{models}."]
    if any(felt):
        out.say(" ".join(filter(None, felt)))
    for sentence in length_words.sentences(analysis):
        out.say(sentence)
    for line in scope_lines(analysis.losslessness) if verbose else ():
        out.say(line, "dim")
    if control := conclusion.null_control(analysis):
        out.say(control)
    for cell in analysis.failed_cells:
        out.say(f"Failed: {cell}", "red")
    if analysis.stopping and verbose:
        out.say(stopping.sentence(analysis.stopping), "dim")
    groups = grouped_warnings(analysis)
    if verbose:
        _print_warnings(out, groups)
        return
    _print_warnings(out, [group for group in groups if group.grave])
    if further := counted([group for group in groups if not group.grave]):
        out.say(further, "yellow")


def _print_warnings(out: Printout, groups: Sequence[WarningGroup]) -> None:
    """Print a line for each kind: where, the first observation, the remedy."""
    for group in groups:
        places = list(dict.fromkeys(where for where, _ in group.observations))
        message = f"{one_line(group.observations[0][1], MOST_CHARACTERS)} {one_line(group.todo, MOST_CHARACTERS)}"
        out.say(f"- {first(places, MOST_PLACES)}: {message}", "yellow")


def print_decision(console: Console, analysis: Analysis, *, verbose: bool = False) -> None:
    """Print the last lines: what to run and what to measure next; `verbose`: whole commands."""
    out, decided = Printout(console), only_group(analysis)
    disturbed = bool(disturbances(analysis))
    if decided is not None and (verbose or decided.action not in SAID_BY_HEADLINE):
        out.say(advice_words.action(analysis, decided), "" if disturbed else "bold")
    table = what_to_run(analysis)
    if has_choices(table) and (verbose or (decided is None and not told_by_group(analysis))):
        out.say()
        out.say(table.title, "bold")
        out.table(replace(table, columns=[column for column in table.columns if column.header in _DECISIVE]))
    elif decided is not None and decided.tasks and verbose:
        out.say("The same holds for every task: no arm is shown to be faster on any of them.")
    additions = {} if disturbed and not verbose else {row.added: row for row in reversed(table.rows) if row.added}
    for added, row in additions.items():
        out.say(f"Add to {advice_words.added_to(row)} ({row.arm or ''}): {added}", whole=True, most=4000)
    for name, command in production_commands(table.rows) if verbose else []:
        out.say(f"{name}:")
        out.say(f"  {command}", whole=True, most=4000)
    experiment = analysis.decision.next if analysis.decision else None
    if experiment:
        stated = experiment.kind == "quiet machine"  # by the first sentence
        if not stated:
            out.say(f"Next: {experiment_words.sentence(experiment)}")
        out.say(f"{f'{REPEAT}:' if stated else ' '} {experiment.command}", whole=True)
