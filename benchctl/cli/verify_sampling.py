"""`benchctl verify-sampling`: does an arm sample from the target's distribution?

Names come from recipes and are untrusted text.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchctl.cli import complete
from benchctl.cli.options import (
    EngineBinary,
    JsonForTables,
    ModelsDir,
    OnlyArms,
    Quiet,
    Results,
    TrustRecipe,
)
from benchctl.errors import EngineError, UsageError
from benchctl.experiments.sampling.plan import USUAL, CheckPlan
from benchctl.reports.json_output import print_json
from benchctl.text import one_line

if TYPE_CHECKING:
    from benchctl.data.store import RunData
    from benchctl.experiments.sampling.judge import ArmSampling, SamplingResult
    from benchctl.experiments.sampling.stored import SamplingData
    from benchctl.measurement.prepare import Prepared, RecipeContext
    from benchctl.measurement.progress import RunProgress

COLOUR = {"no difference found": "green", "difference found": "red", "lossy by design": "red", "undetermined": "yellow"}


def verify_sampling(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="A recipe, a run, or the folder of a check.",
            show_default="the latest run",
            autocompletion=complete.runs,
        ),
    ] = None,
    results: Results = Path("results"),
    arm: OnlyArms = None,
    seeds: Annotated[int, typer.Option(min=2, metavar="N", help="Answers per prompt and arm.")] = USUAL.seeds,
    count: Annotated[int, typer.Option(min=1, metavar="N", help="Prompts, from the tasks in turn.")] = USUAL.prompts,
    tokens: Annotated[int, typer.Option(min=2, metavar="N", help="Longest answer.")] = USUAL.tokens,
    temperature: Annotated[
        float | None, typer.Option(min=0.01, max=10, metavar="T", show_default="the recipe's, or 0.8")
    ] = USUAL.temperature,
    level: Annotated[float, typer.Option(min=0.0001, max=0.05, metavar="P", help="Family-wise.")] = USUAL.level,
    offline: Annotated[bool, typer.Option("--offline", help="Judge the stored check again.")] = False,
    engine_binary: EngineBinary = None,
    models_dir: ModelsDir = None,
    trust_recipe: TrustRecipe = False,
    as_json: JsonForTables = False,
    quiet: Quiet = False,
) -> None:
    """Is the distribution above temperature 0 unchanged?

    All arms answer prompts with many seeds. Permutation tests compare their distributions with the baseline's, and
    tokens are compared with the target's. States the smallest detectable difference. Exits with 1 for a difference, or
    an arm lossy by design or undetermined.
    """
    from rich.console import Console

    from benchctl.experiments.sampling.draw import run_check, sampled_recipe
    from benchctl.experiments.sampling.judge import sampling_verdict
    from benchctl.experiments.sampling.stored import open_check
    from benchctl.measurement.progress import RunProgress
    from benchctl.measurement.resume import recorded_engines
    from benchctl.measurement.run import signals_interrupt

    plan = CheckPlan(seeds, count, tokens, temperature, level)
    if offline and (plan != USUAL or arm):
        message = "A stored check is judged with its own settings."
        raise UsageError(message, where="--offline", fix="Leave out the other options.")
    if offline:
        folder = _stored(target, results)
    else:
        run, context = _subject(target, results, trusted=trust_recipe)
        recipe = sampled_recipe(context.recipe, plan, arm or ())
        progress = RunProgress(Console(stderr=True, quiet=quiet or as_json))
        with signals_interrupt():
            recorded = None if run is None or run.manifest is None or engine_binary else recorded_engines(run.manifest)
            prepared = context.prepare(engine_binary, models_dir, progress.note, recipe, recorded)
            parent = results / recipe.name if run is None else run.folder
            folder = run_check(prepared, plan, parent, progress, ["benchctl", *sys.argv[1:]])
            _score(folder, prepared, progress, quiet=quiet or as_json)
    check = open_check(folder)
    result = sampling_verdict(check)
    if as_json:
        document = {"folder": str(folder), **result.model_dump(), "integrity": check.integrity.as_dict()}
        print_json("verify-sampling", document)
    elif not quiet:
        _print_sampling(result, check)
    for failed, reason in result.failed_arms.items():
        log = next(cell.log for cell in reversed(check.check.manifest.cells) if cell.arm == failed)
        fix = f"Read its log: {folder / log}."
        raise EngineError(f"The engine of {failed} failed: {reason}", kind="crash", where=str(folder), fix=fix)
    if any(checked.verdict != "no difference found" for checked in result.arms):
        raise typer.Exit(1)


def _stored(target: str | None, results: Path) -> Path:
    from benchctl.data.store import resolve_run
    from benchctl.experiments.sampling.stored import CHECK, FOLDER, latest_check

    for folder in (Path(target), results / target) if target is not None else ():
        if (folder / CHECK).is_file() or (folder / FOLDER).is_dir():
            return latest_check(folder)
    return latest_check(resolve_run(target, results))


def _subject(target: str | None, results: Path, *, trusted: bool) -> tuple[RunData | None, RecipeContext]:
    """Resolve a name: a YAML file is a recipe, a recipe's name with runs is its latest run."""
    from benchctl.data.store import open_run, resolve_run
    from benchctl.measurement.requested import named_recipe
    from benchctl.measurement.resume import context_of_run

    if target is None or Path(target).suffix not in (".yaml", ".yml"):
        try:
            run = open_run(resolve_run(target, results))
        except UsageError:
            if target is None:
                raise
        else:
            return run, context_of_run(run, trusted=trusted)
    return None, named_recipe(target, results, trust=trusted)


