"""Starting and resuming runs: what `benchctl run` does once the options are read."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from pydantic import ValidationError

from benchctl.data.identity import workload_sha256
from benchctl.data.manifest import Manifest
from benchctl.data.store import MANIFEST, RunData, open_run
from benchctl.data.writer import LOGS, RunWriter
from benchctl.errors import GateError, StorageError, UsageError
from benchctl.measure.auto_blocks import blocks_as_needed
from benchctl.measure.plan import earlier_processes, make_plan, measured, unclosed
from benchctl.measure.preflight.look import preflight, stop_if_strict, why_not_asked
from benchctl.measure.prepare import Prepared, files_of, new_manifest
from benchctl.measure.progress import RunProgress
from benchctl.measure.recording import now
from benchctl.measure.runner import Runner
from benchctl.recipes.schema import AutoBlocks, Recipe
from benchctl.recipes.stored import stored_recipe


def start_run(
    prepared: Prepared,
    out: Path,
    progress: RunProgress,
    command: list[str],
) -> Path:
    """Run a recipe into a new folder below `out` and return that folder.

    Raises GateError where the recipe is strict and the preflight finds something, KeyboardInterrupt when interrupted,
    StorageError when the folder cannot be written; what was measured until then is kept and can be resumed.
    """
    manifest = new_manifest(prepared, command)
    folder = out / prepared.recipe.name / manifest.run
    with RunWriter(folder, manifest) as writer:
        progress.note(f"Run folder: {folder}")
        for warning in manifest.warnings:
            progress.note(f"warning: {warning}")
        _execute(prepared, writer, None, progress)
    return folder


def recipe_of(run: RunData) -> Recipe:
    """Return the recipe that a run was started with, arms and overrides as they were."""
    if run.manifest is None:
        raise UsageError("Only a run of benchctl can be resumed.", where=str(run.folder))
    try:
        return stored_recipe(run.manifest.recipe)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in ("recipe", *first["loc"]))
        raise StorageError(
            f"The run's recipe is not understood: {key}: {first['msg']}.",
            where=str(run.folder / MANIFEST),
            fix="Another version of benchctl wrote it: use that one, or start a new run.",
        ) from None


def recipe_folder_of(run: RunData) -> Path:
    """Return the folder that the recipe's relative paths start from; here, for a run that does not tell."""
    folder = run.manifest.recipe_folder if run.manifest else None
    return Path.cwd() if folder is None else Path(folder).expanduser()


def resume_run(
    prepared: Prepared,
    run: RunData,
    progress: RunProgress,
) -> Path:
    """Measure what a run lacks, and nothing twice. Raises UsageError when engine, models or prompts have changed."""
    manifest = run.manifest
    if manifest is None:
        raise UsageError("Only a run of benchctl can be resumed.", where=str(run.folder))
    _unchanged(prepared, manifest, run.folder)
    with RunWriter(run.folder, manifest) as writer:
        earlier = open_run(run.folder)  # as it is now that nobody else writes
        done = measured(earlier, len(prepared.prompts))
        progress.note(f"Run folder: {run.folder} ({len(done)} measurements are there already)")
        manifest.status = "started"
        _execute(prepared, writer, earlier, progress)
    return run.folder


def _unchanged(prepared: Prepared, manifest: Manifest, folder: Path) -> None:
    """A run is one experiment: what is measured later must be the same thing."""
    workload = workload_sha256(prepared.recipe, manifest.prompts, prepared.models)
    suite = prepared.suite.sha256 == manifest.suite.get("sha256")
    found, recorded = prepared.capabilities.details, manifest.engine.details
    engine = all(found.get(part) == recorded.get(part) for part in ("sha256", "siblings"))
    changed = [
        what
        for what, same in (
            ("the models or the sampling", workload == manifest.workload_sha256),
            ("the prompts", suite),
            ("the engine's binary or its libraries", engine),
        )
        if not same
    ]
    if changed:
        raise UsageError(
            f"Since this run was started, {' and '.join(changed)} changed.",
            where=str(folder),
            fix="Bring back what it was started with, or start a new run.",
        )


def _execute(
    prepared: Prepared,
    writer: RunWriter,
    earlier: RunData | None,
    progress: RunProgress,
) -> None:
    manifest, rule = writer.manifest, prepared.recipe.blocks
    done = measured(earlier, len(prepared.prompts)) if earlier else set()
    opened = unclosed(earlier, done) if earlier else set()
    runner = Runner(
        prepared.recipe,
        prepared.engine,
        prepared.launches,
        writer,
        files_of(prepared),
        earlier_processes(earlier.records) if earlier else None,
    )
    sure = range(max(prepared.recipe.first_blocks, manifest.blocks))
    plan = make_plan(prepared.recipe, prepared.prompts, done, sure, unclosed=opened, ordering=manifest.ordering)
    batches = iter([plan])
    if isinstance(rule, AutoBlocks):
        batches = blocks_as_needed(rule, prepared, writer, plan, progress)
    try:
        with signals_interrupt():
            _preflight(prepared, writer, progress)
            progress.begin(plan, open_ended=isinstance(rule, AutoBlocks))
            for cells in batches:
                began = time.perf_counter()
                try:
                    runner.run(cells, progress)
                finally:
                    manifest.spent_s += time.perf_counter() - began
                if runner.ended:
                    break
    except BaseException as stop:  # Ctrl-C, a full disk, a reader of the progress that is gone: all can be resumed
        manifest.status = "failed" if isinstance(stop, GateError) else "interrupted"
        manifest.finished_at = now()
        if not isinstance(stop, StorageError):
            writer.save()
        if isinstance(stop, KeyboardInterrupt):
            progress.note(f"Interrupted. To finish it: benchctl run --resume {shlex.quote(str(writer.folder))}")
        raise
    finally:
        progress.end()
    latest = {(cell.block, cell.arm): cell.status for cell in manifest.cells}
    manifest.status = "finished" if all(status == "finished" for status in latest.values()) else "failed"
    manifest.finished_at = now()
    writer.save()


def _preflight(prepared: Prepared, writer: RunWriter, progress: RunProgress) -> None:
    """Run the preflight, unless an earlier start of this run has passed it."""
    manifest = writer.manifest
    if manifest.preflight is not None and manifest.preflight.holds:
        return
    if prepared.recipe.preflight != "off":
        unasked = why_not_asked(prepared)
        doing = "asking the target a few health probes" if unasked is None else f"the target is not asked, as {unasked}"
        progress.note(f"Preflight: {doing}.")
    manifest.preflight = preflight(prepared, writer.folder / LOGS / "preflight.log")
    writer.save()
    for finding in manifest.preflight.findings:
        progress.note(f"warning: {finding.where}: {finding.seen}")
    stop_if_strict(manifest.preflight, writer.folder)


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end a run as Ctrl-C does: engine stopped, records kept, status written.

    One that is ignored already, as SIGHUP is below `nohup`, stays so. Ctrl-C is heeded here too, at once: an event loop
    would first wait for what it is doing.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    heeded = [n for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
