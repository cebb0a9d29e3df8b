"""`benchctl diagnose`: estimate what a draft is worth before it is built or deployed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchctl.cli.json_output import print_json
from benchctl.cli.options import JsonForTables, Quiet

if TYPE_CHECKING:
    from benchctl.experiments.diagnose.judge import DraftDiagnosis
    from benchctl.experiments.diagnose.stored import Diagnosis
    from benchctl.measure.display import Display


def diagnose(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or the name of a shipped one (benchctl recipes list).")],
    prompts: Annotated[int, typer.Option(min=1, help="How many prompts, taken from the tasks in turn.")] = 24,
    tokens: Annotated[int, typer.Option(min=10, help="Longest answer, in tokens.")] = 64,
    stride: Annotated[
        int, typer.Option(min=1, help="A draft that is a part of the target starts at every STRIDE-th token.")
    ] = 4,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where results are saved.")] = Path("results"),
    engine_binary: Annotated[
        str | None, typer.Option(metavar="PATH", help="The engine's binary, instead of the recipe's.")
    ] = None,
    models_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Look for model files here first.", file_okay=False)
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="RECIPE is the folder of a diagnosis: assess it again without an engine.")
    ] = False,
    trust_recipe: Annotated[
        bool, typer.Option("--trust-recipe", help="Accept a recipe that opens the machine; see `run`.")
    ] = False,
    quiet: Quiet = False,
    as_json: JsonForTables = False,
) -> None:
    """Estimate the acceptance and speed-up of every draft of a recipe from its token probabilities.

    The target answers some prompts, greedily and at temperature 0.6. Then draft and target score these answers, token
    by token. The result: the divergence of their distributions; the probability that one draft token is accepted, and
    that 2, 4 or 8 in a row are, with 95 % intervals over prompts; for a part of the target, the perplexity without it;
    the cost of a draft step; and the predicted speed-up. Depths in the recipe do not matter. All scores are saved in
    diagnosis.json.

    Exits with 0 whatever is found, with 3 where no draft could be scored.
    """
    import sys

    from rich.console import Console

    from benchctl.errors import EngineError, UsageError
    from benchctl.experiments.diagnose.judge import judge_diagnosis
    from benchctl.experiments.diagnose.session import DiagnosisPlan
    from benchctl.experiments.diagnose.session import diagnose as run_diagnosis
    from benchctl.experiments.diagnose.stored import read_diagnosis
    from benchctl.measure.display import Display
    from benchctl.measure.prepare import prepare
    from benchctl.measure.run import signals_interrupt
    from benchctl.permissions import settle
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
        loaded = load_recipe(file)
        display = Display(Console(stderr=True, highlight=False, quiet=quiet or as_json))
        display.start()
        try:
            with signals_interrupt():
                prepared = prepare(
                    loaded,
                    recipe_folder=file.parent,
                    binary=engine_binary,
                    models_dir=models_dir,
                    notice=display.note,
                    trusted=settle(loaded, file.parent, file, trusted=trust_recipe),
                )
            plan = DiagnosisPlan(prompts=prompts, tokens=tokens, stride=stride)
            folder, found = run_diagnosis(prepared, plan, out, ["benchctl", *sys.argv[1:]], _progress(display))
        finally:
            display.stop()
    drafts = judge_diagnosis(found)
    if as_json:
        print_json("diagnose", _document(folder, found, drafts))
    elif not quiet:
        _show(folder, found, drafts)
    failed = [draft for draft in drafts if draft.error]
    if failed and not any(draft.acceptance for draft in drafts):
        raise EngineError(
            f"No draft could be scored: {failed[0].error}",
            kind="crash",
            where=str(folder),
            fix="Read the engine's logs there.",
        )


def _progress(display: Display) -> Callable[[str, int, int], None]:
    """Show the current step: a line for each step, and on a terminal its progress."""
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
    """Print the tables, and which drafts were not diagnosed; names come from recipes and are untrusted text."""
    from rich.text import Text

    from benchctl.experiments.diagnose.tables import acceptance_table, cost_table, payoff_table
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
            details = "; ".join(f"{key} {value}" for key, value in draft.what.items())
            console.print(Text(f"{name}: {one_line(details, 300)}", style="dim"))
        if not draft.exact:
            console.print(
                Text(
                    f"{name}: the engine reports only the {settings.top} likeliest tokens of each model. Acceptances "
                    f"are lower bounds; at most {100 * draft.truncated:.2g} % of a sampled distribution lies beyond "
                    "those tokens. Perplexity with a part removed is reported by the transformers engine only.",
                    style="dim",
                )
            )
        if draft.error:
            console.print(Text(f"{name} could not be scored: {one_line(draft.error, 400)}", style="yellow"))
    for arm, reason in found.not_reached.items():
        console.print(Text(f"{one_line(arm)} is not diagnosed: {one_line(reason, 300)}.", style="yellow"))
    console.print(Text(f"Saved: {one_line(str(folder))}"), soft_wrap=True)


def _document(folder: Path, found: Diagnosis, drafts: list[DraftDiagnosis]) -> dict[str, object]:
    from benchctl.experiments.diagnose.judge import calibration_of

    return {
        "folder": str(folder),
        "status": found.status,
        "settings": found.settings.model_dump(),
        "drafts": [draft.model_dump() | {"calibration": calibration_of(draft)} for draft in drafts],
        "not_reached": found.not_reached,
    }
