"""`benchctl verify-lossless --sampling`: does an arm sample from the target's distribution?

Names come from recipes and are untrusted text.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from benchctl.experiments.sampling.results import ArmSampling, SamplingResult
from benchctl.reports.terminal import PIPE_WIDTH
from benchctl.text import one_line

if TYPE_CHECKING:
    from benchctl.data.integrity import Integrity
    from benchctl.data.store import RunData
    from benchctl.recipes.schema import Recipe

COLOUR = {"no difference found": "green", "difference found": "red", "lossy by design": "red", "undetermined": "yellow"}


def verify_sampling(
    target: str | None,
    settings: Mapping[str, Any],
    *,
    results: Path,
    baseline: str | None = None,
    arms: Sequence[str] = (),
    offline: bool = False,
    scored: bool = True,
    engine_binary: str | None = None,
    models_dir: Path | None = None,
    as_json: bool = False,
    quiet: bool = False,
    trusted: bool = False,
) -> None:
    """Check the arms of a recipe or a run, or (offline) assess the latest stored check of a run again.

    `target` as a user names it: a recipe's file, a run, a recipe's name, the folder of a check; `None` for the latest
    run. `settings`: the fields of `CheckPlan` that the user set. Exits with 0 when no arm shows a difference, with 1
    when one does, is lossy by design or undetermined; raises EngineError when an engine failed.
    """
    from benchctl.errors import EngineError, UsageError
    from benchctl.experiments.sampling.conclude import sampling_verdict
    from benchctl.experiments.sampling.stored import open_check

    if not offline:
        silent = quiet or as_json
        folder = _draw(
            target,
            settings,
            results,
            baseline,
            arms,
            engine_binary,
            models_dir,
            scored=scored,
            quiet=silent,
            trusted=trusted,
        )
    elif settings or arms or baseline:
        what = "A stored check is assessed with its own settings."
        raise UsageError(what, where="--offline", fix="Leave out the other options.")
    else:
        folder = _stored(target, results)
    check = open_check(folder)
    found = sampling_verdict(check)
    if as_json:
        document = {"schema": 1, "folder": str(folder), **found.model_dump(), "integrity": check.integrity.as_dict()}
        sys.stdout.write(json.dumps(document) + "\n")
    elif not quiet:
        _print_sampling(found, folder, check.integrity)
    if found.failed_arms:
        arm, reason = next(iter(found.failed_arms.items()))
        log = next(cell.log for cell in reversed(check.check.manifest.cells) if cell.arm == arm)
        fix = f"Read its log: {folder / log}."
        raise EngineError(f"The engine of {arm} failed: {reason}", kind="crash", where=str(folder), fix=fix)
    if any(arm.verdict != "no difference found" for arm in found.arms):
        raise typer.Exit(1)


def _stored(target: str | None, results: Path) -> Path:
    from benchctl.data.store import resolve_run
    from benchctl.experiments.sampling.stored import CHECK, FOLDER, latest_check

    for folder in (Path(target), results / target) if target is not None else ():
        if (folder / CHECK).is_file() or (folder / FOLDER).is_dir():
            return latest_check(folder)
    return latest_check(resolve_run(target, results))


def _draw(
    target: str | None,
    settings: Mapping[str, Any],
    results: Path,
    baseline: str | None,
    arms: Sequence[str],
    engine_binary: str | None,
    models_dir: Path | None,
    *,
    scored: bool,
    quiet: bool,
    trusted: bool,
) -> Path:
    """Run the engines and return the folder of the new check; `scored`: with its tokens scored on the target alone."""
    from benchctl.cli.replay_forks import scoring_progress
    from benchctl.experiments.sampling.draw import CheckPlan, is_greedy, run_check, sampled_recipe
    from benchctl.experiments.sampling.scoring import score_check
    from benchctl.measure.prepare import prepare
    from benchctl.measure.progress import progress_for
    from benchctl.measure.run import recorded_engines, signals_interrupt

    plan = replace(CheckPlan(), **settings)
    run, recipe, folder, trusted = _what(target, results, trusted=trusted)
    recipe = _with_baseline(recipe, baseline, arms)
    sampled = sampled_recipe(recipe, plan, arms)
    progress = progress_for(Console(stderr=True), quiet=quiet)
    if is_greedy(recipe.sampling):
        temperature = sampled.sampling.temperature
        progress.note(
            f"The recipe is greedy; this check samples at temperature {temperature:g} from the full vocabulary."
        )
    with signals_interrupt():
        prepared = prepare(
            sampled,
            recipe_folder=folder,
            binary=engine_binary,
            models_dir=models_dir,
            notice=progress.note,
            trusted=trusted,
            recorded=None if run is None or engine_binary else recorded_engines(run),
        )
        parent = results / recipe.name if run is None else run.folder
        drawn = run_check(prepared, plan, parent, progress, ["benchctl", *sys.argv[1:]])
        if scored:
            with scoring_progress("Scoring tokens on the target alone", "answers", quiet=quiet) as advance:
                why = score_check(drawn, prepared, advance=advance)
            if why is not None:
                progress.note(f"The tokens could not be scored, so only whole answers are compared: {one_line(why)}")
        return drawn


def _what(target: str | None, results: Path, *, trusted: bool) -> tuple[RunData | None, Recipe, Path, bool]:
    """Resolve a name: a YAML file is a recipe, a recipe's name with runs is its latest run. Last: is it trusted."""
    from benchctl.data.store import open_run, resolve_run
    from benchctl.errors import UsageError
    from benchctl.measure.run import standing_of
    from benchctl.permissions import settle
    from benchctl.recipes.load import find_recipe, load_recipe

    if target is None or Path(target).suffix not in (".yaml", ".yml"):
        try:
            run = open_run(resolve_run(target, results))
        except UsageError:
            if target is None:
                raise
        else:
            again = standing_of(run, trusted=trusted)
            return run, again.recipe, again.folder, again.trusted
    file = find_recipe(target)
    loaded = load_recipe(file)
    return None, loaded, file.parent, settle(loaded, file.parent, file, trusted=trusted)


