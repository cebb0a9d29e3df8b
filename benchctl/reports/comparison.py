"""Runs side by side, an arm a row: two of the same work, or any number. Names are untrusted text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from benchctl.analysis.comparison.changes import Ratio
from benchctl.analysis.comparison.compare import ArmComparison, RunComparison, RunFacts
from benchctl.analysis.comparison.gates import GateResult
from benchctl.analysis.comparison.several import ArmRow, SeveralRuns
from benchctl.analysis.comparison.workload import Change
from benchctl.analysis.scope import by_condition
from benchctl.errors import StorageError
from benchctl.reports.columns import Column, Name, Table, interval, numeric
from benchctl.reports.tables.output import output_column
from benchctl.reports.tables.speed import SPEED_TONE
from benchctl.reports.terminal import Printout
from benchctl.text import first, one_line, plural
from benchctl.words import comparison as words
from benchctl.words import numbers
from benchctl.words.labels import lossy_label
from benchctl.words.scope import scope_sentence

VALUE_CHARACTERS = 64
"""Characters of a differing value, such as a list of hashes; --json has all."""
MOST_ROWS = 120
"""Rows of a table in a terminal; --json has them all."""


def compared_arms(comparison: RunComparison) -> Table[ArmComparison]:
    """A row an arm: its speed and its output in both runs."""
    labels = {arm.arm: f"{arm.arm}{lossy_label(arm.lossy)}" for arm in comparison.arms}
    return Table(
        "compared",
        "Both runs",
        (
            Column("arm", lambda arm: labels[arm.arm], Name, heads=True),
            Column("speed-up A → B", "speedup.ratio", cell=_speedups),
            numeric("B/A", "judged.ratio", numbers.ratio),
            interval("95 %, all arms", "judged.interval", optional=True),
            Column("change", "change", tone=lambda arm: SPEED_TONE.get(arm.change, "")),
            Column("tok/s A → B", "rate.ratio", cell=lambda arm: _both(arm.rate, numbers.rate)),
            Column("accepted A → B", "acceptance_b", cell=_accepted),
            output_column("output A → B", "lossless_b", cell=_lossless),
            Column("answers", "outputs.same", cell=_answers, tone=lambda arm: "good" if arm.outputs.alike else "open"),
        ),
        comparison.arms,
    )


def several_arms(several: SeveralRuns) -> Table[ArmRow]:
    """A row for every arm of every run, compared with the first run's."""
    order = {name: number for number, name in enumerate(dict.fromkeys(row.arm for row in several.rows))}
    rows = sorted(several.rows, key=lambda row: (order[row.arm], row.run))
    return Table(
        "several",
        "All runs",
        (
            Column("arm", "arm", Name, heads=True),
            numeric("run", lambda row: row.run + 1),
            numeric("tok/s", "rate", numbers.rate),
            numeric("/ run 1", "rate_ratio.ratio", numbers.ratio, optional=True),
            interval("95 % interval", "rate_ratio.interval", optional=True),
            numeric(
                "speed-up", "speedup", cell=lambda row: "baseline" if row.is_baseline else numbers.ratio(row.speedup)
            ),
            interval("of its own baseline", "interval"),
            numeric("speed-up / run 1", "speedup_ratio.ratio", numbers.ratio, optional=True),
            interval("95 %", "speedup_ratio.interval", optional=True),
            Column("change", "change", tone=lambda row: SPEED_TONE.get(row.change or "", ""), optional=True),
            numeric("accepted", "acceptance", cell=lambda row: numbers.percent(row.acceptance, row.acceptance_doubt)),
            output_column("output", "lossless"),
            Column("answers as run 1", "answers_same", cell=_same_answers, optional=True),
        ),
        rows,
    )


def _same_answers(row: ArmRow) -> str:
    if row.answers_same is None:
        return numbers.ABSENT
    return _counts(row.answers_same, differ=row.answers_differing or 0, undetermined=row.answers_unsteady or 0)


def _counts(same: int, **by_outcome: int) -> str:
    return ", ".join([f"{same} same", *(f"{count} {word}" for word, count in by_outcome.items() if count)])


def _arrow(a: str, b: str) -> str:
    return a if a == b else f"{a} → {b}"


def _speedups(arm: ArmComparison) -> str:
    return "baseline" if arm.is_baseline else _both(arm.speedup, numbers.ratio)


def _both(ratio: Ratio, shown: Callable[[float | None], str]) -> str:
    """Write the values of A's runs, then of B's."""
    a, b = (", ".join(map(shown, values)) or numbers.ABSENT for values in (ratio.values_a, ratio.values_b))
    return f"{a} → {b}"


def _lossless(arm: ArmComparison) -> str:
    return _arrow(arm.lossless_a or numbers.ABSENT, arm.lossless_b or numbers.ABSENT)


def _accepted(arm: ArmComparison) -> str:
    return _arrow(
        numbers.percent(arm.acceptance_a, arm.acceptance_doubt_a),
        numbers.percent(arm.acceptance_b, arm.acceptance_doubt_b),
    )


def _answers(arm: ArmComparison) -> str:
    outputs = arm.outputs
    if not outputs.kept:
        return numbers.ABSENT
    if outputs.alike:
        return "the same"
    return _counts(outputs.same, differ=len(outputs.differing), undetermined=len(outputs.undetermined))


