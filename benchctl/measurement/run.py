"""Starting and resuming runs: what `benchctl run` does once the options are read."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from benchctl.data.identity import home_relative
from benchctl.data.manifest import IdlePower, Manifest, Tuning
from benchctl.data.store import RunData, open_run
from benchctl.data.writer import LOGS, RunWriter
from benchctl.errors import GateError, StorageError, UsageError
from benchctl.machine.energy import mean_power
from benchctl.measurement.estimate import Timings, earlier_timings, size_of, timings_of
from benchctl.measurement.plan import CellPlan, earlier_processes, make_plan, measured, unclosed
from benchctl.measurement.preflight import preflight, stop_if_strict, why_not_probed
from benchctl.measurement.prepare import Prepared, files_of, new_manifest
from benchctl.measurement.progress import RunProgress
from benchctl.measurement.recording import now
from benchctl.measurement.requested import must_be_unchanged, recipe_must_be_unchanged
from benchctl.measurement.runner import CellRunner, Nodes, Runner, Search
from benchctl.measurement.schedule import blocks_as_needed, fixed_blocks
from benchctl.permissions import remember_run
from benchctl.prompts.context import load_context
from benchctl.recipes.load import RECIPE, recipe_text
from benchctl.recipes.schema import AutoBlocks, Recipe
from benchctl.writing import write_whole

IDLE_S = 5.0
"""How long the machine is watched doing nothing, where it reports its power."""


def start_run(
    prepared: Prepared,
    out: Path,
    progress: RunProgress,
    command: list[str],
    *,
    tuning: Tuning | None = None,
    tuned_in: RunData | None = None,
    search: Search | None = None,
    stop_at_failure: bool = False,
    on: Nodes | None = None,
) -> Path:
    """Run a recipe into a new folder below `out` and return that folder; `stop_at_failure`: of a cell or a request.

    `tuning`: `search` for the fastest arm instead of measuring all alike. `tuned_in`: the run that chose what this run
    measures afresh, whose preflight holds. `on`: the cluster whose nodes measure it. Raises GateError where the recipe
    is strict and the preflight finds something, KeyboardInterrupt when interrupted, StorageError when the folder cannot
    be written; what was measured until then is kept and can be resumed.
    """
    manifest = new_manifest(prepared, command)
    if tuning is not None:
        manifest.tuning, manifest.blocks = tuning, 0
    if tuned_in is not None and tuned_in.manifest is not None:
        manifest.tuned_in, manifest.preflight = tuned_in.name, tuned_in.manifest.preflight
    folder = out / prepared.recipe.name / manifest.run
    scored_alone = [arm.argv for arm in manifest.arms if arm.speculation is None]
    remember_run(manifest.run, manifest.recipe, manifest.recipe_folder, scored_alone)
    with RunWriter(folder, manifest) as writer:
        progress.note(f"Run folder: {folder}")
        write_whole(folder / RECIPE, home_relative(recipe_text(prepared.recipe, prepared.recipe_folder)))
        for warning in manifest.warnings:
            progress.note(f"warning: {warning}")
        _execute(prepared, writer, None, progress, stop_at_failure=stop_at_failure, on=on, search=search)
    return folder


def context_of(recipe: Recipe, folder: Path) -> str:
    """Return the text that pads a recipe's prompts; nothing where none is padded. Raises UsageError."""
    padded = any(arm.context_length for arm in recipe.arms)
    return load_context(recipe.prompts.context, recipe_folder=folder) if padded else ""


