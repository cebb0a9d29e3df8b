"""`benchctl compare`: runs side by side, two of the same workload, or a run and a kept baseline, with gates for CI."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchctl.cli import complete
from benchctl.cli.json_output import json_text, print_json
from benchctl.cli.options import (
    Accept,
    Draft,
    EngineBinary,
    JsonForTables,
    ModelsDir,
    Results,
    Target,
    TrustRecipe,
)

if TYPE_CHECKING:
    from benchctl.analysis.comparison.gates import Gate
    from benchctl.analysis.comparison.results import RunComparison
    from benchctl.analysis.results import Accepted


def compare(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="A B …",
            help="Runs, recipes' names, or JSONL files; with --write and --against the latest by default.",
            autocompletion=complete.runs,
        ),
    ] = None,
    results: Results = Path("results"),
    baseline: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of both runs.", show_default="each run's own")
    ] = None,
    arm: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this arm; repeatable.", autocompletion=complete.arms)
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GATE",
            help="slower:3%, slower-absolute:3%, acceptance:3%, ttft:20%, memory:5%, energy:10%, lossy; repeatable.",
        ),
    ] = None,
    accept: Accept = "identical",
    out: Annotated[
        Path | None,
        typer.Option("--output", "-o", "--out", metavar="DIR", help="Write all of it there: .md, .csv, .json."),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep a run, or several of a setting, as a baseline.", dir_okay=False),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Compare with a kept baseline.", dir_okay=False),
    ] = None,
    replicate: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Measure this run's work here, and compare; [A]: a recipe or run of it.",
            autocompletion=complete.runs,
        ),
    ] = None,
    target: Target = None,
    draft: Draft = None,
    engine_binary: EngineBinary = None,
    models_dir: ModelsDir = None,
    trust_recipe: TrustRecipe = False,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="The gates as JUnit XML.", dir_okay=False)] = None,
    bisect: Annotated[
        bool,
        typer.Option(
            "--bisect",
            help="Name the first of several builds that is slower or diverges: a run with builds as an axis, "
            "or a run for each, the oldest first.",
        ),
    ] = False,
    as_json: JsonForTables = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only gates that failed.")] = False,
) -> None:
    """Compare runs: what changed beyond noise? Gates for CI.

    Two runs of the same prompts, sampling and models are compared in full; --fail-if sets gates, which exit with 1 if
    they hold or are undetermined. A B A, with a second run of the first setting, counts what changes from run to run.
    `RUN --write FILE` keeps a small baseline, `RUN --against FILE` compares with it (benchctl docs gates).
    `--replicate RUN` measures another's work here and says which of its claims agree (benchctl docs claims). Other or
    more runs are compared where they are comparable; the report lists what is not.
    """
    from benchctl.analysis.comparison.compare import compare_runs
    from benchctl.analysis.comparison.gates import parse_gate
    from benchctl.analysis.comparison.kept import against_kept, keep, read_kept, write_kept
    from benchctl.analysis.comparison.workload import OtherModelsError
    from benchctl.data.store import open_run, resolve_run
    from benchctl.errors import UsageError
    from benchctl.lossless.analysed import judge

    if bisect:
        if any((fail_if, baseline, out, write, against, junit, replicate)):
            raise UsageError("It takes runs and --arm alone.", where="--bisect", fix="Leave the other options out.")
        _bisect([resolve_run(run, results) for run in runs or (None,)], arms=arm, as_json=as_json, quiet=quiet)
        return
    if replicate is not None:
        from benchctl.cli import replicate as replication

        if len(runs or ()) > 1 or any((baseline, fail_if, out, write, against, junit)):
            raise UsageError(
                "--replicate takes at most one run or recipe beside it, and no gates.",
                where="--replicate",
                fix=f"benchctl compare --replicate {replicate} [RUN or RECIPE]",
            )
        here = replication.Here(
            results, target, draft, models_dir, engine_binary, trusted=trust_recipe, quiet=quiet or as_json
        )
        replication.replicate(replicate, runs[0] if runs else None, arm or (), here, as_json=as_json)
        return
    if target or draft or engine_binary or models_dir or trust_recipe:
        raise UsageError("These options say how a run is measured here.", where="-t, -d", fix="Add --replicate RUN.")
    gates = [parse_gate(text) for text in fail_if or ()]
    if accept != "identical" and not any(gate.word == "lossy" for gate in gates):
        raise UsageError("--accept is for the gate `lossy`.", where="--accept", fix="Add --fail-if lossy.")
    if (write or against) and (baseline or out or (write and (gates or arm or against or junit))):
        raise UsageError(
            "--write keeps whole runs and checks nothing; --against takes each run's own baseline, and no --out.",
            where="--write, --against",
            fix="First --write FILE, then --against FILE with gates.",
        )
    if junit and not gates:
        raise UsageError("There are no gates to write.", where="--junit", fix="Add --fail-if GATE.")
    if write or against:
        opened = [open_run(resolve_run(run, results)) for run in (runs or (None,))]
        if write:
            kept = keep(opened, judge)
            write_kept(kept, write)
            if as_json:
                print_json("compare --write", {"file": str(write), "baseline": kept.model_dump(mode="json")})
            else:
                typer.echo(f"Baseline: {write}")
            return
        assert against is not None
        found = against_kept(read_kept(against), opened, judge=judge, arms=arm, where=str(against))
        _conclude(found, gates, accept, junit=junit, as_json=as_json, quiet=quiet)
        return
    if runs is None or len(runs) < 2:
        raise UsageError("Missing argument: name at least two runs, the earliest first.", where="benchctl compare")
    paths = [resolve_run(run, results) for run in runs]
    sides = _sides(paths) if out is None else None
    if sides is None:
        if gates or baseline:
            raise UsageError(
                "Gates and --baseline are for two settings of the same work, without --output: A B, or A B A with runs "
                "that repeat A or B and changed nothing else.",
                where="--fail-if, --baseline",
                fix="Compare each run with the first in a command of its own.",
            )
        _compare_several(paths, arms=arm, out=out, as_json=as_json, quiet=quiet)
        return
    try:
        (a, *more_a), (b, *more_b) = ([open_run(paths[place]) for place in side] for side in sides)
        names = [paths[side[0]].name for side in sides]
        found = compare_runs(a, b, judge=judge, baseline=baseline, arms=arm, names=names, more_a=more_a, more_b=more_b)
    except OtherModelsError:
        if gates or baseline:
            raise
        _compare_several(paths, arms=arm, out=None, as_json=as_json, quiet=quiet)
        return
    _conclude(found, gates, accept, junit=junit, as_json=as_json, quiet=quiet)


def _conclude(
    found: RunComparison, gates: Sequence[Gate], accept: Accepted, *, junit: Path | None, as_json: bool, quiet: bool
) -> None:
    """Check the gates and print. Raises GateError where a gate failed."""
    from benchctl.analysis.comparison.gates import check_gates, gate_error
    from benchctl.reports.comparison import print_comparison, write_junit

    checked = check_gates(gates, found, accept)
    if junit is not None:
        write_junit(junit, found, checked)
    if as_json:
        print_json("compare", {**found.model_dump(), "gates": [result.as_dict() for result in checked]}, schema=2)
    elif not quiet:
        print_comparison(found, checked)
    if not all(result.passed for result in checked):
        raise gate_error(found, checked)


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


def _compare_several(
    paths: Sequence[Path], *, arms: Sequence[str] | None, out: Path | None, as_json: bool, quiet: bool
) -> None:
    """Compare any number of runs; write the report below `out`, and print."""
    from benchctl.analysis.comparison.several import compare_several
    from benchctl.analysis.comparison.summary import summaries_of
    from benchctl.lossless.analysed import judge
    from benchctl.reports.comparison import print_several, write_several
    from benchctl.text import one_line

    found = compare_several(summaries_of(paths, judge), arms)
    document = json_text("compare", found.model_dump(), schema=2)
    if out is not None:
        write_several(out, found, document)
    if as_json:
        typer.echo(document, nl=False)
    elif not quiet:
        print_several(found)
        if out is not None:
            typer.echo(f"Report: {one_line(str(out / 'compare.md'))}")


def _bisect(paths: Sequence[Path], *, arms: Sequence[str] | None, as_json: bool, quiet: bool) -> None:
    """Print which build is the first that changed."""
    from benchctl.analysis.comparison.several import by_build, compare_several, first_changes, sentences
    from benchctl.analysis.comparison.summary import summaries_of
    from benchctl.lossless.analysed import judge
    from benchctl.reports.comparison import print_several
    from benchctl.text import one_line

    runs = summaries_of(paths, judge)
    found = compare_several(by_build(runs[0]) if len(runs) == 1 else runs, arms)
    changes = first_changes(found)
    if as_json:
        print_json("compare", {**found.model_dump(), "bisect": [change.model_dump() for change in changes]}, schema=2)
        return
    if not quiet:
        print_several(found)
    for sentence in sentences(found, changes):
        typer.echo(one_line(sentence, 400))
