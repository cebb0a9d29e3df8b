"""`benchctl compare --replicate`: measure the work of another's run here, and say whether its claims agree."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchctl.cli.json_output import print_json
from benchctl.data.store import RunData, open_run, resolve_run
from benchctl.errors import GateError, UsageError

if TYPE_CHECKING:
    from benchctl.analysis.comparison.replication import ReplicatedClaim, Replication
    from benchctl.data.manifest import ModelIdentity
    from benchctl.measure.prepare import Prepared
    from benchctl.measure.requested import Standing

UNITS = {"decode rate": ", tok/s", "ttft": ", s", "memory": ", bytes", "energy": ", J a token"}


@dataclass(frozen=True)
class Here:
    """What the command line says of this machine."""

    results: Path
    target: str | None
    draft: str | None
    models_dir: Path | None
    binary: str | None
    trusted: bool
    quiet: bool


def replicate(theirs: str, measured_by: str | None, arms: Sequence[str], here: Here, *, as_json: bool) -> None:
    """Compare a run with the same work here. Raises GateError where a claim differs, or none could be compared.

    `measured_by`: a run that was made here already, or a recipe; `None`: the recipe of their run is measured.
    """
    from benchctl.analysis.comparison.compare import compare_runs
    from benchctl.analysis.comparison.replication import replication_of, replication_of_imported
    from benchctl.lossless.analysed import analyse_run, judge

    run = open_run(resolve_run(theirs, here.results))
    own = _own_run(run, measured_by, arms, here)
    if run.manifest is None:
        found = replication_of_imported(run.records, analyse_run(own), str(run.folder), str(own.folder))
    else:
        found = replication_of(compare_runs(run, own, judge=judge, arms=arms or None))
    agree, differ, untold = (found.those(outcome) for outcome in ("agrees", "differs", "cannot tell"))
    if as_json:
        print_json("compare --replicate", {**found.model_dump(), "agrees": bool(agree) and not (differ or untold)})
    elif not here.quiet:
        _print(found)
    if differ:
        named = ", ".join(f"{claim.arm} {claim.what}" for claim in differ[:6])
        raise GateError(f"{len(differ)} of {len(agree) + len(differ)} claims differ here: {named}.", where=theirs)
    if untold:
        raise GateError(f"Of {len(untold)} claims nothing can be told.", where=theirs, fix=untold[0].why)
    if not agree:
        raise GateError("No claim could be compared.", where=theirs, fix=found.claims[0].why if found.claims else None)


def _own_run(run: RunData, measured_by: str | None, arms: Sequence[str], here: Here) -> RunData:
    """Return the run of the same work that was made here, measuring it where there is none."""
    from benchctl.measure.requested import requested_recipe
    from benchctl.recipes.load import shipped_recipes

    if measured_by is None:
        if run.manifest is None:
            raise UsageError(
                "These records have no recipe, so what they measured is not known.",
                where=str(run.folder),
                fix=f"Write a recipe of the same work and name it: benchctl compare --replicate {run.folder} RECIPE",
            )
        return _measured(run, _their_recipe(run, here), arms, here)
    if not (Path(measured_by).suffix in (".yaml", ".yml") or measured_by in shipped_recipes()):
        return open_run(resolve_run(measured_by, here.results))
    named = {"target": here.target, "draft": here.draft}
    settings = [f"models.{role}.source={source}" for role, source in named.items() if source is not None]
    standing = requested_recipe(measured_by, here.results, settings=settings, trust=here.trusted)
    return _measured(run, standing, arms, here)


def _their_recipe(run: RunData, here: Here) -> Standing:
    """Return the recipe of a run with the models as they lie here. Raises UsageError where it was changed."""
    from benchctl.measure.requested import recipe_must_be_unchanged, standing_of
    from benchctl.permissions import settle
    from benchctl.recipes.saved import with_settings

    manifest = run.manifest
    assert manifest is not None
    recipe_must_be_unchanged(manifest, run.folder)
    standing = standing_of(run, trusted=here.trusted)
    settings: dict[str, Any] = {}
    if not manifest.setups:
        for role, given, model in (
            ("target", here.target, manifest.target),
            ("draft", here.draft, manifest.draft),
        ):
            source = given or (None if model is None else _by_hash(model, here.models_dir))
            if model is not None and source is not None:
                settings[f"models.{role}"] = {"source": str(Path(source).absolute()), "quantize": None}
    binary = getattr(standing.recipe.engine, "binary", None)
    if binary is not None and "/" in binary and not Path(binary).expanduser().is_file():
        settings["engine.binary"] = None  # theirs lies elsewhere here
    recipe = with_settings(standing.recipe, settings)
    if settings:
        settle(recipe, standing.folder, typed=[key for key in settings if key != "engine.binary"])
    return replace(standing, recipe=recipe)


def _by_hash(model: ModelIdentity, models_dir: Path | None) -> Path | None:
    """Return the local GGUF file of a model, by size and SHA-256; `None` where there is none, or of several files."""
    from benchctl.models.files import file_sha256

    if len(model.files) != 1:
        return None
    (wanted,) = model.files
    for path in _model_files(models_dir):
        with suppress(OSError):
            if path.stat().st_size == wanted.size and file_sha256(path) == wanted.sha256:
                return path
    return None


def _model_files(models_dir: Path | None) -> Iterator[Path]:
    """Yield the GGUF files of the folders that models usually lie in."""
    from huggingface_hub.constants import HF_HUB_CACHE

    from benchctl.paths import cache_folder

    for folder in (models_dir, Path(HF_HUB_CACHE), cache_folder()):
        if folder is not None:
            yield from sorted(folder.expanduser().rglob("*.gguf"))
    for folder in (Path.cwd(), Path.cwd() / "models", Path.home() / "models"):
        yield from sorted(folder.glob("*.gguf"))


def _measured(run: RunData, standing: Standing, arms: Sequence[str], here: Here) -> RunData:
    """Measure a recipe, verify its output, and return the run. Raises UsageError where it is other work than theirs."""
    from rich.console import Console

    from benchctl.lossless.session import explain
    from benchctl.measure.plan import keep_only, with_second_baseline
    from benchctl.measure.progress import progress_for
    from benchctl.measure.run import signals_interrupt, start_run

    progress = progress_for(Console(stderr=True), quiet=here.quiet)
    recipe = with_second_baseline(keep_only(standing.recipe, arms) if arms else standing.recipe)
    with signals_interrupt():
        try:
            progress.waiting("checking the engine, the models and the prompts")
            prepared = standing.prepare(here.binary, here.models_dir, progress.note, recipe)
        except UsageError as error:
            if (error.where or "").startswith("models."):
                error.fix = f"{error.fix or ''} Or name the files: --target FILE --draft FILE".strip()
            raise
        finally:
            progress.end()
    _require_same(run, prepared)
    own = open_run(start_run(prepared, here.results, progress, ["benchctl", *sys.argv[1:]]))
    explain(
        own,
        baseline=None,
        arms=None,
        depth="full",
        binary=here.binary,
        models_dir=here.models_dir,
        trusted=standing.trusted,
        quiet=here.quiet,
    )
    return open_run(own.folder)


def _require_same(run: RunData, prepared: Prepared) -> None:
    """Raise UsageError where what is about to be measured is not what they measured."""
    from benchctl.analysis.comparison.workload import OtherModelsError, require_same_workload
    from benchctl.measure.prepare import new_manifest

    if run.manifest is None:
        return
    try:
        require_same_workload(run, replace(run, manifest=new_manifest(prepared, []), folder=Path("here")))
    except OtherModelsError as error:
        raise UsageError(error.what, where=error.where, fix="Name their files: --target FILE --draft FILE") from None


def _print(found: Replication) -> None:
    from rich.text import Text

    from benchctl.reports import numbers
    from benchctl.reports.columns import Column, Name, Table, Tone, interval
    from benchctl.reports.terminal import print_table, table_console
    from benchctl.text import one_line

    tones: dict[str, Tone] = {"agrees": "good", "differs": "bad"}

    def shown(value: float | str | None) -> str:
        return numbers.ABSENT if value is None else value if isinstance(value, str) else f"{value:.4g}"

    columns: tuple[Column[ReplicatedClaim], ...] = (
        Column("arm", lambda claim: claim.arm, cell=lambda claim: Name(claim.arm), heads=True),
        Column("claim", lambda claim: claim.what, cell=lambda claim: f"{claim.what}{UNITS.get(claim.what, '')}"),
        Column("theirs", lambda claim: claim.theirs, cell=lambda claim: shown(claim.theirs), align="right"),
        Column("here", lambda claim: claim.here, cell=lambda claim: shown(claim.here), align="right"),
        interval("here/theirs, 95 %", lambda claim: claim.interval, optional=True),
        Column("outcome", lambda claim: claim.outcome, tone=lambda claim: tones.get(claim.outcome, "open")),
    )
    console = table_console()
    console.print(Text(one_line(f"Theirs {found.theirs}, here {found.here}")))
    print_table(console, Table("replicated", "Replicated", columns, found.claims))
    reasons: Mapping[str, list[str]] = {claim.why: [] for claim in found.claims if claim.why}
    for claim in found.claims:
        if claim.why:
            reasons[claim.why].append(f"{claim.arm} {claim.what}")
    for why, claims in reasons.items():
        console.print(Text(one_line(f"{', '.join(claims)}: {why}", 400), "yellow"), soft_wrap=True)
    for note in found.notes:
        console.print(Text(one_line(note, 400)), soft_wrap=True)