def resume_run(
    prepared: Prepared,
    run: RunData,
    progress: RunProgress,
    *,
    stop_at_failure: bool = False,
    on: Nodes | None = None,
    search: Search | None = None,
) -> Path:
    """Measure what a run lacks, and nothing twice. Raises UsageError when engine, models or prompts have changed.

    On a cluster a group of which something is left is measured anew, whole, since it belongs on a single machine.
    `search`: what goes on choosing the cells where the run is one of `tune`.
    """
    manifest = run.manifest
    if manifest is None:
        raise UsageError("Only a run of benchctl can be resumed.", where=str(run.folder))
    if run.integrity.damage:
        fix = "Restore it from a copy, or start a new run without --resume."
        raise StorageError(run.integrity.damage[0], where=str(run.folder), fix=fix)
    recipe_must_be_unchanged(manifest, run.folder)
    must_be_unchanged(prepared, manifest, run.folder)
    _must_resume_where_begun(manifest, on, run.folder)
    manifest.status = "started"  # before the first record: more may follow than the manifest knows
    with RunWriter(run.folder, manifest) as writer:
        earlier = open_run(run.folder, as_stored=True)  # as it is now that nobody else writes
        if on is not None:
            done = measured(earlier, len(prepared.prompts))
            blocks = range(max(prepared.recipe.first_blocks, manifest.blocks))
            remaining = make_plan(prepared.recipe, prepared.prompts, done, blocks, ended=manifest.ended())
            on.discard_unfinished(writer, prepared.recipe, remaining)
            earlier = open_run(run.folder, as_stored=True)
        done = measured(earlier, len(prepared.prompts))
        progress.note(f"Run folder: {run.folder} ({len(done)} measurements are there already)")
        _execute(prepared, writer, earlier, progress, stop_at_failure=stop_at_failure, on=on, search=search)
    return run.folder


def _must_resume_where_begun(manifest: Manifest, on: Nodes | None, folder: Path) -> None:
    """A run that began on a cluster is resumed there, and a run that began here is resumed here."""
    if manifest.cells and (on is None) != (not manifest.machines):
        begun, fix = (
            ("a cluster", "Add --on and the cluster.") if manifest.machines else ("this machine", "Leave out --on.")
        )
        raise UsageError(f"This run was begun on {begun}.", where=str(folder), fix=fix)


def _execute(
    prepared: Prepared,
    writer: RunWriter,
    earlier: RunData | None,
    progress: RunProgress,
    *,
    stop_at_failure: bool,
    on: Nodes | None,
    search: Search | None,
) -> None:
    manifest, rule = writer.manifest, prepared.recipe.blocks
    begun = manifest.preflight is not None
    done = measured(earlier, len(prepared.prompts)) if earlier else set()
    opened = unclosed(earlier, done) if earlier else set()
    context_text = context_of(prepared.recipe, prepared.recipe_folder)
    runner: CellRunner = (
        Runner(
            prepared.recipe,
            prepared.engines,
            prepared.launches,
            writer,
            files_of(prepared),
            earlier_processes(earlier.records) if earlier else {},
            context_text=context_text,
            stop_at_failure=stop_at_failure,
        )
        if on is None
        else on.runner(prepared, writer, context_text, stop_at_failure=stop_at_failure)
    )
    sure = range(0 if manifest.tuning else max(prepared.recipe.first_blocks, manifest.blocks))
    plan = make_plan(
        prepared.recipe,
        prepared.prompts,
        done,
        sure,
        unclosed=opened,
        ended=manifest.ended(),
    )
    batches = fixed_blocks(plan, prepared.recipe, prepared.prompts, writer, progress) if on is None else iter([plan])
    timings = known_timings(prepared, earlier, writer.folder.parent.parent)
    if manifest.tuning is None:
        search = None
    if search is not None:
        batches = search.blocks(prepared, writer, progress)
    elif isinstance(rule, AutoBlocks):
        batches = blocks_as_needed(rule, prepared, writer, plan, progress)
    try:
        with signals_interrupt():
            if manifest.tuning is None:
                progress.note(size_of(prepared, plan, timings, begun=begun).sentence)
            runner.get_ready(progress)
            _preflight(prepared, writer, progress)
            manifest.idle = manifest.idle or _idle_power(plan)
            open_ended = isinstance(rule, AutoBlocks) or manifest.tuning is not None
            progress.begin(plan, open_ended=open_ended, compared=prepared.recipe.compared, timings=timings)
            for cells in batches:
                began = time.perf_counter()
                try:
                    runner.run(cells, progress)
                finally:
                    manifest.spent_s += time.perf_counter() - began
                if runner.ended:
                    break
    except BaseException as stop:  # Ctrl-C, a full disk, a reader of the progress that is gone: all can be resumed
        _record_stop(stop, writer, progress, search, on)
        raise
    finally:
        progress.end()
    _record_end(writer, stopped=runner.stopped)


