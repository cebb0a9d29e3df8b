"""`benchctl compare`: runs side by side, with gates for CI; `benchctl bisect`: the build that changed something."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchctl.cli.options import Accept, JsonForTables, OnlyArms, Results, of_run
from benchctl.errors import GateError, UsageError
from benchctl.reports.json_output import print_json
from benchctl.text import one_line

if TYPE_CHECKING:
    from benchctl.analysis.comparison.compare import RunComparison
    from benchctl.analysis.comparison.gates import Gate
    from benchctl.analysis.output_results import Accepted

Runs = Annotated[
    list[str] | None,
    of_run(metavar="A B …", help="Runs, recipes' names, or JSONL files."),
]
FailIf = Annotated[
    list[str] | None,
    typer.Option(
        metavar="GATE",
        help="slower:10%, slower-absolute:10%, acceptance:3%, ttft:20%, memory:5%, energy:10%, lossy; repeatable.",
    ),
]
JUnit = Annotated[Path | None, typer.Option(metavar="FILE", help="The gates as JUnit XML.", dir_okay=False)]
OnlyGates = Annotated[bool, typer.Option("--quiet", "-q", help="Print only gates that failed.")]


def compare(
    runs: Runs = None,
    results: Results = Path("results"),
    baseline: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of both runs.", show_default="each run's own")
    ] = None,
    arm: OnlyArms = None,
    fail_if: FailIf = None,
    accept: Accept = "exact",
    junit: JUnit = None,
    as_json: JsonForTables = False,
    quiet: OnlyGates = False,
) -> None:
    """Compare runs: what changed beyond noise? Gates for CI.

    Two runs of the same prompts, sampling and models are compared in full; --fail-if sets gates, which exit with 1 if
    they hold or are undetermined. A B A, with a second run of the first setting, counts what changes from run to run.
    Other or more runs are compared where they are comparable; the report lists what is not. `benchctl baseline check`
    compares a run with a small file that a repository keeps.
    """
    from benchctl.analysis.comparison.compare import compare_runs
    from benchctl.analysis.comparison.workload import OtherModelsError
    from benchctl.data.store import open_run, resolve_run
    from benchctl.lossless.judge.run import judge

    gates = parsed_gates(fail_if, accept, junit)
    if runs is None or len(runs) < 2:
        raise UsageError("Missing argument: name at least two runs, the earliest first.", where="benchctl compare")
    paths = [resolve_run(run, results) for run in runs]
    sides = _sides(paths)
    if sides is None:
        if gates or baseline:
            raise UsageError(
                "Gates and --baseline are for two settings of the same work: A B, or A B A with runs that repeat A or "
                "B and changed nothing else.",
                where="--fail-if, --baseline",
                fix="Compare each run with the first in a command of its own.",
            )
        _compare_several(paths, arms=arm, as_json=as_json, quiet=quiet)
        return
    try:
        (a, *more_a), (b, *more_b) = ([open_run(paths[index]) for index in side] for side in sides)
        names = [paths[side[0]].name for side in sides]
        comparison = compare_runs(
            a, b, judge=judge, baseline=baseline, arms=arm, names=names, more_a=more_a, more_b=more_b
        )
    except OtherModelsError:
        if gates or baseline:
            raise
        _compare_several(paths, arms=arm, as_json=as_json, quiet=quiet)
        return
    conclude(comparison, gates, accept, junit=junit, as_json=as_json, quiet=quiet)


def parsed_gates(fail_if: Sequence[str] | None, accept: Accepted, junit: Path | None) -> list[Gate]:
    """Return the gates of a command line. Raises UsageError."""
    from benchctl.analysis.comparison.gates import parse_gate

    gates = [parse_gate(text) for text in fail_if or ()]
    if accept != "exact" and not any(gate.word == "lossy" for gate in gates):
        raise UsageError("--accept is for the gate `lossy`.", where="--accept", fix="Add --fail-if lossy.")
    if junit and not gates:
        raise UsageError("There are no gates to write.", where="--junit", fix="Add --fail-if GATE.")
    return gates


def conclude(
    comparison: RunComparison,
    gates: Sequence[Gate],
    accept: Accepted,
    *,
    junit: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Check the gates and print. Raises GateError where a gate failed."""
    from benchctl.analysis.comparison.gates import check_gates
    from benchctl.reports.comparison import print_comparison, write_junit
    from benchctl.words import comparison as words

    checked = check_gates(gates, comparison, accept)
    if junit is not None:
        write_junit(junit, comparison, checked)
    if as_json:
        gated = {"gates": [words.gate_document(result) for result in checked]}
        print_json("compare", words.comparison_document(comparison) | gated, schema=2)
    elif not quiet:
        print_comparison(comparison, checked)
    if not all(result.passed for result in checked):
        lines = [one_line(line) for line in words.failed_gates(checked)]
        raise GateError("\n".join(lines), where=f"{comparison.a.run} and {comparison.b.run}")


def _sides(paths: Sequence[Path]) -> tuple[list[int], list[int]] | None:
    """Return which runs are A and which are B; `None` where there are more than two settings."""
    from benchctl.analysis.comparison.workload import two_sides
    from benchctl.data.store import MANIFEST, read_manifest

    if len(paths) == 2:
        return [0], [1]
    places = {path.resolve() for path in paths}
    if len(places) < len(paths) or not all((path / MANIFEST).is_file() for path in paths):
        return None
    return two_sides(map(read_manifest, paths))


def _compare_several(paths: Sequence[Path], *, arms: Sequence[str] | None, as_json: bool, quiet: bool) -> None:
    """Compare any number of runs, and print."""
    from benchctl.analysis.comparison.several import compare_several
    from benchctl.analysis.comparison.summary import summaries_of
    from benchctl.lossless.judge.run import judge
    from benchctl.reports.comparison import print_several
    from benchctl.words import comparison as words

    several = compare_several(summaries_of(paths, judge), arms)
    if as_json:
        print_json("compare", words.several_document(several), schema=2)
    elif not quiet:
        print_several(several)


def bisect(
    runs: Runs = None,
    results: Results = Path("results"),
    arm: OnlyArms = None,
    as_json: JsonForTables = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the sentences.")] = False,
) -> None:
    """Which build is the first that is slower or diverges?

    Of a run with builds as an axis, or of a run for each build, the oldest first.
    """
    from benchctl.analysis.comparison.several import by_build, compare_several, first_changes
    from benchctl.analysis.comparison.summary import summaries_of
    from benchctl.data.store import resolve_run
    from benchctl.lossless.judge.run import judge
    from benchctl.reports.comparison import print_several
    from benchctl.words import comparison as words

    measured = summaries_of([resolve_run(run, results) for run in runs or (None,)], judge)
    several = compare_several(by_build(measured[0]) if len(measured) == 1 else measured, arm)
    changes = first_changes(several)
    if as_json:
        document = words.several_document(several) | {"bisect": [change.model_dump() for change in changes]}
        print_json("compare", document, schema=2)
        return
    if not quiet:
        print_several(several)
    for sentence in words.first_changes(several, changes):
        typer.echo(one_line(sentence, 400))
