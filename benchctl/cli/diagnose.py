"""`benchctl diagnose`: estimate what a draft is worth before it is built or deployed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from benchctl.cli import options
from benchctl.errors import EngineError, UsageError
from benchctl.reports.json_output import print_json

CORPUS_LENGTH = 200_000
"""Characters of a corpus that are read at most."""


def diagnose(
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
    count: options.Count = 24,
    tokens: Annotated[int, typer.Option(min=10, metavar="N", help="Longest answer, in tokens.")] = 64,
    stride: Annotated[int, typer.Option(min=1, metavar="N", help="Parts draft from every Nth token.")] = 4,
    keep: options.Keep = None,
    corpus: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Take a part's perplexity on this text.", dir_okay=False),
    ] = None,
    out: options.Out = Path("results"),
    offline: Annotated[
        bool, typer.Option("--offline", help="Judge a diagnosis (its folder) again; start no engine.")
    ] = False,
    engine_binary: options.EngineBinary = None,
    models_dir: options.ModelsDir = None,
    trust_recipe: options.TrustRecipe = False,
    quiet: options.Quiet = False,
    as_json: options.JsonForTables = False,
) -> None:
    """What is a draft worth? From its token probabilities.

    The target answers prompts, greedily and at temperature 0.6; draft and target score the answers token by token.
    Shows how often the draft is right for 1, 2, 4 and 8 tokens in a row, the cost of a draft step, the predicted
    speed-up, and what the newest run measured. Arms that differ only in depth are one draft. Scores are saved in
    diagnosis.json. Exits with 3 where no draft could be scored.
    """
    from benchctl.data.traces import DiagnosisSettings
    from benchctl.experiments.diagnose.judge import agreement_of, judge_diagnosis
    from benchctl.experiments.diagnose.session import diagnose as run_diagnosis
    from benchctl.experiments.diagnose.stored import read_diagnosis
    from benchctl.experiments.diagnose.tables import print_diagnosis
    from benchctl.measurement.plan import keep_matching
    from benchctl.measurement.progress import shown_steps
    from benchctl.measurement.requested import requested_recipe
    from benchctl.measurement.run import signals_interrupt
    from benchctl.recipes.from_options import RecipeOptions

    if offline:
        folder = Path((subject or [""])[0])
        try:
            diagnosis = read_diagnosis(folder)
        except (FileNotFoundError, NotADirectoryError):
            fix = "Name the folder that holds diagnosis.json."
            raise UsageError("There is no diagnosis here.", where=str(folder), fix=fix) from None
    else:
        named = RecipeOptions(subject, target, draft, engine, types, depth, sweep, prompts, limit, settings)
        context = requested_recipe(named, out, trust=trust_recipe)
        sizes = DiagnosisSettings(tokens=tokens, temperature=0.6, depth=8, stride=stride, top=100)
        text = _text_of(corpus)
        with shown_steps(quiet=quiet or as_json) as show, signals_interrupt():
            recipe = keep_matching(context.recipe, keep or [])
            prepared = context.prepare(engine_binary, models_dir, lambda note: show(note, 0, 0), recipe)
            folder, diagnosis = run_diagnosis(prepared, sizes, count, text, out, ["benchctl", *sys.argv[1:]], show)
    drafts = judge_diagnosis(diagnosis)
    agreement = agreement_of(folder, diagnosis, drafts)
    if as_json:
        document = {
            "folder": str(folder),
            "status": diagnosis.status,
            "settings": diagnosis.settings.model_dump(),
            "drafts": [draft.model_dump() for draft in drafts],
            "agreement": agreement and agreement.model_dump(),
            "not_reached": diagnosis.not_reached,
        }
        print_json("diagnose", document)
    elif not quiet:
        print_diagnosis(folder, diagnosis, drafts, agreement)
    failed = next((draft.error for draft in drafts if draft.error), None)
    if failed and not any(draft.acceptance for draft in drafts):
        message, fix = f"No draft could be scored: {failed}", "Read the engine's logs there."
        raise EngineError(message, kind="crash", where=str(folder), fix=fix)


def _text_of(corpus: Path | None) -> str:
    """Return as much of a text as is read at most. Raises UsageError."""
    if corpus is None:
        return ""
    try:
        with corpus.open(encoding="utf-8") as text:
            return text.read(CORPUS_LENGTH)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"This text cannot be read: {error}.", where=f"--corpus {corpus}") from None
