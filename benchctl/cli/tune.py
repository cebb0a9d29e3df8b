"""`benchctl tune`: search for the fastest speculation setting within a budget, and confirm it on new measurements."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchctl.cli import complete, options
from benchctl.errors import UsageError
from benchctl.reports.json_output import print_json

if TYPE_CHECKING:
    from benchctl.data.store import RunData
    from benchctl.measurement.prepare import Prepared, RecipeContext
    from benchctl.recipes.from_options import RecipeOptions

MAX_TOKENS = 64
"""Default longest answer where the command line names a model: short blocks leave time for more of them."""


Drafts = Annotated[
    list[str] | None, options.of_models("--draft", "-d", "-md", metavar="MODEL", help="A draft; repeatable.")
]


def tune(
    subject: options.Words = None,
    target: options.Target = None,
    drafts: Drafts = None,
    engine: options.Kind = None,
    types: options.Types = None,
    depth: options.Depth = None,
    sweep: options.Sweep = None,
    prompts: options.Prompts = None,
    limit: options.Limit = None,
    settings: options.Settings = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, max=1024, metavar="N", help="Search with N requests in flight.")
    ] = None,
    budget: Annotated[str, typer.Option(metavar="TIME", help="Total time: 15m, 900s, 1h.")] = "15m",
    only_arms: Annotated[bool, typer.Option("--only-arms", help="Only the recipe's own arms.")] = False,
    out: options.Out = Path("results"),
    resume: Annotated[
        str | None, typer.Option(metavar="RUN", help="Continue this search.", autocompletion=complete.runs)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the settings; start no engine.")] = False,
    engine_binary: options.EngineBinary = None,
    models_dir: options.ModelsDir = None,
    trust_recipe: options.TrustRecipe = False,
    quiet: options.Quiet = False,
    as_json: options.JsonAtEnd = False,
) -> None:
    """Search for the fastest setting within a time budget.

    Successive halving: blocks measure no speculation and every remaining setting; the slower half is dropped. The last
    setting is measured again, on new data; that run decides. Ctrl-C keeps everything; --resume RUN continues.
    """
    from rich.console import Console

    from benchctl.experiments.tune.session import all_candidates, measure_chosen, resume_search, search
    from benchctl.measurement.progress import RunProgress
    from benchctl.measurement.resume import prepare_again
    from benchctl.measurement.run import signals_interrupt
    from benchctl.recipes.from_options import RecipeOptions

    if target is not None and subject:
        raise UsageError("The target is named twice.", where="-t", fix="benchctl tune -t TARGET -d DRAFT")
    if concurrency is not None:
        settings = [*(settings or []), f"concurrency={concurrency}"]
    words = [target] if target is not None else subject or []
    named = RecipeOptions(None, None, None, engine, types, depth, sweep, prompts, limit, settings)
    if bool(words) == (resume is not None) or (drafts and not words):
        raise UsageError(
            "Name a recipe, a target, or a search to continue.",
            fix="benchctl tune RECIPE, benchctl tune TARGET [DRAFT], or benchctl tune --resume RUN",
        )
    if resume is not None and (only_arms or named != RecipeOptions()):
        raise UsageError("A resumed search keeps its settings, prompts and budget.", where="--resume")
    budget_s = options.read_budget(budget)
    silent = quiet or as_json
    console = Console(stderr=True, quiet=silent)
    progress, fresh_progress = RunProgress(console), RunProgress(console)
    places: dict[str, Any] = {"binary": engine_binary, "models_dir": models_dir, "notice": progress.note}
    ready_again = partial(prepare_again, **places, trusted=trust_recipe)
    command = ["benchctl", *sys.argv[1:]]
    with signals_interrupt():
        if resume is not None:
            searched = resume_search(resume, out, ready_again, progress)
        else:
            context, own_alone = _what_to_search([*words, *(drafts or [])], named, trust=trust_recipe)
            only_arms = only_arms or own_alone
            candidates = all_candidates(context.prepare(**places, quantizes=not dry_run), only_arms=only_arms)
            if dry_run:
                _show_candidates(candidates, as_json=as_json)
                return
            searched = search(candidates, out, budget_s, progress, command, only_arms=only_arms)
        fresh = measure_chosen(searched, lambda chosen: chosen.prepare(**places), ready_again, fresh_progress, command)
    _show(searched, fresh, as_json=as_json, quiet=quiet)


def _what_to_search(subject: list[str], named: RecipeOptions, *, trust: bool) -> tuple[RecipeContext, bool]:
    """Return the recipe of the command line with what it may do, and whether only its own arms are searched."""
    from benchctl.measurement.requested import requested_recipe
    from benchctl.recipes.engine_line import read_engine_line
    from benchctl.recipes.load import absolute, shipped_recipes

    if read_engine_line(subject) is not None:
        fix = "Name the models: benchctl tune TARGET DRAFT --set 'engine.args=[-ngl, \"99\"]'"
        raise UsageError("A search takes models or a recipe, not an engine's own line.", fix=fix)
    first, *drafts = subject
    names_arms = bool(named.types or named.depth or named.sweep)
    settings = named.settings or []
    if first.endswith((".yaml", ".yml")) or first in shipped_recipes():
        if drafts or named.engine or names_arms:
            raise UsageError(
                "A recipe names its models, its engine and its own arms.",
                where="--engine, --type, --depth, -L, DRAFT",
                fix="Write them in the recipe, or name the target in its place.",
            )
        return requested_recipe(replace(named, subject=[first]), Path(), trust=trust), False
    settings = [f"sampling.max_tokens={MAX_TOKENS}", *settings]
    if len(drafts) > 1:
        places = [{"source": absolute(draft, Path.cwd())} for draft in drafts]
        by_label = dict(zip(_labels(drafts), places, strict=True))
        settings += ["models.draft=null", f"matrix={json.dumps({'models.draft': by_label})}"]
    elif not names_arms:
        settings = ["arms=[{name: baseline}]", *settings]
    draft = drafts[0] if drafts else None
    named = replace(named, target=first, draft=draft, settings=settings)
    return requested_recipe(named, Path(), trust=trust), names_arms


def _labels(drafts: list[str]) -> list[str]:
    """Short names of the drafts' files, numbered where two are equal."""
    from benchctl.recipes.from_options import name_of

    names = [name_of(draft, None)[:24].strip("-_.+") for draft in drafts]
    return [name if names.count(name) == 1 else f"{name}-{number}" for number, name in enumerate(names, start=1)]