def _record_stop(
    stop: BaseException, writer: RunWriter, progress: RunProgress, search: Search | None, on: Nodes | None
) -> None:
    """Store why a run ends early, and give Ctrl-C the command that resumes the run."""
    manifest = writer.manifest
    manifest.status = "failed" if isinstance(stop, GateError) else "interrupted"
    manifest.finished_at = now()
    if not isinstance(stop, StorageError):
        writer.save()
    if isinstance(stop, KeyboardInterrupt):
        if search is not None:
            progress.note(search.best_yet(open_run(writer.folder, check=False)))
        command = "run" if manifest.tuning is None and manifest.tuned_in is None else "tune"
        nodes = f" --on {on.where}" if on else ""
        resume = f"benchctl {command} --resume {shlex.quote(str(writer.folder))}{nodes}"
        stop.args = (f"Interrupted. To finish it: {resume}",)


def _record_end(writer: RunWriter, *, stopped: bool) -> None:
    """Store the status of a run whose last cell ended: failed where it was `stopped` or a cell did not finish."""
    manifest = writer.manifest
    latest = {(cell.block, cell.arm): cell.status for cell in manifest.cells if cell.discarded is None}
    finished = not stopped and all(status == "finished" for status in latest.values())
    manifest.status = "finished" if finished else "failed"
    manifest.finished_at = now()
    writer.save()


def known_timings(prepared: Prepared, resumed: RunData | None, results: Path) -> Timings:
    """Return what a plan is estimated by: times of the run that is resumed, else of an earlier one below `results`."""
    if resumed is not None:
        measured_so_far = timings_of(resumed, prepared.recipe.sampling.max_tokens, "by what was measured so far")
        if measured_so_far.known:
            return measured_so_far
    return earlier_timings(prepared, results) or Timings()


def _idle_power(plan: list[CellPlan]) -> IdlePower | None:
    """Measure the machine's power while nothing runs; at once where it is not reported."""
    if not plan:
        return None
    power = mean_power(IDLE_S)
    return IdlePower(seconds=power.seconds, watts=power.watts, untold=list(power.not_reported))


def _preflight(prepared: Prepared, writer: RunWriter, progress: RunProgress) -> None:
    """Run the preflight, unless an earlier start of this run has passed it."""
    manifest = writer.manifest
    if manifest.preflight is not None and manifest.preflight.holds:
        return
    if prepared.recipe.preflight != "off":
        reasons = [why_not_probed(setup.engine) for setup in prepared.setups.values()]
        reason = None if None in reasons else reasons[0]
        doing = "a few health probes on the target" if reason is None else f"the target is not probed, as {reason}"
        progress.note(f"Preflight: {doing}.")
        progress.waiting(f"preflight: {doing}")
    manifest.preflight = preflight(prepared, writer.folder / LOGS / "preflight.log")
    writer.save()
    for finding in manifest.preflight.findings:
        progress.note(f"warning: {finding.where}: {finding.seen}")
    stop_if_strict(manifest.preflight, writer.folder)


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end a run as Ctrl-C does: engine stopped, records kept, status written.

    One that is ignored already, as SIGHUP is below `nohup`, stays so. Ctrl-C is handled here too, at once: an event
    loop would first wait for what it is doing.
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
