"""Timing what rounds are made of: every arm's engine once more with a log that times each pass, and the draft alone.

The run's own engine, models and prompts, checked as for a resumed run; a few short answers. Nothing of it enters the
run's records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchctl import __version__
from benchctl.data.identity import home_relative
from benchctl.data.store import MANIFEST, RunData
from benchctl.data.traces import COSTS, CostTraces, DraftAlone, PassTime, TracedArm, WidthTime
from benchctl.data.writer import folder_lock, write_scores
from benchctl.engines.base import Engine, Launch, TracingEngine
from benchctl.errors import BenchctlError, EngineError
from benchctl.measurement.cell import fresh_log, running
from benchctl.measurement.plan import spread_over_tasks
from benchctl.measurement.prepare import Prepared
from benchctl.measurement.recording import now, require_attested
from benchctl.measurement.requests import warm_up
from benchctl.measurement.resume import must_be_unchanged, prepare_again
from benchctl.measurement.widths import measure_at_kernels
from benchctl.models.files import Notice, ResolvedPair
from benchctl.prompts.suite import PromptItem
from benchctl.recipes.schema import Arm, Sampling


def trace_costs(
    run: RunData,
    notice: Notice,
    *,
    prompts: int,
    tokens: int,
    binary: str | None = None,
    models_dir: Path | None = None,
    trusted: bool = False,
) -> tuple[CostTraces | None, str | None]:
    """Time what is not timed yet; return everything that is known, and why nothing more could be timed.

    Every arm answers `prompts` prompts, the tasks in turn, in `tokens` tokens at most, and is kept in the run's folder
    as soon as it is timed. Raises KeyboardInterrupt, and StorageError where the folder cannot be written.
    """
    manifest, costs = run.manifest, run.costs
    if manifest is None:
        return costs, "the run has no manifest, so what it ran with is not known"
    if manifest.target.path is None:
        return costs, "an endpoint that ran already cannot be started again with another log"
    try:
        prepared = prepare_again(run, binary=binary, models_dir=models_dir, trusted=trusted)
        must_be_unchanged(prepared, manifest, run.folder)
    except BenchctlError as error:
        return costs, error.what.rstrip(".")
    with folder_lock(run.folder, "measuring in this run"):
        return _trace(run, prepared, prompts, tokens, notice), None


def _trace(run: RunData, prepared: Prepared, prompts: int, tokens: int, notice: Notice) -> CostTraces:
    recipe, items = prepared.recipe, spread_over_tasks(prepared.prompts, prompts)
    names = [f"{item.task}/{item.prompt_idx}" for item in items]
    costs = run.costs
    if costs is None or (costs.prompts, costs.max_tokens) != (names, tokens):
        costs = CostTraces(run=run.name, benchctl_version=__version__, made_at=now(), prompts=names, max_tokens=tokens)
    costs.lacking = []
    sampling = recipe.sampling.model_copy(update={"max_tokens": min(tokens, recipe.sampling.max_tokens)})
    timed = _timed_in_the_run(run)
    for arm in recipe.arms:
        if arm.name in timed | {done.arm for done in costs.arms} or not _as_usual(arm, recipe.sampling):
            continue
        engine = prepared.engines[arm.name]
        launch = engine.traced(prepared.launches[arm.name]) if isinstance(engine, TracingEngine) else None
        if launch is None or not isinstance(engine, TracingEngine):
            kind = prepared.setup_of(arm.name).capabilities.kind
            message = f"This {kind} has no log that times its passes."
            costs.lacking += [] if message in costs.lacking else [message]
            continue
        notice(f"timing the passes of {arm.name}")
        try:
            measured, log = _answered(run, engine, launch, arm.name, items, sampling)
            passes = [PassTime.model_validate(vars(passed)) for passed in engine.read_trace(log)]
            costs.arms.append(TracedArm(arm=arm.name, answers=len(items), passes=passes, **measured))
        except EngineError as error:
            costs.lacking.append(f"{arm.name} could not be timed: {error.what}")
        _keep(run, costs)
    draft = prepared.of_baseline.models.draft if len(prepared.setups) == 1 else None
    if costs.draft_alone is None and draft is not None and not timed:
        notice("timing the draft model alone")
        try:
            engine = prepared.of_baseline.engine
            launch = engine.launch(recipe.arm(recipe.baseline), ResolvedPair(draft, None))
            costs.draft_alone = DraftAlone(**_answered(run, engine, launch, "draft-alone", items, sampling)[0])
        except BenchctlError as error:  # a drafting head is no model of its own
            costs.lacking.append(f"The draft model does not answer alone: {error.what}")
    if not costs.widths and len(prepared.setups) == 1 and prepared.of_baseline.engine.model_format == "gguf":
        notice("timing a verify by its width")
        try:
            widths = measure_at_kernels(prepared, lambda text, done, total: None)
            if widths.steady:
                costs.widths = [WidthTime(width=int(unit.width), seconds=unit.seconds, count=unit.count)
                                for unit in widths.curve]  # fmt: skip
            else:
                costs.lacking += widths.statements
        except BenchctlError as error:
            costs.lacking.append(f"A verify could not be timed by its width: {error.what}")
    _keep(run, costs)
    return costs


def _timed_in_the_run(run: RunData) -> set[str]:
    """Return the arms of which the engine timed every phase in the run: nothing of them is missing."""
    return {record.label for record in run.records if record.phase_s and {"verify", "plain"} & set(record.phase_s)}


def _as_usual(arm: Arm, sampling: Sampling) -> bool:
    """Whether an arm answers the recipe's own prompts, one at a time, at its temperature, as long as the longest."""
    usual = arm.temperature in (None, sampling.temperature) and arm.max_tokens in (None, sampling.max_tokens)
    return usual and not arm.overlapping and not arm.context_length


def _keep(run: RunData, costs: CostTraces) -> None:
    assert run.manifest is not None, "nothing of a run without a manifest is timed"
    write_scores(run.folder / MANIFEST, COSTS, costs.model_dump_json(by_alias=True, indent=1))


def _answered(
    run: RunData, engine: Engine, launch: Launch, name: str, items: Sequence[PromptItem], sampling: Sampling
) -> tuple[dict[str, Any], str]:
    """Have prompts answered; return the command, the tokens after the first of each, their seconds, and the log."""
    tokens, seconds = 0, 0.0
    _, log = fresh_log(run.folder, f"costs-{name}")
    with running(engine.start(launch, log), log) as server:
        require_attested(server.attest(None), server)
        warm_up(server, sampling)
        begins = log.stat().st_size
        for item in items:
            done = asyncio.run(
                server.complete(server.render(item.prompt), sampling.model_copy(update=item.prompt.sampling))
            )
            tokens += done.after_first or 0
            seconds += done.decode_s
    command = [home_relative(word) for word in launch.argv]
    text = log.read_bytes()[begins:].decode("utf-8", "replace")
    return {"command": command, "tokens": tokens, "seconds": seconds}, text
