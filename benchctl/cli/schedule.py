"""`benchctl runs schedule`: the draft depth by load, as the engine's own setting, from a run over concurrency."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from benchctl.cli import complete, options
from benchctl.errors import UsageError
from benchctl.reports.json_output import print_json


def schedule(
    run: options.LatestRun = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure it beside no speculation and a fixed depth.")
    ] = False,
    resume: Annotated[
        str | None, typer.Option(metavar="RUN", help="Continue this run of --measure.", autocompletion=complete.runs)
    ] = None,
    blocks: options.Blocks = None,
    out: options.Out = Path("results"),
    engine_binary: options.EngineBinary = None,
    models_dir: options.ModelsDir = None,
    trust_recipe: options.TrustRecipe = False,
    quiet: options.Quiet = False,
    as_json: options.JsonAtEnd = False,
) -> None:
    """Write the engine's own schedule: the draft depth by the number of requests in flight.

    From a run over concurrency. A depth is taken where it is shown to help; elsewhere speculation is off. --measure
    runs the schedule once more: as an arm, or, of an engine that takes none, the arm of each range at its loads.
    --resume finishes such a run.
    """
    from rich.console import Console

    from benchctl.analysis.outcome import find_outcome
    from benchctl.cli.show_plan import command_text
    from benchctl.data.store import open_run, resolve_run
    from benchctl.experiments.schedule import session
    from benchctl.lossless.judge.run import analyse_run
    from benchctl.measurement.plan import with_blocks
    from benchctl.measurement.progress import RunProgress
    from benchctl.measurement.resume import context_of_run, prepare_again
    from benchctl.measurement.run import signals_interrupt
    from benchctl.reports.run_summary import print_summary
    from benchctl.reports.terminal import Printout
    from benchctl.words import outcome as outcome_words
    from benchctl.words import schedule as words

    if blocks and not measure:
        fix = "Add --measure, or leave it out."
        raise UsageError("Only --measure takes a number of blocks.", where="--blocks", fix=fix)
    if measure and resume is not None:
        raise UsageError("A run is either started or resumed.", where="--resume", fix="Leave out --measure.")
    silent = quiet or as_json
    stored, progress = open_run(resolve_run(run, out)), RunProgress(Console(stderr=True, quiet=silent))
    begun = None if resume is None else open_run(resolve_run(resume, out))
    if begun is not None and begun.folder.resolve() == stored.folder.resolve():
        fix = "Name the run over concurrency: benchctl runs schedule FIRST --resume RUN"
        raise UsageError("A run that chose a schedule cannot decide what it gains.", where="--resume", fix=fix)
    context = context_of_run(stored, trusted=trust_recipe)
    if blocks:
        context = replace(context, recipe=with_blocks(context.recipe, blocks))
    first = analyse_run(stored)
    places: dict[str, Any] = {"binary": engine_binary, "models_dir": models_dir, "notice": progress.note}
    written = session.write(stored, first, context, lambda chosen: chosen.prepare(**places))
    commands = {name: command_text(argv) for name, argv in written.commands.items()}
    said = [*words.steps(written.schedule.steps), *map(words.mixed, written.schedule.mixed)]
    if caution := outcome_words.machine(find_outcome(first)):
        said.insert(0, caution)
    document: dict[str, Any] = {
        "run": str(stored.folder),
        "steps": [vars(step) for step in written.schedule.steps],
        "speculation": None if written.setting is None else written.setting.model_dump(exclude_none=True),
        "commands": commands,
        "said": said,
    }
    printout = Printout()
    if not silent:
        for sentence in said:
            printout.say(sentence)
        for name, command in commands.items():
            printout.say(f"{name}:", "bold")
            printout.say(f"  {command}", whole=True, most=100_000)
    if measure or begun is not None:
        command_again = f"benchctl runs schedule {shlex.quote(str(stored.folder))} --resume"
        with signals_interrupt(), session.resumed_by(command_again):
            if begun is None:
                again = session.measure(written, out, progress, ["benchctl", *sys.argv[1:]])
            else:
                ready_again = partial(prepare_again, **places, trusted=trust_recipe)
                again = session.resume(written, begun, ready_again, progress)
        analysis, loads = session.compare(written, again)
        document |= {"measured": str(again.folder), "mixed": [words.mixed(load) for load in loads]}
        if not silent:
            print_summary(printout.console, analysis, str(again.folder), again.manifest)
            for load in loads:
                printout.say(words.mixed(load), "bold")
    if as_json:
        print_json("schedule", document)
