"""`benchctl run`: measure a recipe, or models named on the command line, and print the summary."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchctl.cli import complete, options
from benchctl.errors import BenchctlError, EngineError, UsageError
from benchctl.reports.json_output import print_json

if TYPE_CHECKING:
    from benchctl.measurement.prepare import Prepared
    from benchctl.measurement.runner import Nodes
    from benchctl.recipes.schema import Recipe


LONG_S = 1800.0
"""A run that is expected to take longer has to be confirmed on a terminal."""
MANY_CELLS = 500
"""A run of more cells has to be confirmed: a list too many in a matrix multiplies them."""


def run(
    subject: options.Words = None,
    target: options.Target = None,
    draft: options.Draft = None,
    engine: options.Kind = None,
    types: options.Types = None,
    depth: options.Depth = None,
    sweep: options.Sweep = None,
    prompts: options.Prompts = None,
    limit: options.Limit = None,
    skip_bad: options.SkipBad = False,
    settings: options.Settings = None,
    out: options.Out = Path("results"),
    resume: Annotated[
        str | None, typer.Option(metavar="RUN", help="Finish this run.", autocompletion=complete.runs)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands; start nothing.")] = False,
    only: Annotated[list[str] | None, options.of_arm(help="Only this arm and the baseline; repeatable.")] = None,
    url: Annotated[str | None, options.of_models(metavar="URL", help="A server without speculation.")] = None,
    arm_url: Annotated[
        str | None, options.of_models(metavar="URL", help="With --url: a server with --type, --depth.")
    ] = None,
    keep: options.Keep = None,
    blocks: options.Blocks = None,
    budget: options.Budget = None,
    engine_binary: options.EngineBinary = None,
    models_dir: options.ModelsDir = None,
    trust_recipe: options.TrustRecipe = False,
    on: Annotated[str | None, options.rare(metavar="CLUSTER", help="A Ray cluster: ray, or ray://HOST:PORT.")] = None,
    yes: Annotated[bool, options.rare("--yes", "-y", help="Start a long run without a question.")] = False,
    stop_at_failure: Annotated[
        bool, options.rare("--stop-at-failure", "-x", help="End the run at the first failure.")
    ] = False,
    install: Annotated[bool, options.rare("--install", help="Install what is missing.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print every answer and warning.")] = False,
    quiet: options.Quiet = False,
    as_json: options.JsonAtEnd = False,
) -> None:
    """Measure a recipe, or models: does speculation pay?

    Without a recipe, name the models: benchctl run target.gguf draft.gguf --depth 2,4,8; or paste an engine's line:
    benchctl run -- llama-server -m target.gguf. Ctrl-C ends a run cleanly; --resume RUN finishes it.
    """
    from rich.console import Console

    from benchctl.cli.show_engine_line import show_engine_line
    from benchctl.data.store import open_run, resolve_run
    from benchctl.measurement.budget import DEFAULT_S, with_budget, within_budget
    from benchctl.measurement.plan import keep_matching, keep_only, with_blocks, with_second_baseline
    from benchctl.measurement.prepare import RecipeContext
    from benchctl.measurement.progress import RunProgress
    from benchctl.measurement.requested import requested_recipe
    from benchctl.measurement.resume import prepare_again, recipe_of, resume_run
    from benchctl.measurement.run import signals_interrupt, start_run
    from benchctl.recipes.engine_line import read_engine_line
    from benchctl.recipes.from_options import RecipeOptions
    from benchctl.recipes.trust import ALL_KEYS
    from benchctl.text import listed

    named = RecipeOptions(subject, target, draft, engine, types, depth, sweep, prompts, limit, settings, skip_bad)
    if [bool(subject or target), resume is not None, url is not None].count(True) != 1 or (arm_url and not url):
        raise UsageError(
            "Name a recipe, a target, two servers, or a run to resume.",
            fix="benchctl run RECIPE, benchctl run TARGET DRAFT, benchctl run --url URL --arm-url URL, or "
            "benchctl run -- ENGINE'S LINE, or benchctl run --resume RUN",
        )
    if dry_run and (verbose or stop_at_failure or install):
        raise UsageError("These options have no effect on a dry run.", where="-v, -x, --install")
    if verbose and (quiet or as_json):
        raise UsageError(
            "--verbose prints a line for every answer; --quiet and --json print none.", where="-v, -q, --json"
        )
    if budget and blocks not in (None, "auto"):
        raise UsageError("A number of blocks leaves no choice to a budget.", where="--budget, --blocks")
    if resume is not None and (only or blocks or budget or keep or named != RecipeOptions()):
        raise UsageError(
            "A resumed run keeps its arms, blocks, prompts and settings.",
            where="--resume",
            fix="Leave out everything but where engine and models lie.",
        )

    if not (quiet or as_json) and (line := read_engine_line(subject or ())) is not None:
        show_engine_line(line)
    progress = RunProgress(Console(stderr=True, quiet=quiet or as_json), verbose=verbose)
    earlier = open_run(resolve_run(resume, out), as_stored=True) if resume is not None else None
    context = (
        requested_recipe(named, out, trust=trust_recipe, url=url, arm_url=arm_url)
        if earlier is None
        else RecipeContext(recipe_of(earlier), earlier.folder, trust_recipe)
    )
    planned = keep_matching(context.recipe, keep or [])
    if depth and not any(arm.speculation and arm.speculation.max for arm in planned.arms):
        progress.note(
            "warning: --depth is not for lookups: they copy as far as a text repeats. -L max=8 limits a copy."
        )
    if only:
        planned = keep_only(planned, only)
    arms_are_named = bool(types or depth or sweep) or context.typed != ALL_KEYS
    arms_are_named |= len(planned.arms) < len(context.recipe.arms)  # by --only or -k
    if blocks:
        planned = with_blocks(planned, blocks)
    budget_s = options.read_budget(budget) if budget else None
    if budget_s is None and earlier is None and blocks is None and (context.typed == ALL_KEYS):
        budget_s = DEFAULT_S
    if budget_s is not None:
        planned = with_budget(planned, budget_s)
    if earlier is None:
        planned = with_second_baseline(planned)
        if not (dry_run or yes):
            _confirm(planned)

    def prepared_now() -> Prepared:
        progress.waiting("checking the engine, the models and the prompts")
        if earlier is None:
            ready = context.prepare(engine_binary, models_dir, progress.note, planned, quantizes=not dry_run)
            if budget_s is None or limit is not None:
                return ready
            waiting = None if dry_run else progress.waiting
            smaller = within_budget(ready, out, budget_s, drops_arms=not arms_are_named, waiting=waiting)
            if dropped := [arm.name for arm in ready.recipe.arms if arm.name not in smaller.launches]:
                progress.note(
                    f"The budget has no time for {listed(dropped)}. Give it more, or name the depths: --depth."
                )
            return smaller
        return prepare_again(
            earlier, binary=engine_binary, models_dir=models_dir, notice=progress.note, trusted=context.trusted
        )

    with signals_interrupt():  # a download or a quantization also ends cleanly
        try:
            prepared = _with_what_is_missing(prepared_now, progress.end, install=install, as_json=as_json)
        finally:
            progress.end()
    if dry_run:
        from benchctl.cli.show_plan import show_plan

        show_plan(prepared, earlier, out, as_json=as_json)
        return
    if earlier is None and not yes:
        _confirm_time(prepared, out, progress.note)
    with _machines(on, models_dir, engine_binary) as cluster:
        if earlier is not None:
            from benchctl.experiments.tune.halving import Halving

            where = resume_run(prepared, earlier, progress, stop_at_failure=stop_at_failure, on=cluster, search=Halving)
        else:
            command = ["benchctl", *sys.argv[1:]]
            where = start_run(prepared, out, progress, command, stop_at_failure=stop_at_failure, on=cluster)
    _show_run(where, as_json=as_json, quiet=quiet, verbose=verbose)


def _machines(
    on: str | None, models_dir: Path | None, engine_binary: str | None
) -> AbstractContextManager[Nodes | None]:
    """Return the machines of a cluster as a context, or nothing for this machine."""
    if on is None:
        return nullcontext()
    from benchctl.experiments.cluster.on_ray import connected

    return connected(on, models_dir=models_dir, binary=engine_binary)


def _confirm(recipe: Recipe) -> None:
    """Ask for confirmation of very many cells. Raises UsageError without a terminal, or where it is refused."""
    cells = len(recipe.arms) * recipe.first_blocks
    if cells <= MANY_CELLS:
        return
    message = f"This is {cells:,} cells: {len(recipe.arms):,} arms in {recipe.first_blocks} blocks, an engine each."
    if not sys.stdin.isatty() or not sys.stderr.isatty():
        raise UsageError(message, fix="Confirm it with --yes; --dry-run shows the plan.")
    if not typer.confirm(f"{message} Start?", err=True):
        raise UsageError("Nothing was started.", fix="Leave out values of `matrix`, or measure a part: -k PATTERN.")


def _confirm_time(prepared: Prepared, results: Path, note: Callable[[str], None]) -> None:
    """Ask on a terminal whether a run that is expected to take long should start. Raises UsageError."""
    from benchctl.cli.show_plan import too_short
    from benchctl.measurement.estimate import size_of, timings_for
    from benchctl.measurement.plan import make_plan

    plan = make_plan(prepared.recipe, prepared.prompts)
    size = size_of(prepared, plan, timings_for(prepared, None, results))
    if short := too_short(prepared.recipe, size):
        note(short)
    if size.seconds is None or size.seconds <= LONG_S or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    if not typer.confirm(f"The first {prepared.recipe.first_blocks} repetitions: {size.time}. Start?", err=True):
        raise UsageError("Nothing was started.", fix="Measure less: --budget 5m, --limit 1, fewer --depth.")


def _with_what_is_missing(
    attempt: Callable[[], Prepared], pause: Callable[[], None], *, install: bool, as_json: bool
) -> Prepared:
    """Return the result of `attempt`; what it lacks is installed first, after confirmation. Raises as it does."""
    from benchctl.cli.engines import install_engine

    installed: set[str] = set()
    while True:
        try:
            return attempt()
        except BenchctlError as error:
            pause()
            missing = error.installs
            if missing is None or missing in installed:
                raise
            asks = not as_json and sys.stdin.isatty() and sys.stderr.isatty()
            if not install and not (asks and typer.confirm(f"{error.what} Install {missing} now?", err=True)):
                if error.fix and not asks:
                    error.fix += " Or add --install."
                raise
            engine, *flags = missing.split()
            install_engine(engine, cuda="--cuda" in flags, metal="--metal" in flags, cpu="--cpu" in flags)
            installed.add(missing)


def _show_run(folder: Path, *, as_json: bool, quiet: bool, verbose: bool) -> None:
    """Print the run's summary. Exits with 3 when a cell or a request failed."""
    from benchctl.data.store import open_run
    from benchctl.lossless.judge.run import analyse_run
    from benchctl.reports.run_summary import print_run
    from benchctl.words.document import analysis_document

    run = open_run(folder)
    analysis = analyse_run(run)
    failed = analysis.failed_cells + [
        f"block {record.block + 1}, {record.label}, {record.task}/{record.prompt_idx}: {record.error.message}"
        for record in run.records
        if record.error is not None
    ]
    if as_json:
        document = {
            "run": str(folder),
            "status": run.manifest.status if run.manifest else None,
            "failed": failed,
            "integrity": run.integrity.as_dict(),
            "analysis": analysis_document(analysis),
        }
        print_json("run", document)
    elif not quiet:
        print_run(analysis, folder, run.manifest, verbose=verbose)
    if failed:
        counted = "cell or request" if len(failed) == 1 else "cells or requests"
        raise EngineError(
            f"{len(failed)} {counted} failed; the first: {failed[0]}",
            kind="crash",
            where=str(folder),
            fix=f"Read the logs in {folder}/logs. Then: benchctl run --resume {shlex.quote(str(folder))}",
        )
