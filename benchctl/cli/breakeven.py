"""`benchctl breakeven`: the acceptance that each draft depth needs on this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
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
    from benchctl.measurement.prepare import Prepared, RecipeContext
    from benchctl.recipes.schema import Recipe


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
        Path | None, typer.Option(metavar="FILE", help="Acceptance lengths to show as points: golden YAML.")
    ] = None,
    write_reference: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the real drafts' there.")] = None,
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
    given probability (llama-server, vLLM; SGLang to a given length, never run). Their text is not a model's output and
    is marked so everywhere. Where the curve crosses 1, a depth breaks even. Of a run of this command it is printed
    again, without an engine. Of a target alone: what verifying 1, 2, 3, … tokens at once costs, and where that jumps.
    """
    from benchctl.data.store import MANIFEST, open_run, resolve_run
    from benchctl.experiments.explain.references import read_references
    from benchctl.experiments.explain.synthetic import drafted_arms
    from benchctl.measurement.requested import requested_recipe
    from benchctl.recipes.from_options import RecipeOptions
    from benchctl.recipes.source import names_a_model
    from benchctl.recipes.speculation import MAX_DEPTH

    results, reports = out / "results", out / "reports"
    references = [] if reference is None else read_references(reference)
    depths = [] if depth is None else options.read_depths(depth, MAX_DEPTH)
    words, silent = subject or [], quiet or as_json
    recorded = len(words) == 1 and not names_a_model(words[0])
    if recorded and ((Path(words[0]) / MANIFEST).is_file() or (results / words[0]).is_dir()):
        folder = resolve_run(words[0], results)
    else:
        levels = _levels(acceptance)
        makes_arms = (target and (draft or types)) or len(words) > 1
        own_depth = depth if makes_arms else None
        named = RecipeOptions(subject, target, draft, engine, types, own_depth, sweep, prompts, limit, settings)
        context = requested_recipe(named, results, trust=trust_recipe)
        if context.recipe.models.draft is None and not drafted_arms(context.recipe):
            prepare = partial(context.prepare, engine_binary, models_dir)
            _alone(context.recipe, prepare, depths, as_json=as_json, quiet=silent)
            return
        folder = _measure(context, depths, levels, blocks, results, engine_binary, models_dir, quiet=silent)
    _show(open_run(folder), references, write_reference, reports, as_json=as_json, quiet=quiet)


def _measure(
    context: RecipeContext,
    depths: list[int],
    levels: list[float],
    blocks: str | None,
    results: Path,
    engine_binary: str | None,
    models_dir: Path | None,
    *,
    quiet: bool,
) -> Path:
    """Measure the recipe with its synthetic arms, at the depths that were named where it is a file's."""
    from rich.console import Console

    from benchctl.experiments.explain.synthetic import no_synthetic, with_synthetic_arms
    from benchctl.measurement.plan import with_blocks
    from benchctl.measurement.prepare import probed_engine
    from benchctl.measurement.progress import progress_for
    from benchctl.measurement.run import signals_interrupt, start_run

    extended = with_synthetic_arms(context.recipe, depths, levels)
    if blocks:
        extended = with_blocks(extended, blocks)
    progress = progress_for(Console(stderr=True), quiet=quiet)
    with signals_interrupt():
        _, capabilities = probed_engine(
            context.recipe, context.folder, engine_binary, trusted=context.trusted, typed=context.typed
        )
        if capabilities.details.get("has_synthetic") is False:
            raise no_synthetic(capabilities.kind, str(capabilities.binary))
        # The recipe was permitted. benchctl itself adds the synthetic arms, so they need no permission.
        permitted = replace(context, typed=context.typed | {"arms"})
        prepared = permitted.prepare(engine_binary, models_dir, progress.note, extended)
    return start_run(prepared, results, progress, ["benchctl", *sys.argv[1:]])


def _alone(recipe: Recipe, prepare: Callable[..., Prepared], depths: list[int], *, as_json: bool, quiet: bool) -> None:
    """Measure and print what the target alone takes to verify, by the number of tokens."""
    from benchctl.experiments.explain.synthetic import must_be_one_condition
    from benchctl.experiments.explain.widths import DEEPEST, measure_widths, with_free_drafts
    from benchctl.measurement.progress import shown_steps
    from benchctl.measurement.run import signals_interrupt
    from benchctl.reports.tables.rounds import unit_costs
    from benchctl.reports.terminal import Printout

    must_be_one_condition(recipe)
    depths = depths or list(range(1, DEEPEST + 1))
    with shown_steps(quiet=quiet) as show, signals_interrupt():
        prepared = prepare(notice=lambda text: show(text, 0, 0), recipe=with_free_drafts(recipe, max(depths)))
        measured = measure_widths(prepared, depths, show)
    if as_json:
        document = {
            "engine": measured.engine,
            "command": list(measured.command),
            "widths": [unit.model_dump() for unit in measured.curve],
            "spread": measured.spread,
            "said": measured.statements,
        }
        print_json("verify-widths", document)
    elif not quiet:
        out = Printout()
        out.table(unit_costs(measured.curve))
        for sentence in measured.statements:
            out.say(f"- {sentence}")


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
    if curve is None:
        raise UsageError(
            "This run has no synthetic arms.",
            where=str(run.folder),
            fix="Measure it from a recipe: benchctl breakeven recipe.yaml",
        )
    analysis = analysis.model_copy(update={"breakeven": curve})
    if write_to is not None:
        write_references(write_to, acceptance_lengths(run, analysis), measured_with(run, analysis))
    files = write_report(run, analysis, report_folder(analysis, reports))
    if as_json:
        document = curve.model_dump()
        fill_breakeven(document, curve)
        print_json("breakeven", {"run": str(run.folder), "page": str(files.page), **document})
    elif not quiet:
        _print(curve, files.page)


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
