"""`benchctl runs history`, `site` and `import`: read the options, call a function, print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchctl.cli.options import JsonForTables, JsonForText, OnlyArms, Results

if TYPE_CHECKING:
    from benchctl.analysis.comparison.replication import ImportedArm, Range
    from benchctl.experiments.history.claims import Imported
    from benchctl.experiments.history.series import History

MOST_ROWS = 40
"""Rows of the table in a terminal, the latest ones; --json has all."""
MOST_LISTED = 4
"""Of runs that were left out, and of other workloads."""


def history(
    results: Results = Path("results"),
    recipe: Annotated[str | None, typer.Option(metavar="NAME", help="Only runs of this recipe.")] = None,
    arm: OnlyArms = None,
    workload: Annotated[
        str | None,
        typer.Option(
            metavar="DIGEST", help="The workload, by how its digest begins.", show_default="that of the latest run"
        ),
    ] = None,
    as_json: JsonForTables = False,
) -> None:
    """Show a workload over engine builds and dates, and with which build its speed-up changed.

    Runs of equal prompts, sampling and models are found at any depth of the folder. A step is told where it lies beyond
    the noise between runs, which builds that were measured again show; then also with which build it began.
    """
    from benchctl.errors import UsageError
    from benchctl.experiments.history.series import find_history, read_summaries
    from benchctl.reports.json_output import print_json

    runs, unreadable = read_summaries(results)
    if not runs:
        raise UsageError("There is no run here.", where=str(results), fix="Make it: benchctl run RECIPE")
    found = find_history(runs, workload=workload, recipe=recipe, arms=arm or (), unreadable=unreadable)
    if as_json:
        print_json("runs history", found.model_dump())
    else:
        _print(found)


def _print(found: History) -> None:
    from benchctl.experiments.history.site import COLUMNS, sentences
    from benchctl.reports.columns import Table
    from benchctl.reports.terminal import Printout
    from benchctl.text import plural

    out = Printout()
    builds = len({row.build for row in found.rows})
    title = f"{found.recipe}, workload {found.workload[:12] or 'not recorded'}: "
    out.say(f"{title}{found.runs} {plural(found.runs, 'run')} of {builds} {plural(builds, 'build')}", "bold")
    out.table(Table("history", "History", COLUMNS, found.rows[-MOST_ROWS:]))
    if len(found.rows) > MOST_ROWS:
        out.say(f"{len(found.rows) - MOST_ROWS} earlier rows: --json has all.", "dim")
    out.say()
    for sentence, style in sentences(found.series):
        out.say(sentence, style, whole=True)
    left_out = [f"{run}: {why}" for run, why in found.unreadable.items()]
    others = [
        f"{other.recipe}, {other.runs} {plural(other.runs, 'run')} (--workload {other.workload[:12]})"
        for other in found.others
    ]
    for what, style, lines in (("Left out, ", "yellow", left_out), ("Also here: ", "dim", others)):
        for line in lines[:MOST_LISTED]:
            out.say(f"{what}{line}", style, whole=True)
        if len(lines) > MOST_LISTED:
            out.say(f"{what}{len(lines) - MOST_LISTED} more; --json has all.", style)


def site(
    results: Annotated[Path, typer.Argument(help="The folder of runs.", metavar="[RESULTS]")] = Path("results"),
    out: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Where the site is written.", file_okay=False)
    ] = Path("public"),
    figures: Annotated[bool, typer.Option(help="Draw the figures of every run's page: seconds a run.")] = False,
    as_json: JsonForText = False,
) -> None:
    """Write a static site of all runs: an index to sort and search, curves over time, every run's report.

    It needs no server and no network. Called again, it makes the pages of new and changed runs alone.
    """
    from benchctl.experiments.history.site import write_site
    from benchctl.reports.json_output import print_json
    from benchctl.text import one_line, plural

    index, made, failed = write_site(results, out, figures=figures)
    if as_json:
        print_json("runs site", {"index": str(index), "made": made, "failed": failed})
        return
    for run, why in list(failed.items())[:MOST_LISTED]:
        typer.echo(one_line(f"Left out, {run}: {why}", 300), err=True)
    typer.echo(one_line(f"{made} {plural(made, 'page')} made. Site: {index}"))


def import_claims(
    files: Annotated[
        list[str], typer.Argument(metavar="[ARM=]FILE…", help="Files of a program; the baseline as baseline=FILE.")
    ],
    out: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Where the records are written.", file_okay=False)
    ] = Path("imported"),
    as_json: JsonForTables = False,
) -> None:
    """Read what another program measured, and say what can be concluded from it, and what cannot.

    Reads logs of llama-server, speed_bench.py --output, vllm bench serve --save-result --save-detailed,
    sglang.bench_serving --output-details, aiperf's profile_export.jsonl and guidellm's benchmarks.json. Their requests
    are written as records, a file an arm, for benchctl report DIR.
    """
    import re

    from benchctl.errors import UsageError
    from benchctl.experiments.history.claims import conclude, read_claim, write_records
    from benchctl.reports.json_output import print_json

    claims = {}
    for word in files:
        name, is_named, path = word.partition("=")
        if not is_named or Path(word).is_file():
            name, path = re.sub(r"[^A-Za-z0-9_.-]", "_", Path(word).stem).lstrip(".") or "arm", word
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name) or name in claims:
            what = "Two files are of the same arm." if name in claims else "This is no name of an arm."
            raise UsageError(what, where=word, fix="Name each arm once, in letters and digits: spec_d4=FILE.")
        claims[name] = read_claim(Path(path))
    found = conclude(claims)
    found = found.model_copy(update={"files": [str(path) for path in write_records(claims, out)]})
    if as_json:
        print_json("runs import", found.model_dump())
    else:
        _print_imported(found, out)


def _print_imported(found: Imported, out: Path) -> None:
    from benchctl.reports import numbers
    from benchctl.reports.columns import Column, Name, Table, numeric
    from benchctl.reports.terminal import Printout

    def limits(value: Range | None, unit: str = "") -> str:
        if value is None:
            return numbers.ABSENT
        high = f"{value.high:.2f}{unit}"
        low = None if value.low is None else f"{value.low:.2f}"
        return f"at most {high}" if low is None else high if f"{low}{unit}" == high else f"{low} to {high}"

    columns: tuple[Column[ImportedArm], ...] = (
        Column("arm", "arm", Name, heads=True),
        Column("program", "program"),
        numeric("requests", "requests"),
        numeric("failed", "failed"),
        numeric("tokens", "tokens"),
        Column("tok/s", "rate", limits, align="right"),
        numeric("accepted", "acceptance", numbers.percent),
        numeric("accept. length", "acceptance_length", numbers.decimal),
        Column("decode speed-up", "speedup", cell=lambda arm: limits(arm.speedup, "×"), align="right"),
        numeric("whole answers", "whole", numbers.ratio),
        numeric("of pairs", "pairs"),
    )
    printed = Printout()
    printed.table(Table("imported", "Imported", columns, found.arms))
    for title, sentences in (
        ("Can be concluded:", found.known or ["Nothing."]),
        ("Cannot be concluded:", found.lacking),
        ("Note:", found.notes),
    ):
        if sentences:
            printed.say(title, "bold")
        for sentence in sentences:
            printed.say(f"- {sentence}", whole=True)
    if found.files:
        printed.say(f"Records: {len(found.files)} in {out}", whole=True)