def print_comparison(comparison: RunComparison, checked: Sequence[GateResult]) -> None:
    """Print both runs, what changed, the table of arms, and the gates."""
    out = Printout()
    for letter, runs in (("A", (comparison.a, *comparison.more_a)), ("B", (comparison.b, *comparison.more_b))):
        for run in runs:
            _print_run(out, letter, run)
    _print_changes(out, comparison)
    out.say()
    out.table(compared_arms(comparison))
    out.say()
    judged = [arm for arm in comparison.lossless_b if arm.verdict != "not judged"]
    for scope, _ in by_condition(judged, lambda arm: arm.scope):
        out.say(f"Output of B. {scope_sentence(scope)}", "dim")
    for sentence in words.baseline_and_runs(comparison):
        out.say(sentence)
    for arm in comparison.arms:
        _print_remarks(out, arm)
    for names, where in ((comparison.only_in_a, "A"), (comparison.only_in_b, "B")):
        if names:
            out.say(f"Only in {where}, so not compared: {', '.join(names)}.", "yellow")
    for result in checked:
        sign, style, outcome = ("✓", "green", "passed") if result.passed else ("✗", "red", "failed")
        if result.skipped:
            sign, style, outcome = "–", "yellow", "not gated"
        out.say(f"{sign} {result.gate}: {outcome}. {words.gate_note(result) or ''}".rstrip(), style)


def write_junit(file: Path, comparison: RunComparison, checked: Sequence[GateResult]) -> None:
    """Write the gates as a JUnit file, which CI servers show: a test case a gate. Raises StorageError."""
    suite = ElementTree.Element(
        "testsuite", name=f"benchctl compare {one_line(comparison.a.run)} {one_line(comparison.b.run)}"
    )
    for result in checked:
        case = ElementTree.SubElement(suite, "testcase", classname="benchctl", name=str(result.gate))
        if result.skipped:
            ElementTree.SubElement(case, "skipped", message=one_line(words.gate_note(result) or "", 400))
        for failure in result.failures:
            ElementTree.SubElement(case, "failure", message=one_line(words.failure_sentence(result.gate, failure), 400))
    suite.attrib |= {
        "tests": str(len(checked)),
        "failures": str(sum(not result.passed for result in checked)),
        "skipped": str(sum(result.skipped for result in checked)),
    }
    try:
        ElementTree.ElementTree(suite).write(file, encoding="utf-8", xml_declaration=True)
    except OSError as error:
        raise StorageError(f"The gates cannot be written: {error.strerror}.", where=str(file)) from None


def _print_run(out: Printout, letter: str, run: RunFacts) -> None:
    when = f", {numbers.moment(run.created_at)}" if run.created_at else ""
    state = "" if run.status in (None, "finished") else f", {run.status}"
    out.say(f"{letter}  {run.recipe} {run.run}{when}, {run.blocks} {plural(run.blocks, 'block')}{state}")
    for cell in run.failed_cells:
        out.say(f"   Failed cell: {cell}", "yellow")
    for sentence in run.damage[: words.MOST_NAMED]:
        out.say(f"   Damaged: {sentence}", "yellow")
    if run.warnings:
        out.say(f"   Warnings (see its report): {', '.join(run.warnings)}", "yellow")


def _print_changes(out: Printout, comparison: RunComparison) -> None:
    for sentence in comparison.on_trust:
        out.say(sentence, "yellow")
    if not comparison.changed:
        out.say("What changed: nothing that the manifests record.")
        return
    out.say("What changed:")
    columns: tuple[Column[Change], ...] = (
        Column("what", lambda change: f"  {change.what}", wrap=True),
        Column("A", "a", wrap=True),
        Column("→", lambda change: "→"),
        Column("B", "b", wrap=True),
    )
    out.table(Table("changed", "What changed", columns, comparison.changed), headings=False)


def _print_remarks(out: Printout, arm: ArmComparison) -> None:
    if arm.doubt:
        out.say(f"{arm.arm}: {words.doubt_sentence(arm.doubt)}", "yellow")
    if arm.prompts and arm.prompts_left_out:
        out.say(f"{arm.arm}: {arm.prompts_left_out} prompts were not timed in every block.", "yellow")
    if arm.outputs.differing:
        answering = "the target alone" if arm.is_baseline else arm.arm
        out.say(f"Answers of {answering} differ from A: {first(arm.outputs.differing, words.MOST_NAMED)}", "yellow")


def print_several(several: SeveralRuns) -> None:
    """Print the runs, what differs between them, the table of arms, and what was not compared."""
    out = Printout()
    for number, run in enumerate(several.runs):
        state = "" if run["status"] in (None, "finished") else f", {run['status']}"
        failed = f", {run['failed_cells']} failed cells" if run["failed_cells"] else ""
        line = f"{number + 1:>3}  {run['recipe']} {run['run']}, {run['blocks']} blocks, {run['records']} records"
        out.say(f"{line}{state}{failed}")
        if run["damage"]:
            out.say(f"     Damaged: {run['damage']}", "yellow", most=300)
    if not several.differing:
        out.say("What differs: nothing that the manifests record.")
    for difference in several.differing:
        values: dict[str, list[str]] = {}
        for number, value in enumerate(difference.values):
            values.setdefault(value, []).append(str(number + 1))
        by_value = (
            f"{one_line(value, VALUE_CHARACTERS)} (run {first(runs, words.MOST_NAMED)})"
            for value, runs in values.items()
        )
        out.say(f"{difference.what}: {'; '.join(by_value)}", most=600)
    out.say()
    table = several_arms(several)
    out.table(replace(table, rows=table.rows[:MOST_ROWS]))
    for sentence in words.not_compared(several):
        out.say(sentence, "yellow")
    if len(several.rows) > MOST_ROWS:
        out.say(f"{len(several.rows) - MOST_ROWS:,} more rows: --json has them all.")
