"""Starting a run, and executing its schedule to the end."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from benchctl.data.identity import home_relative
from benchctl.data.manifest import IdlePower, Tuning
from benchctl.data.store import RunData, open_run
from benchctl.data.writer import LOGS, RunWriter
from benchctl.errors import GateError, StorageError
from benchctl.machine.energy import mean_power
from benchctl.measurement.estimate import size_of, timings_for
from benchctl.measurement.manifest import new_manifest
from benchctl.measurement.plan import CellPlan, earlier_processes
from benchctl.measurement.preflight import preflight, stop_if_strict, why_not_probed
from benchctl.measurement.prepare import Prepared, files_of
from benchctl.measurement.progress import RunProgress
from benchctl.measurement.recording import now
from benchctl.measurement.runner import CellRunner, Nodes, Runner, Search
from benchctl.measurement.schedule import schedule_of
from benchctl.permissions import remember_run
from benchctl.prompts.context import load_context
from benchctl.recipes.load import RECIPE, recipe_text
from benchctl.recipes.schema import Recipe
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
    with signals_interrupt(), RunWriter(folder, manifest) as writer:
        progress.note(f"Run folder: {folder}")
        write_whole(folder / RECIPE, home_relative(recipe_text(prepared.recipe, prepared.recipe_folder)))
        for warning in manifest.warnings:
            progress.note(f"warning: {warning}")
        execute(prepared, writer, None, progress, stop_at_failure=stop_at_failure, on=on, search=search)
    return folder


def context_of(recipe: Recipe, folder: Path) -> str:
    """Return the text that pads a recipe's prompts; nothing where none is padded. Raises UsageError."""
    padded = any(arm.context_length for arm in recipe.arms)
    return load_context(recipe.prompts.context, recipe_folder=folder) if padded else ""


def execute(
    prepared: Prepared,
    writer: RunWriter,
    earlier: RunData | None,
    progress: RunProgress,
    *,
    stop_at_failure: bool,
    on: Nodes | None,
    search: Search | None,
) -> None:
    """Measure what a run lacks until its schedule ends; `earlier`: what a resumed run has. Raises as `start_run`."""
    manifest = writer.manifest
    begun = manifest.preflight is not None
    search = search if manifest.tuning is not None else None
    try:
        runner = _runner(prepared, writer, earlier, on, stop_at_failure=stop_at_failure)
        schedule = schedule_of(prepared, writer, earlier, progress, search, on_cluster=on is not None)
        timings = timings_for(prepared, earlier, writer.folder.parent.parent)
        if manifest.tuning is None:
            progress.note(size_of(prepared, schedule.plan, timings, begun=begun).sentence)
        runner.get_ready(progress)
        _preflight(prepared, writer, progress)
        manifest.idle = manifest.idle or _idle_power(schedule.plan)
        compared = prepared.recipe.compared
        progress.begin(schedule.plan, open_ended=schedule.open_ended, compared=compared, timings=timings)
        for cells in schedule.batches:
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


def _runner(
    prepared: Prepared, writer: RunWriter, earlier: RunData | None, on: Nodes | None, *, stop_at_failure: bool
) -> CellRunner:
    """Return what measures cells: this machine, or the cluster's nodes."""
    context_text = context_of(prepared.recipe, prepared.recipe_folder)
    if on is not None:
        return on.runner(prepared, writer, context_text, stop_at_failure=stop_at_failure)
    return Runner(
        prepared.recipe,
        prepared.engines,
        prepared.launches,
        writer,
        files_of(prepared),
        earlier_processes(earlier.records) if earlier else {},
        context_text=context_text,
        stop_at_failure=stop_at_failure,
    )


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
