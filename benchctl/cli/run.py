"""`benchctl run`: measure a recipe; what a dry run shows, and what a run shows at its end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from benchctl.data.store import RunData
    from benchctl.measure.estimate import RunEstimate
    from benchctl.measure.plan import CellPlan
    from benchctl.measure.prepare import Prepared
    from benchctl.recipes.schema import AutoBlocks


def run(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe file, or the name of a shipped one (benchctl recipes list).")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where runs are kept.")] = Path("results"),
    resume: Annotated[str | None, typer.Option(help="Finish what this run lacks, instead of a new run.")] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the plan and the exact commands; start no engine. Missing models are fetched."
        ),
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="Measure only this arm and the baseline; may be given several times.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", "-t", metavar="MODEL", help="Without a recipe: the target's source.")
    ] = None,
    draft: Annotated[
        str | None, typer.Option("--draft", "-d", metavar="MODEL", help="Without a recipe: the draft's source.")
    ] = None,
    kind: Annotated[str | None, typer.Option("--engine", metavar="KIND", help="Without a recipe: the engine.")] = None,
    types: Annotated[
        list[str] | None,
        typer.Option(
            "--type", metavar="TYPE", help="Without a recipe: a speculation type; may be given several times."
        ),
    ] = None,
    depth: Annotated[str | None, typer.Option(metavar="K1,K2", help="Without a recipe: draft depths.")] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option("-L", metavar="KEY=V1,V2", help="Without a recipe: values of a speculation key, such as p_min."),
    ] = None,
    prompts: Annotated[
        str | None, typer.Option(metavar="FILE", help="Prompts, instead of the recipe's: a suite, .txt, .jsonl, ….")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most so many prompts of each task, instead of the recipe's.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A key of the recipe: sampling.max_tokens=64."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option("-k", metavar="NAME", help="Only arms (with their baseline) or tasks of this name; * matches."),
    ] = None,
    blocks: Annotated[
        str | None, typer.Option(help="Blocks, instead of the recipe's: a number, or auto.", metavar="N|auto")
    ] = None,
    engine_binary: Annotated[
        str | None, typer.Option(help="The engine's binary: a path, or a name on PATH. The recipe's own wins.")
    ] = None,
    models_dir: Annotated[
        Path | None, typer.Option(help="Look for the models' files here before anywhere else.", file_okay=False)
    ] = None,
    trust_recipe: Annotated[
        bool,
        typer.Option("--trust-recipe", help="Let the recipe open the machine: run code, read other files, reach out."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout at the end.")] = False,
) -> None:
    """Measure every arm of a recipe on the real engine: fresh processes, balanced blocks, every answer hashed.

    Without a recipe, -t and -d name the models: benchctl run -t target.gguf -d draft.gguf --depth 2,4,8. The recipe
    that is then run is written beside its runs. Ctrl-C ends a run cleanly; `--resume RUN` finishes it.
    """
    import sys

    from rich.console import Console

    from benchctl.data.store import open_run, resolve_run
    from benchctl.errors import UsageError
    from benchctl.measure.plan import keep_matching, keep_only, with_blocks
    from benchctl.measure.prepare import prepare
    from benchctl.measure.progress import progress_for
    from benchctl.measure.run import recipe_folder_of, recipe_of, resume_run, signals_interrupt, start_run
    from benchctl.recipes.from_options import parse_settings, parse_sweep, recipe_from_options, write_file, written
    from benchctl.recipes.load import find_recipe, load_recipe

    if [recipe, resume, target].count(None) != 2:
        raise UsageError(
            "Name a recipe, a target, or a run to resume.",
            fix="benchctl run RECIPE, benchctl run -t TARGET -d DRAFT, or benchctl run --resume RUN",
        )
    if resume is not None and (only or blocks or keep or settings or prompts or limit):
        raise UsageError(
            "A resumed run keeps its arms, blocks, prompts and settings.",
            where="--resume",
            fix="Leave out --only, -k, --blocks, --prompts, --limit and --set.",
        )
    if target is None and (draft or kind or types or depth or sweep):
        raise UsageError(
            "These options make a recipe, and this command line names one or a run.",
            where="--draft, --engine, --type, --depth, -L",
            fix="Name the target with -t, or write it in the recipe.",
        )

    progress = progress_for(Console(stderr=True), quiet=quiet or as_json)
    earlier = open_run(resolve_run(resume, out)) if resume is not None else None
    if earlier is not None:
        wanted, folder = recipe_of(earlier), recipe_folder_of(earlier)
    else:
        overrides = parse_settings(settings or [])
        if target is not None:
            options = recipe_from_options(
                target=target,
                draft=draft,
                engine=kind,
                types=types or [],
                sweeps=parse_sweep([*([f"depth={depth}"] if depth else []), *(sweep or [])]),
                prompts=prompts,
                limit=limit,
                folder=Path.cwd(),
                settings=overrides,
            )
            file = out / options["name"] / "recipe.yaml"
            write_file(file, written(options))
            progress.note(f"Recipe: {file}")
        else:
            file = find_recipe(recipe or "")
            overrides |= {"prompts.suite": prompts} if prompts else {}
            overrides |= {"prompts.limit": limit} if limit else {}
        wanted, folder = load_recipe(file, overrides=overrides), file.parent
    wanted = keep_matching(wanted, keep or [])
    if only:
        wanted = keep_only(wanted, only)
    if blocks:
        wanted = with_blocks(wanted, blocks)
    with signals_interrupt():  # a download or a quantization, too, ends cleanly
        prepared = prepare(
            wanted,
            recipe_folder=folder,
            binary=engine_binary,
            models_dir=models_dir,
            notice=progress.note,
            trusted=trust_recipe,
        )
    if dry_run:
        _show_plan(prepared, earlier, out, as_json=as_json)
        return
    where = (
        resume_run(prepared, earlier, progress)
        if earlier is not None
        else start_run(prepared, out, progress, ["benchctl", *sys.argv[1:]])
    )
    _show_run(where, as_json=as_json, quiet=quiet)


def _show_plan(prepared: Prepared, earlier: RunData | None, out: Path, *, as_json: bool) -> None:
    """Print what a run would do; starts no engine."""
    import json
    import shlex

    from rich.console import Console
    from rich.text import Text

    from benchctl.measure.estimate import estimate_run
    from benchctl.measure.plan import make_plan, measured, unclosed
    from benchctl.recipes.schema import AutoBlocks
    from benchctl.text import visible

    recipe = prepared.recipe
    done = measured(earlier, len(prepared.prompts)) if earlier else set()
    begun = earlier.manifest if earlier else None
    plan = make_plan(
        recipe,
        prepared.prompts,
        done,
        range(max(recipe.first_blocks, begun.blocks if begun else 0)),
        unclosed=unclosed(earlier, done) if earlier else (),
        ordering=begun.ordering if begun else "balanced",
    )
    runs = out / recipe.name
    cost = estimate_run(plan, recipe.sampling.max_tokens, runs)
    most = None
    if isinstance(recipe.blocks, AutoBlocks):
        everything = make_plan(recipe, prepared.prompts, done, range(recipe.blocks.max))
        most = estimate_run(everything, recipe.sampling.max_tokens, runs)
    if as_json:
        typer.echo(json.dumps(_document(prepared, plan, cost, most), indent=1))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(_headline(prepared, cost)))
    between = " ⇄ " if recipe.schedule == "interleaved" else " → "
    for block in sorted({cell.block for cell in plan}):
        order = between.join(cell.arm.name for cell in plan if cell.block == block)
        console.print(Text(f"block {block + 1}: {order}"))
    if most is not None and most.cells > cost.cells and isinstance(recipe.blocks, AutoBlocks):
        console.print(Text(_further(recipe.blocks, most)))
    for name, launch in prepared.launches.items():
        if launch.url is not None:
            console.print(Text(visible(f"\n{name}: {launch.url}"), style="bold"))
            continue
        settings = " ".join(f"{key}={shlex.quote(launch.env[key])}" for key in sorted(launch.set_by_us))
        console.print(Text(f"\n{name}:", style="bold"))
        console.print(Text(visible(f"  {settings} {shlex.join(launch.argv)}".replace("'{port}'", "{port}"))))
    for warning in prepared.warnings:
        console.print(Text(f"\nwarning: {visible(warning)}", style="yellow"))


def _headline(prepared: Prepared, cost: RunEstimate) -> str:
    from benchctl.text import spoken, visible

    found = prepared.capabilities
    time = (
        f"about {spoken(cost.seconds)}, going by run {cost.learnt_from}"
        if cost.seconds is not None
        else "time unknown: no earlier run of this recipe here"
    )
    version = visible(found.version or "version unknown")
    return (
        f"{prepared.recipe.name}: {cost.cells} engine starts, {cost.requests} requests, "
        f"at most {cost.tokens} tokens; {time}.\n"
        f"Engine: {visible(str(found.binary or found.kind))} (found in: {visible(found.found_in)}; {version})"
    )


def _further(rule: AutoBlocks, most: RunEstimate) -> str:
    """What `blocks: auto` may add to the blocks that are sure to come."""
    from benchctl.text import spoken

    time = f", about {spoken(most.seconds)}" if most.seconds is not None else ""
    budget = f", and none that would end after {rule.budget_min:g} min" if rule.budget_min is not None else ""
    return (
        f"Then further blocks until every arm's interval is within ±{100 * rule.half_width:g} %: at most {rule.max} in "
        f"all ({most.cells} engine starts, {most.requests} requests{time}){budget}."
    )


def _document(
    prepared: Prepared, plan: list[CellPlan], cost: RunEstimate, most: RunEstimate | None
) -> dict[str, object]:
    binary = prepared.capabilities.binary
    return {
        "recipe": prepared.recipe.model_dump(mode="json"),
        "engine": {"binary": None if binary is None else str(binary), "version": prepared.capabilities.version},
        "cells": [{"block": c.block, "order": c.order, "arm": c.arm.name, "prompts": len(c.prompts)} for c in plan],
        "commands": {name: list(launch.argv) for name, launch in prepared.launches.items()},
        "requests": cost.requests,
        "tokens_at_most": cost.tokens,
        "seconds": cost.seconds,
        "at_most": None if most is None else {"requests": most.requests, "seconds": most.seconds},
        "warnings": prepared.warnings,
    }


def _show_run(folder: Path, *, as_json: bool, quiet: bool) -> None:
    """Print the run's summary. Exits with 3 when a cell or a request failed."""
    import json
    import shlex

    from rich.console import Console

    from benchctl.analysis.analyse import analyse
    from benchctl.data.store import open_run
    from benchctl.errors import EngineError
    from benchctl.reports.terminal import print_decision, print_summary

    run = open_run(folder)
    analysis = analyse(run)
    failed = analysis.failed_cells + [
        f"block {record.block + 1}, {record.label}, {record.task}/{record.prompt_idx}: {record.error.message}"
        for record in run.records
        if record.error is not None
    ]
    if as_json:
        status = run.manifest.status if run.manifest else None
        document = {
            "run": str(folder),
            "status": status,
            "failed": failed,
            "analysis": analysis.model_dump(by_alias=True),
        }
        typer.echo(json.dumps(document, indent=1))
    elif not quiet:
        console = Console()
        print_summary(console, analysis)
        print_decision(console, analysis, run.manifest)
        name = shlex.quote(str(folder))
        following = f"Next: benchctl verify-lossless {name}\n      benchctl report {name}"
        console.print(f"\nRecords: {folder}\n{following}", markup=False, highlight=False, soft_wrap=True)
    if failed:
        what = "cell or request" if len(failed) == 1 else "cells or requests"
        raise EngineError(
            f"{len(failed)} {what} failed; the first: {failed[0]}",
            kind="crash",
            where=str(folder),
            fix=f"Read the logs in {folder}/logs. Then: benchctl run --resume {shlex.quote(str(folder))}",
        )
