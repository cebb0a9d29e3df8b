"""`benchctl breakeven`: the acceptance that each draft depth needs on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchctl.cli import options
from benchctl.errors import UsageError
from benchctl.reports.json_output import print_json

if TYPE_CHECKING:
    from benchctl.analysis.breakeven import Reference
    from benchctl.analysis.round_results import BreakEven
    from benchctl.data.store import RunData
    from benchctl.measurement.widths import Widths


def breakeven(
    subject: options.Words = None,
    target: options.Target = None,
    draft: options.Draft = None,
    engine: options.Kind = None,
    types: options.Types = None,
    depth: options.Depth = None,
    sweep: options.Sweep = None,
    prompts: options.Prompts = None,
    limit: options.Limit = None,
    settings: options.Settings = None,
    acceptance: Annotated[
        str, typer.Option(metavar="A1,A2", help="Acceptance of a draft token, 0 to 1.")
    ] = "0,0.5,0.8,1",
    reference: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Show acceptance lengths as points: a YAML file in the format of InferenceX."
        ),
    ] = None,
    write_reference: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the acceptance lengths of the real drafts to FILE.")
    ] = None,
    blocks: options.Blocks = None,
    out: options.Out = Path(),
    engine_binary: options.EngineBinary = None,
    models_dir: options.ModelsDir = None,
    trust_recipe: options.TrustRecipe = False,
    quiet: options.Quiet = False,
    as_json: options.JsonAtEnd = False,
) -> None:
    """Measure the acceptance that each depth needs.

    Beside a recipe's own arms, synthetic ones are measured: the engine accepts their draft tokens at random with a
    given probability (SGLang: a fixed accepted length; untested). Their text is not a model's output and is marked so.
    Where the curve crosses 1, a depth breaks even. Given an earlier breakeven run, print its curve again; no engine
    starts. Given only a target, measure what verifying 1, 2, 3 … tokens costs.
    """
    from rich.console import Console

    from benchctl.data.store import MANIFEST, open_run, resolve_run
    from benchctl.experiments.explain.references import read_references
    from benchctl.experiments.explain.session import drafted_arms, measure_synthetic, measure_target_alone
    from benchctl.measurement.progress import RunProgress
    from benchctl.measurement.requested import requested_recipe
    from benchctl.recipes.from_options import RecipeOptions
    from benchctl.recipes.source import names_a_model
    from benchctl.recipes.speculation import MAX_DEPTH

    results, reports = out / "results", out / "reports"
    references = [] if reference is None else read_references(reference)
    depths = [] if depth is None else options.read_depths(depth, MAX_DEPTH)
    arguments, silent = subject or [], quiet or as_json
    may_be_a_run = len(arguments) == 1 and not names_a_model(arguments[0])
    if may_be_a_run and ((Path(arguments[0]) / MANIFEST).is_file() or (results / arguments[0]).is_dir()):
        folder = resolve_run(arguments[0], results)
    else:
        levels = _levels(acceptance)
        makes_arms = (target and (draft or types)) or len(arguments) > 1
        arm_depth = depth if makes_arms else None
        recipe_options = RecipeOptions(
            subject, target, draft, engine, types, arm_depth, sweep, prompts, limit, settings
        )
        context = requested_recipe(recipe_options, results, trust=trust_recipe)
        if context.recipe.models.draft is None and not drafted_arms(context.recipe):
            widths = measure_target_alone(context, depths, binary=engine_binary, models_dir=models_dir, quiet=silent)
            _print_widths(widths, reports / f"{context.recipe.name}-widths", as_json=as_json, quiet=quiet)
            return
        folder = measure_synthetic(
            context,
            depths,
            levels,
            blocks,
            results,
            RunProgress(Console(stderr=True, quiet=silent)),
            ["benchctl", *sys.argv[1:]],
            binary=engine_binary,
            models_dir=models_dir,
        )
    _show(open_run(folder), references, write_reference, reports, as_json=as_json, quiet=quiet)


def _print_widths(widths: Widths, folder: Path, *, as_json: bool, quiet: bool) -> None:
    from benchctl.reports.figures.draw import width_figure
    from benchctl.reports.tables.rounds import unit_costs
    from benchctl.reports.terminal import Printout
    from benchctl.writing import write_whole

    if as_json:
        document = {
            "engine": widths.engine,
            "command": list(widths.command),
            "widths": [unit.model_dump() for unit in widths.curve],
            "spread": widths.spread,
            "said": widths.statements,
        }
        print_json("verify-widths", document)
        return
    figure = width_figure(widths.curve) if widths.steady else None
    files = {} if figure is None else {folder / "widths.svg": figure.svg.encode(), folder / "widths.png": figure.png}
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
    if not quiet:
        out = Printout()
        out.table(unit_costs(widths.curve))
        for sentence in widths.statements:
            out.say(f"- {sentence}")
        if files:
            out.say(f"Figure: {folder / 'widths.svg'}", whole=True)


def _show(
    run: RunData, references: list[Reference], write_to: Path | None, reports: Path, *, as_json: bool, quiet: bool
) -> None:
    from benchctl.analysis.breakeven import find_breakeven, is_recurrent, measured_arms
    from benchctl.experiments.explain.references import acceptance_lengths, measured_with, write_references
    from benchctl.lossless.judge.run import analyse_run
    from benchctl.reports.write import report_folder, write_report
    from benchctl.words.document import fill_breakeven

    analysis = analyse_run(run)
    curve = find_breakeven(measured_arms(analysis, run.manifest), references, recurrent=is_recurrent(run.manifest))
    if curve is None and not (references or write_to):
        raise UsageError(
            "This run has no synthetic arms.",
            where=str(run.folder),
            fix="From a recipe: benchctl breakeven recipe.yaml. Its acceptance lengths: --write-reference FILE",
        )
    lengths = acceptance_lengths(run, analysis)
    if write_to is not None:
        write_references(write_to, lengths, measured_with(run, analysis))
    if curve is None:
        _show_lengths(run, lengths, references, as_json=as_json, quiet=quiet)
        return
    analysis = analysis.model_copy(update={"breakeven": curve})
    files = write_report(run, analysis, report_folder(analysis, reports))
    if as_json:
        document = curve.model_dump()
        fill_breakeven(document, curve)
        print_json("breakeven", {"run": str(run.folder), "page": str(files.page), **document})
    elif not quiet:
        _print(curve, files.page)


def _show_lengths(
    run: RunData, measured: list[Reference], published: list[Reference], *, as_json: bool, quiet: bool
) -> None:
    from benchctl.reports.tables.breakeven import lengths_table
    from benchctl.reports.terminal import Printout

    if as_json:
        measured_rows, published_rows = ([row.model_dump() for row in rows] for rows in (measured, published))
        print_json("breakeven", {"run": str(run.folder), "measured": measured_rows, "reference": published_rows})
    elif not quiet:
        Printout().table(lengths_table(measured, published), titled=True)


def _print(curve: BreakEven, page: Path) -> None:
    from benchctl.reports.tables.breakeven import NOT_AN_OUTPUT, needs_table, points_table
    from benchctl.reports.terminal import Printout
    from benchctl.words.breakeven import statements

    out = Printout()
    for table in (points_table(curve), needs_table(curve)):
        out.say()
        out.table(table, titled=True)
    out.say()
    for sentence in statements(curve):
        out.say(f"- {sentence}")
    out.say(NOT_AN_OUTPUT, "yellow")
    out.say(f"Report: {page}", whole=True)


def _levels(text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        message = "Expected numbers with commas between them."
        raise UsageError(message, where="--acceptance", fix="Write 0,0.5,0.8,1.") from None