def _show_candidates(prepared: Prepared, *, as_json: bool) -> None:
    """Print the settings to search; starts no engine."""
    from benchctl.cli.show_plan import command_text
    from benchctl.reports.terminal import Printout

    recipe = prepared.recipe
    if as_json:
        commands = {name: list(launch.argv) for name, launch in prepared.launches.items()}
        print_json("tune --dry-run", {"recipe": recipe.model_dump(mode="json"), "commands": commands})
        return
    out = Printout()
    for warning in prepared.warnings:
        out.say(f"warning: {warning}", "yellow")
    out.say(f"{recipe.name}: {len(recipe.arms) - 1} settings to search within the budget.")
    for name, launch in prepared.launches.items():
        out.say()
        out.say(f"{name}:", "bold")
        out.say(f"  {command_text(launch.argv)}", whole=True, most=100_000)


def _show(searched_run: RunData, fresh: RunData | None, *, as_json: bool, quiet: bool) -> None:
    """Print the result of the confirmation run, and the files."""
    from benchctl.experiments.tune.halving import find_standings
    from benchctl.lossless.judge.run import analyse_run
    from benchctl.recipes.load import RECIPE
    from benchctl.reports.run_summary import print_decision, print_next, print_summary
    from benchctl.reports.terminal import Printout
    from benchctl.words.document import analysis_document

    tuning = searched_run.manifest.tuning if searched_run.manifest else None
    assert tuning is not None
    searched = [] if not tuning.rungs else find_standings(searched_run, tuning.rungs[0].arms)
    analysis = None if fresh is None else analyse_run(fresh)
    decided = analysis.decision.groups[0].overall if analysis is not None and analysis.decision else None
    winner = decided.arm if decided else None
    if as_json:
        document = {
            "search": str(searched_run.folder),
            "searched": [{"arm": arm.arm, "selected_on": arm.speedup, "blocks": arm.blocks} for arm in searched],
            "left_out": tuning.left_out,
            "chosen": tuning.chosen,
            "fresh": None if fresh is None else str(fresh.folder),
            "recipe": None if fresh is None else str(fresh.folder / RECIPE),
            "winner": winner,
            "command": decided.command if decided else None,
            "analysis": None if analysis is None else analysis_document(analysis),
        }
        print_json("tune", document)
        return
    if quiet:
        return
    out = Printout()
    if fresh is None or analysis is None:
        out.say("No setting drafted anything, so none can be faster than no speculation.", "bold")
        out.say(f"Search: {searched_run.folder}", whole=True)
        return
    print_summary(out.console, analysis, str(fresh.folder), fresh.manifest)
    out.say()
    won = f"{winner} is faster, confirmed" if winner else "No setting is shown to be faster with a sound output"
    best = f"Of {len(searched)} settings {tuning.chosen} was the fastest in the search."
    out.say(f"{won} on new data. {best}", "bold")
    print_decision(out.console, analysis)
    out.say()
    out.say(f"Recipe: {fresh.folder / RECIPE}", whole=True)
    out.say(f"Confirmation run: {fresh.folder}", whole=True)
    out.say(f"Search: {searched_run.folder}", whole=True)
    print_next(out, fresh.folder)