def _score(folder: Path, prepared: Prepared, progress: RunProgress, *, quiet: bool) -> None:
    """Score the tokens of a check on the target alone; say why where that cannot be."""
    from benchctl.experiments.sampling.scoring import score_check
    from benchctl.measurement.progress import shown_steps

    with shown_steps("Scoring tokens on the target alone", quiet=quiet) as show:
        reason = score_check(folder, prepared, show)
    if reason is not None:
        progress.note(f"The tokens could not be scored, so only whole answers are compared: {one_line(reason)}")


def _print_sampling(result: SamplingResult, check: SamplingData) -> None:
    """Print the verdicts, then a sentence for each arm."""
    from benchctl.reports.terminal import Printout

    out = Printout()
    cut = f", top-k {result.top_k}" if result.top_k else ""
    cut += f", top-p {result.top_p:g}" if result.top_p < 1 else ""
    out.say(
        f"Sampling of {result.recipe}: every arm against {result.baseline} at temperature {result.temperature:g}{cut}, "
        f"{len(result.prompts)} prompts × {result.seeds} seeds, answers of at most {result.tokens} tokens"
    )
    out.say()
    counts = ("drafted", "accepted", "smallest p")
    out.rows(("arm", "verdict", *counts, "test"), [_row(arm) for arm in result.arms], right=counts)
    for arm in result.arms:
        out.say()
        out.say(f"{arm.arm}: {arm.verdict}", f"bold {COLOUR[arm.verdict]}")
        out.below(arm.reason)
    out.say()
    out.say(f"Family-wise level {100 * result.level:g} %. The first token is never speculated.", "dim")
    out.say(check.integrity.sentence, "yellow" if check.integrity.findings else "")
    if result.damaged:
        out.say(f"{result.damaged} lines of answers could not be read.", "yellow")
    out.say(f"Answers: {check.folder}", "dim", whole=True)


def _row(arm: ArmSampling) -> tuple[str, ...]:
    strongest = min(arm.tests, key=lambda test: test.p, default=None)
    lossy = f" (lossy by design: {', '.join(arm.lossy)})" if arm.lossy else ""
    counts = ("–" if count is None else f"{count:,}" for count in (arm.drafted, arm.accepted))
    test = ("–", "–") if strongest is None else (f"{strongest.adjusted:.2g}", strongest.name)
    return (f"{arm.arm}{lossy}", arm.verdict, *counts, *test)