def _with_baseline(recipe: Recipe, baseline: str | None, arms: Sequence[str]) -> Recipe:
    """Return the recipe with its baseline or the named one. Raises UsageError for arms that cannot be compared."""
    from benchctl.errors import UsageError

    names = [arm.name for arm in recipe.arms]
    chosen = baseline or recipe.baseline
    group = recipe.group_of(recipe.arm(chosen)) if chosen in names else None  # arms of another are not comparable
    others = [arm.name for arm in recipe.arms if arm.name != chosen and group in (None, recipe.group_of(arm))]
    for option, name, known in [("--baseline", chosen, names), *(("--arm", name, others) for name in arms)]:
        if name not in known:
            raise UsageError(f"There is no arm {name!r}.", where=option, fix=f"The arms are: {', '.join(known)}.")
    if not others:
        raise UsageError("There is only the baseline, so there is nothing to compare.", where=recipe.name)
    if recipe.arm(chosen).speculation is not None:
        raise UsageError(
            f"{chosen} speculates, so it does not show how the target alone samples.",
            where="baseline",
            fix="Choose an arm without speculation.",
        )
    return recipe.model_copy(update={"baseline": chosen})


def _print_sampling(found: SamplingResult, folder: Path, integrity: Integrity) -> None:
    """Print the verdicts, then a sentence for each arm."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PIPE_WIDTH)
    cut = "".join(
        [f", top-k {found.top_k}" if found.top_k else "", f", top-p {found.top_p:g}" if found.top_p < 1 else ""]
    )
    console.print(
        Text(
            f"Sampling of {one_line(found.recipe)}: every arm against {one_line(found.baseline)} at temperature "
            f"{found.temperature:g}{cut}, {len(found.prompts)} prompts × {found.seeds} seeds, "
            f"answers of at most {found.tokens} tokens\n"
        )
    )
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in ("arm", "verdict", "drafted", "accepted", "smallest p", "test"):
        table.add_column(column, justify="right" if column in ("drafted", "accepted", "smallest p") else "left")
    for arm in found.arms:
        table.add_row(*_row(arm))
    console.print(table)
    for arm in found.arms:
        console.print(Text(f"\n{one_line(arm.arm)}: {arm.verdict}", style=f"bold {COLOUR[arm.verdict]}"))
        console.print(Padding.indent(Text(one_line(arm.reason)), 2))
    tests = len(found.arms[0].tests) if found.arms else 0
    note = (
        f"\nFamily-wise level {100 * found.level:g} % over {tests} tests of each of {len(found.arms)} arms. "
        "The first token comes from prefill and is never speculated."
    )
    console.print(Text(note, style="dim"))
    console.print(Text(one_line(integrity.sentence, 900), style="yellow" if integrity.findings else ""))
    if found.damaged:
        console.print(Text(f"{found.damaged} lines of answers could not be read.", style="yellow"))
    console.print(Text(f"Answers: {folder}", style="dim"), soft_wrap=True)


def _row(arm: ArmSampling) -> list[Text]:
    least = min(arm.tests, key=lambda test: test.p, default=None)
    lossy = f" (lossy by design: {', '.join(arm.lossy)})" if arm.lossy else ""
    return [
        Text(one_line(arm.arm) + lossy),
        Text(arm.verdict, style=COLOUR[arm.verdict]),
        Text("–" if arm.drafted is None else f"{arm.drafted:,}"),
        Text("–" if arm.accepted is None else f"{arm.accepted:,}"),
        Text("–" if least is None else f"{least.adjusted:.2g}"),
        Text("–" if least is None else least.name),
    ]
