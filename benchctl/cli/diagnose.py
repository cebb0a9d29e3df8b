"""`benchctl diagnose`: is a pair or a model worth speculating with, before anything is built?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchctl.cli.options import JsonForTables, Quiet

if TYPE_CHECKING:
    from benchctl.analysis.diagnosis import DraftDiagnosis
    from benchctl.data.diagnosis import Diagnosis
    from benchctl.measure.display import Display


def diagnose(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or the name of a shipped one (benchctl recipes list).")],
    prompts: Annotated[int, typer.Option(min=1, help="How many prompts, of the tasks in turn.")] = 24,
    tokens: Annotated[int, typer.Option(min=10, help="Longest answer that is looked at.")] = 64,
    stride: Annotated[
        int, typer.Option(min=1, help="A part of the target begins to draft at every so many tokens.")
    ] = 4,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where results are kept.")] = Path("results"),
    engine_binary: Annotated[
        str | None, typer.Option(metavar="PATH", help="The engine's binary, instead of the recipe's.")
    ] = None,
    models_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Look for model files here first.", file_okay=False)
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="RECIPE is the folder of a diagnosis: judge it again, start no engine.")
    ] = False,
    trust_recipe: Annotated[
        bool, typer.Option("--trust-recipe", help="Let the recipe open the machine; see `run`.")
    ] = False,
    quiet: Quiet = False,
    as_json: JsonForTables = False,
) -> None:
    """Tell what every draft of a recipe would be worth, from what draft and target expect of the target's own answers.

    The target answers some prompts, greedily and at temperature 0.6. Then draft and target read these answers, token by
    token: how far apart their expectations are, how likely one draft token is accepted, and all of 2, 4 or 8 in a row,
    with 95 % intervals over prompts; for a part of the target what removing it does to perplexity; what a draft step
    costs, and the speed-up that all this predicts. Depths in the recipe do not matter. Everything that was read is kept
    in diagnosis.json.

    Exits with 0 whatever is found, with 3 where no draft could be read.
    """
    import json
    import sys

    from rich.console import Console

    from benchctl.analysis.diagnosis import judge_diagnosis
    from benchctl.data.diagnosis import read_diagnosis
    from benchctl.errors import EngineError, UsageError
    from benchctl.measure.diagnose import DiagnosisPlan
    from benchctl.measure.diagnose import diagnose as run_diagnosis
    from benchctl.measure.display import Display
    from benchctl.measure.prepare import prepare
    from benchctl.measure.run import signals_interrupt
    from benchctl.recipes.load import find_recipe, load_recipe

    if offline:
        folder = Path(recipe)
        try:
            found = read_diagnosis(folder)
        except (FileNotFoundError, NotADirectoryError):
            raise UsageError(
                "There is no diagnosis here.", where=recipe, fix="Name the folder that holds diagnosis.json."
            ) from None
    else:
        file = find_recipe(recipe)
        display = Display(Console(stderr=True, highlight=False, quiet=quiet or as_json))
        display.start()
        try:
            with signals_interrupt():
                prepared = prepare(
                    load_recipe(file),
                    recipe_folder=file.parent,
                    binary=engine_binary,
                    models_dir=models_dir,
                    notice=display.note,
                    trusted=trust_recipe,
                )
            plan = DiagnosisPlan(prompts=prompts, tokens=tokens, stride=stride)
            folder, found = run_diagnosis(prepared, plan, out, ["benchctl", *sys.argv[1:]], _progress(display))
        finally:
            display.stop()
    drafts = judge_diagnosis(found)
    if as_json:
        typer.echo(json.dumps(_document(folder, found, drafts), ensure_ascii=True))
    elif not quiet:
        _show(folder, found, drafts)
    failed = [draft for draft in drafts if draft.error]
    if failed and not any(draft.acceptance for draft in drafts):
        raise EngineError(
            f"No draft could be read: {failed[0].error}",
            kind="crash",
            where=str(folder),
            fix="Read the engine's logs there.",
        )


def _progress(display: Display) -> Callable[[str, int, int], None]:
    """Show what is being done: a line where something else begins, and on a terminal how far it is."""
    from rich.text import Text

    doing = ""

    def update(what: str, done: int, total: int) -> None:
        nonlocal doing
        if what != doing:
            display.line(Text(f"{what} …"))
            doing = what
        display.update(f"{what}: {done} of {total}")

    return update


def _show(folder: Path, found: Diagnosis, drafts: list[DraftDiagnosis]) -> None:
    """Print the tables, and what was not reached; names come from recipes and are untrusted text."""
    from rich.text import Text

    from benchctl.reports.tables.diagnosis import acceptance_table, cost_table, payoff_table
    from benchctl.reports.terminal import print_table, table_console
    from benchctl.text import one_line

    console = table_console()
    settings = found.settings
    console.print(
        Text(
            f"{one_line(found.manifest.recipe_name)}: {len(found.manifest.prompts)} prompts, answers of at most "
            f"{settings.tokens} tokens, greedy and at temperature {settings.temperature:g}\n"
        )
    )
    for table in (acceptance_table(drafts), cost_table(drafts), payoff_table(drafts)):
        if table.rows:
            console.print(Text(table.title, style="bold"))
            print_table(console, table)
            console.print(Text(table.explanation + "\n", style="dim"))
    for draft in drafts:
        name = one_line(draft.draft)
        if draft.what:
            told = "; ".join(f"{key} {value}" for key, value in draft.what.items())
            console.print(Text(f"{name}: {one_line(told, 300)}", style="dim"))
        if not draft.exact:
            console.print(
                Text(
                    f"{name}: of each model the {settings.top} likeliest tokens are told. Acceptances are the least "
                    f"that they can be; beyond those tokens lie at most {100 * draft.truncated:.2g} % of a sampled "
                    "distribution. Perplexity with a part removed is told by the engine transformers alone.",
                    style="dim",
                )
            )
        if draft.error:
            console.print(Text(f"{name} could not be read: {one_line(draft.error, 400)}", style="yellow"))
    for arm, reason in found.not_reached.items():
        console.print(Text(f"{one_line(arm)} is not diagnosed: {one_line(reason, 300)}.", style="yellow"))
    console.print(Text(f"Kept: {one_line(str(folder))}"), soft_wrap=True)


def _document(folder: Path, found: Diagnosis, drafts: list[DraftDiagnosis]) -> dict[str, object]:
    from benchctl.analysis.diagnosis import calibration_of

    return {
        "schema": 1,
        "folder": str(folder),
        "status": found.status,
        "settings": found.settings.model_dump(),
        "drafts": [one.model_dump() | {"calibration": calibration_of(one)} for one in drafts],
        "not_reached": found.not_reached,
    }
