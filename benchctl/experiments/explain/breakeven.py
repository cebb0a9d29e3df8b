"""`benchctl explain --measure`: the acceptance that each draft depth needs on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchctl.cli import options
from benchctl.errors import UsageError
from benchctl.reports.json_output import print_json

if TYPE_CHECKING:
    from benchctl.data.store import RunData
    from benchctl.experiments.explain.curve import BreakEven, Reference


def breakeven(
    work: options.Work = options.NOTHING_NAMED,
    acceptance: Annotated[
        str, typer.Option(metavar="A1,A2", help="Acceptance of a draft token, 0 to 1.")
    ] = "0,0.5,0.8,1",
    reference: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Acceptance lengths to show as points: golden YAML.")
    ] = None,
    write_reference: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the real drafts' there.")] = None,
    blocks: options.Blocks = None,
    out: options.Out = Path(),
    here: options.Here = options.AS_FOUND,
    quiet: options.Quiet = False,
    as_json: options.JsonAtEnd = False,
) -> None:
    """Measure the acceptance that each depth needs here; starts engines.

    Beside a recipe's own arms, synthetic ones are measured: the engine accepts their draft tokens at random with a
    given probability (llama-server, vLLM; SGLang to a given length, never run). Their text is not a model's output and
    is marked so everywhere. Where the curve crosses 1, a depth breaks even. Of a run of this command it is printed
    again, without an engine.
    """
    from benchctl.data.store import MANIFEST, open_run, resolve_run
    from benchctl.experiments.explain.references import read_references

    results, reports = out / "results", out / "reports"
    references = [] if reference is None else read_references(reference)
    words = work.subject or []
    if len(words) == 1 and ((Path(words[0]) / MANIFEST).is_file() or (results / words[0]).is_dir()):
        folder = resolve_run(words[0], results)
    else:
        levels = _numbers(acceptance, "--acceptance")
        folder = _measure(work, here, levels, blocks, results, quiet=quiet or as_json)
    _show(open_run(folder), references, write_reference, reports, as_json=as_json, quiet=quiet)


def _measure(
    work: options.Work, here: options.Here, levels: list[float], blocks: str | None, results: Path, *, quiet: bool
) -> Path:
    """Measure the recipe with its synthetic arms, at the depths that were named where it is a file's."""
    import sys
    from dataclasses import replace

    from rich.console import Console

    from benchctl.experiments.explain.curve import with_synthetic_arms
    from benchctl.measure.plan import with_blocks
    from benchctl.measure.prepare import probed_engine
    from benchctl.measure.progress import progress_for
    from benchctl.measure.run import signals_interrupt, start_run
    from benchctl.recipes.speculation import MAX_DEPTH

    depths = [] if work.depth is None else options.read_depths(work.depth, MAX_DEPTH)
    makes_a_recipe = work.target is not None or len(work.subject or ()) > 1
    standing = (work if makes_a_recipe else replace(work, depth=None)).standing(results, here)
    extended = with_synthetic_arms(standing.recipe, depths, levels)
    if blocks:
        extended = with_blocks(extended, blocks)
    progress = progress_for(Console(stderr=True), quiet=quiet)
    with signals_interrupt():
        _, found, _ = probed_engine(standing.recipe, standing.folder, here.engine_binary, trusted=standing.trusted)
        if found.details.get("has_synthetic") is False:
            raise UsageError(
                f"This {found.kind} has no synthetic acceptance, so the curve cannot be measured.",
                where=str(found.binary),
                fix="Use a newer build; or predict it from numbers: benchctl explain --predict --alpha 0.8 --cost 0.1",
            )
        prepared = standing.prepare(here.engine_binary, here.models_dir, progress.note, extended)
    return start_run(prepared, results, progress, ["benchctl", *sys.argv[1:]])


def _show(
    run: RunData, references: list[Reference], write_to: Path | None, reports: Path, *, as_json: bool, quiet: bool
) -> None:
    from benchctl.experiments.explain.curve import find_breakeven, is_recurrent, measured_arms
    from benchctl.experiments.explain.references import write_references
    from benchctl.experiments.explain.section import acceptance_lengths, measured_with
    from benchctl.lossless.analysed import analyse_run
    from benchctl.reports.write import report_folder, write_report

    analysis = analyse_run(run)
    found = find_breakeven(measured_arms(analysis, run.manifest), references, recurrent=is_recurrent(run.manifest))
    if found is None:
        raise UsageError(
            "This run has no synthetic arms.",
            where=str(run.folder),
            fix="Measure it from a recipe: benchctl explain --measure recipe.yaml",
        )
    analysis = analysis.model_copy(update={"breakeven": found.model_dump()})
    if write_to is not None:
        write_references(write_to, acceptance_lengths(run, analysis), measured_with(run, analysis))
    files = write_report(run, analysis, report_folder(analysis, reports))
    if as_json:
        document = {"run": str(run.folder), "page": str(files.page), **found.model_dump()}
        print_json("breakeven", document)
    elif not quiet:
        _print(found, files.page)


def _print(found: BreakEven, page: Path) -> None:
    from benchctl.experiments.explain.section import NOT_AN_OUTPUT, needs_table, points_table, statements
    from benchctl.reports.terminal import Printout

    out = Printout()
    for table in (points_table(found), needs_table(found)):
        out.say()
        out.say(table.title, "bold")
        out.table(table)
    out.say()
    for sentence in statements(found):
        out.say(f"- {sentence}")
    out.say(NOT_AN_OUTPUT, "yellow")
    out.say(f"Report: {page}", whole=True)


def _numbers(text: str, option: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise UsageError("Expected numbers with commas between them.", where=option, fix="Write 0,0.5,0.8,1.") from None
