"""`benchctl report race`: one prompt with and without speculation, played back side by side at true speed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchctl.cli import complete, options

if TYPE_CHECKING:
    from rich.console import Console

    from benchctl.experiments.race.playback import Playback


def race(
    subject: options.Words = None,
    arm: Annotated[
        str | None,
        typer.Option(metavar="ARM", help="Default: the first that speculates.", autocompletion=complete.arms),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(metavar="TASK/N|TEXT", help="One of the suite, or your own text.")
    ] = None,
    speed: Annotated[float, typer.Option(min=0.05, max=100, metavar="X", help="2 is twice as fast as measured.")] = 1.0,
    record: Annotated[
        Path | None,
        typer.Option("--output", "-o", "--record", metavar="FILE.svg", help="Save it as an animated SVG."),
    ] = None,
    target: options.Target = None,
    draft: options.Draft = None,
    kind: options.Kind = None,
    types: options.Types = None,
    depth: options.Depth = None,
    prompts: options.Prompts = None,
    settings: options.Settings = None,
    engine_binary: options.EngineBinary = None,
    models_dir: options.ModelsDir = None,
    trust_recipe: options.TrustRecipe = False,
) -> None:
    """Play one prompt with and without speculation, side by side at true speed.

    The two are measured in turn, each alone on the machine, then played back together. One prompt gives no
    verdict: use `benchctl run`. Without a terminal only the outcome is printed.
    """
    import tempfile

    from rich.console import Console

    from benchctl.errors import StorageError, UsageError
    from benchctl.experiments.race.playback import find_prompt, pair_of, svg
    from benchctl.experiments.race.playback import race as measure
    from benchctl.measure.prepare import prepare
    from benchctl.measure.progress import progress_for
    from benchctl.measure.requested import named
    from benchctl.measure.run import signals_interrupt

    if record is not None and record.suffix != ".svg":
        raise UsageError("A recording is an SVG.", where=str(record), fix="For example: -o race.svg")
    standing = named(subject, Path("results"), target, draft, kind, types, depth, prompts, settings, trust=trust_recipe)
    pair = pair_of(standing.recipe, arm)
    progress = progress_for(Console(stderr=True), quiet=False)
    with signals_interrupt(), tempfile.TemporaryDirectory(prefix="benchctl-") as logs:
        prepared = prepare(
            pair,
            recipe_folder=standing.folder,
            binary=engine_binary,
            models_dir=models_dir,
            notice=progress.note,
            trusted=standing.trusted,
        )
        item = find_prompt(prepared.prompts, prompt, chat=prepared.suite.kind == "chat")
        playbacks = measure(prepared, item, Path(logs), progress)
    console = Console(highlight=False)
    if console.is_terminal:
        _play(console, playbacks, speed)
    _outcome(console, playbacks)
    if record is not None:
        try:
            record.parent.mkdir(parents=True, exist_ok=True)
            record.write_text(svg(playbacks, f"{pair.name}: {item.task}/{item.prompt_idx}", speed), encoding="utf-8")
        except OSError as error:
            raise StorageError(f"The recording cannot be written: {error.strerror}.", where=str(record)) from None
        console.print(f"Recorded: {record}", markup=False, soft_wrap=True)


def _play(console: Console, playbacks: list[Playback], speed: float) -> None:
    """Play both answers back on the terminal."""
    import time

    from rich.live import Live

    from benchctl.experiments.race.playback import frame

    width, height = console.size
    moments = sorted({0.0, *(piece.at_s for playback in playbacks for piece in playback.pieces)})
    with Live(console=console, auto_refresh=False, screen=False, vertical_overflow="crop") as live:
        began = time.monotonic()
        for now_s in moments:
            time.sleep(max(0.0, began + now_s / speed - time.monotonic()))
            live.update(frame(playbacks, now_s, width, min(height - 1, 30)), refresh=True)


def _outcome(console: Console, playbacks: list[Playback]) -> None:
    """Print the outcome of both, a line each, and whether their texts are equal."""
    from rich.text import Text

    from benchctl.experiments.race.playback import NO_VERDICT
    from benchctl.text import one_line

    for playback in playbacks:
        name = f"{one_line(playback.arm)} ({one_line(playback.setting)})"
        accepted = f"; {playback.acceptance}" if playback.acceptance else ""
        console.print(Text(f"{name}: {playback.status(playback.end_s)}{accepted}"))
    same = len({playback.text for playback in playbacks}) == 1
    console.print(Text("Both answers are the same text." if same else "The answers differ."))
    console.print(Text(NO_VERDICT, "dim"))
