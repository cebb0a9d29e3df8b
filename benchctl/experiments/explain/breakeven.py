"""`benchctl breakeven`: the acceptance that each draft depth needs on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchctl.cli.json_output import print_json
from benchctl.cli.options import Blocks, EngineBinary, Limit, ModelsDir, Quiet, Settings, TrustRecipe
from benchctl.errors import StorageError, UsageError
from benchctl.experiments.explain.predict import read_depths

if TYPE_CHECKING:
    from benchctl.analysis.results import Analysis
    from benchctl.data.store import RunData
    from benchctl.experiments.explain.curve import BreakEven, Reference

REFERENCE_COLUMNS = ("model", "mode", "depth", "acceptance_length")
_MOST_REFERENCES = 10_000


def breakeven(
    what: Annotated[
        str,
        typer.Argument(metavar="RECIPE|RUN", help="A recipe to measure, or an earlier run of this command to print."),
    ],
    depth: Annotated[
        str | None,
        typer.Option(metavar="K1,K2", help="Draft depths: 2,4,8 or 1:8.", show_default="those of the recipe's arms"),
    ] = None,
    acceptance: Annotated[
        str, typer.Option(metavar="A1,A2", help="Acceptance probabilities of one draft token, 0 to 1.")
    ] = "0,0.5,0.8,1",
    reference: Annotated[
        Path | None,
        typer.Option(metavar="CSV", help="Acceptance lengths to show as points: model,mode,depth,acceptance_length."),
    ] = None,
    write_reference: Annotated[
        Path | None, typer.Option(metavar="CSV", help="Write the real drafts' acceptance lengths here, in that form.")
    ] = None,
    blocks: Blocks = None,
    limit: Limit = None,
    settings: Settings = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where results/ and reports/ are written, and runs are found.")
    ] = Path(),
    engine_binary: EngineBinary = None,
    models_dir: ModelsDir = None,
    trust_recipe: TrustRecipe = False,
    quiet: Quiet = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document at the end.")] = False,
) -> None:
    """Measure the speed-up on this engine, model pair and machine as a function of acceptance and draft depth.

    Beside the recipe's own arms, synthetic arms are measured: the engine accepts their draft tokens at random with a
    given probability (llama-server, vLLM). Their text is not a model's output and is marked so everywhere. The real
    drafts are points on the curve; where it crosses 1, a depth breaks even.
    """
    from benchctl.data.store import MANIFEST, open_run, resolve_run
    from benchctl.recipes.speculation import MAX_DEPTH

    results, reports = out / "results", out / "reports"
    levels = _numbers(acceptance, "--acceptance")
    depths = [] if depth is None else read_depths(depth, MAX_DEPTH)
    references = [] if reference is None else read_references(reference)
    if (Path(what) / MANIFEST).is_file() or (results / what).is_dir():
        folder = resolve_run(what, results)
    else:
        folder = _measure(what, depths, levels, blocks, limit, settings or [], results, engine_binary, models_dir,
                          trusted=trust_recipe, quiet=quiet or as_json)  # fmt: skip
    run = open_run(folder)
    _show(run, references, write_reference, reports, as_json=as_json, quiet=quiet)


def _measure(
    recipe: str,
    depths: list[int],
    levels: list[float],
    blocks: str | None,
    limit: int | None,
    settings: list[str],
    results: Path,
    binary: str | None,
    models_dir: Path | None,
    *,
    trusted: bool,
    quiet: bool,
) -> Path:
    import sys

    from rich.console import Console

    from benchctl.experiments.explain.curve import with_synthetic_arms
    from benchctl.measure.plan import with_blocks
    from benchctl.measure.prepare import prepare, probed_engine
    from benchctl.measure.progress import progress_for
    from benchctl.measure.run import signals_interrupt, start_run
    from benchctl.permissions import settle
    from benchctl.recipes.from_options import parse_settings, prompt_settings
    from benchctl.recipes.load import find_recipe, load_recipe

    file = find_recipe(recipe)
    overrides = parse_settings(settings) | prompt_settings(None, limit)
    loaded = load_recipe(file, overrides=overrides)
    trusted = settle(loaded, file.parent, file, typed=overrides, trusted=trusted)
    extended = with_synthetic_arms(loaded, depths, levels)
    if blocks:
        extended = with_blocks(extended, blocks)
    progress = progress_for(Console(stderr=True), quiet=quiet)
    with signals_interrupt():
        _, found, _ = probed_engine(loaded, file.parent, binary, trusted=trusted)
        if found.details.get("has_synthetic") is False:
            raise UsageError(
                f"This {found.kind} has no synthetic acceptance, so the curve cannot be measured.",
                where=str(found.binary),
                fix="Use a newer build; or predict it from numbers: benchctl predict --alpha 0.8 --cost 0.1",
            )
        prepared = prepare(
            extended,
            recipe_folder=file.parent,
            binary=binary,
            models_dir=models_dir,
            notice=progress.note,
            trusted=trusted,
        )
    return start_run(prepared, results, progress, ["benchctl", *sys.argv[1:]])


def _show(
    run: RunData, references: list[Reference], write_to: Path | None, reports: Path, *, as_json: bool, quiet: bool
) -> None:
    from benchctl.experiments.explain.curve import find_breakeven, is_recurrent, measured_arms
    from benchctl.lossless.analysed import analyse_run
    from benchctl.reports.write import report_folder, write_report

    analysis = analyse_run(run)
    found = find_breakeven(measured_arms(analysis, run.manifest), references, recurrent=is_recurrent(run.manifest))
    if found is None:
        raise UsageError(
            "This run has no synthetic arms.",
            where=str(run.folder),
            fix="Measure it from a recipe: benchctl breakeven recipe.yaml",
        )
    analysis = analysis.model_copy(update={"breakeven": found.model_dump()})
    if write_to is not None:
        _write_references(write_to, run, analysis)
    files = write_report(run, analysis, report_folder(analysis, reports))
    if as_json:
        document = {"run": str(run.folder), "page": str(files.page), **found.model_dump()}
        print_json("breakeven", document)
    elif not quiet:
        _print(found, files.page)


def _print(found: BreakEven, page: Path) -> None:
    from rich.text import Text

    from benchctl.experiments.explain.section import NOT_AN_OUTPUT, needs_table, points_table, statements
    from benchctl.reports.terminal import print_table, table_console
    from benchctl.text import one_line

    console = table_console()
    for table in (points_table(found), needs_table(found)):
        console.print(Text(f"\n{table.title}", "bold"))
        print_table(console, table)
    console.print()
    for sentence in statements(found):
        console.print(Text(f"- {one_line(sentence, 400)}"))
    console.print(Text(NOT_AN_OUTPUT, "yellow"))
    console.print(Text(f"Report: {one_line(str(page))}"), soft_wrap=True)


def read_references(file: Path) -> list[Reference]:
    """Read acceptance lengths. Raises UsageError that names the line, StorageError for a file that cannot be read."""
    import csv
    import io

    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise StorageError(f"The reference cannot be read: {error.strerror}.", where=str(file)) from None
    except UnicodeDecodeError:
        raise UsageError("The reference is not UTF-8 text.", where=str(file)) from None
    rows = csv.DictReader(io.StringIO(text))
    lacking = [name for name in REFERENCE_COLUMNS if name not in (rows.fieldnames or [])]
    if lacking:
        raise UsageError(
            f"The reference has no column {' and no column '.join(lacking)}.",
            where=f"{file}:1",
            fix=f"Its first line names the columns: {','.join(REFERENCE_COLUMNS)}",
        )
    found = [_reference({name: row[name] for name in REFERENCE_COLUMNS}, f"{file}:{rows.line_num}") for row in rows]
    if len(found) > _MOST_REFERENCES:
        raise UsageError(f"The reference has more than {_MOST_REFERENCES} rows.", where=str(file))
    return found


def _reference(row: dict[str, str | None], where: str) -> Reference:
    from pydantic import ValidationError

    from benchctl.experiments.explain.curve import Reference

    try:
        found = Reference.model_validate({name: text or "" for name, text in row.items()})
    except ValidationError:
        raise UsageError("depth is a whole number, acceptance_length a number.", where=where) from None
    depth, length = found.depth, found.acceptance_length
    if not (depth >= 1 and 1 <= length <= depth + 1):
        raise UsageError(
            f"An acceptance length at depth {depth} lies between 1 and {depth + 1}; this is {length:g}.", where=where
        )
    return found


def _write_references(file: Path, run: RunData, analysis: Analysis) -> None:
    from benchctl.experiments.explain.section import acceptance_lengths

    try:
        file.write_text(acceptance_lengths(run, analysis), encoding="utf-8")
    except OSError as error:
        raise StorageError(f"The reference cannot be written: {error.strerror}.", where=str(file)) from None


def _numbers(text: str, option: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise UsageError("Expected numbers with commas between them.", where=option, fix="Write 0,0.5,0.8,1.") from None
